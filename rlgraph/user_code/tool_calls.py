"""Calls of tools, read from what a model has written.

Each family of models has its own way to write a call; all of them are in `FORMATS`. Which one an answer is in is told
by the sign that its calls begin with, so that nobody has to say of which family a model is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

THINKING_ENDS = "</think>"
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""What JSON's types are in Python."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as a model has written it."""

    name: str = ""
    arguments: Any = None
    error: str = ""
    """Why it cannot be read; empty where it can."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family of models writes calls."""

    sign: str
    """The text with which calls begin."""
    read: Callable[[str], Iterator[WrittenCall]]
    """Yields the calls of an answer that has the sign."""


def _in_tags(text: str) -> Iterator[WrittenCall]:
    for body in re.findall(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", text, re.DOTALL):
        yield from _objects(body)


def _after_sign(sign: str) -> Callable[[str], Iterator[WrittenCall]]:
    def read_calls_after_sign(text: str) -> Iterator[WrittenCall]:
        yield from _objects(text.partition(sign)[2])

    return read_calls_after_sign


def _of_mistral(text: str) -> Iterator[WrittenCall]:
    """Read `[TOOL_CALLS][{...}]`, or as newer models have it, `[TOOL_CALLS]name[ARGS]{...}` for each call."""
    for body in text.split("[TOOL_CALLS]")[1:]:
        name, separates, arguments = body.partition("[ARGS]")
        yield from _with_arguments(name.strip(), arguments) if separates else _objects(body)


def _of_deepseek(text: str) -> Iterator[WrittenCall]:
    pattern = r"<｜tool▁call▁begin｜>(?:function)?<｜tool▁sep｜>\s*(\S+)\s*```json(.*?)(?:```|\Z)"
    calls = re.findall(pattern, text, re.DOTALL)
    for name, arguments in calls:
        yield from _with_arguments(name, arguments)
    if not calls:
        yield WrittenCall(error="the call has no name with its arguments in ```json")


FORMATS = {
    "tags": CallFormat("<tool_call>", _in_tags),
    "mistral": CallFormat("[TOOL_CALLS]", _of_mistral),
    "deepseek": CallFormat("<｜tool▁call▁begin｜>", _of_deepseek),
    "llama": CallFormat("<|python_tag|>", _after_sign("<|python_tag|>")),
}
"""How calls are written, by a name: `tags` is how Hermes, Qwen and SmolLM have them. An answer that is nothing but a
JSON object with a `name` and `parameters` or `arguments` is a call, too: Llama writes them so."""


def written_calls(answer: str) -> list[WrittenCall]:
    """Return the calls in an answer, in their order; none where it has none. What is thought is passed over."""
    text = answer.rpartition(THINKING_ENDS)[2]
    for written in FORMATS.values():
        if written.sign in text:
            return list(written.read(text)) or [WrittenCall(error="there is nothing in the call")]
    return _bare(text.strip())


def wrong_arguments_message(arguments: Any, schema: Mapping[str, Any]) -> str:
    """Return what is wrong with the arguments of a call, in words; "" if nothing is. schema: that of the parameters."""
    known = schema.get("properties", {})
    if not isinstance(arguments, Mapping):
        return f"the arguments are no JSON object: {_shown(arguments)}"
    unknown = next((name for name in arguments if name not in known), None)
    if unknown is not None:
        return f"there is no argument `{unknown}`; it takes {', '.join(known) or 'none'}"
    missing = next((name for name in schema.get("required", ()) if name not in arguments), None)
    if missing is not None:
        return f"the argument `{missing}` is missing"
    for name, value in arguments.items():
        kinds, choices = known[name].get("type"), known[name].get("enum")
        kinds = [kinds] if isinstance(kinds, str) else kinds or []
        if known[name].get("nullable"):
            kinds = [*kinds, "null"]
        if kinds and not any(_is_of(value, kind) for kind in kinds):
            return f"the argument `{name}` must be of type {' or '.join(kinds)}, and is {_shown(value)}"
        if choices and value not in choices:
            return f"the argument `{name}` must be one of {_shown(choices)}, and is {_shown(value)}"
    return ""


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind in ("integer", "number"):
        return False
    return kind not in _KINDS or isinstance(value, _KINDS[kind])


def _objects(body: str) -> Iterator[WrittenCall]:
    """Yield the calls of a JSON object, or of a list of them; what comes after it is passed over."""
    try:
        value, _ = json.JSONDecoder().raw_decode(body.strip())
    except (ValueError, RecursionError) as error:
        yield WrittenCall(error=f"the call is no JSON: {error}")
        return
    for item in value if isinstance(value, list) else [value]:
        yield _call(item)


def _call(value: Any) -> WrittenCall:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return WrittenCall(error='a call is {"name": ..., "arguments": {...}}')
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, str):
        return WrittenCall(value["name"], arguments)
    [call] = _with_arguments(value["name"], arguments)
    return call


def _with_arguments(name: str, body: str) -> Iterator[WrittenCall]:
    """Yield a call whose arguments are a JSON text."""
    try:
        yield WrittenCall(name, json.JSONDecoder().raw_decode(body.strip())[0])
    except (ValueError, RecursionError) as error:
        yield WrittenCall(name, error=f"the arguments are no JSON: {error}")


def _bare(text: str) -> list[WrittenCall]:
    """Return the call that an answer is as a whole."""
    if not text.startswith("{"):
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [_call(value)] if "name" in value and ("parameters" in value or "arguments" in value) else []


def _shown(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False, default=str):.60}"
