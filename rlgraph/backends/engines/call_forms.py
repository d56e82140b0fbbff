"""The forms in which chat templates read calls of tools: arguments as an object or as its JSON, and beside them no
content, null or an empty text. Data have any of these, and most templates know one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlgraph.conversations import Message


def message_forms(messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
    """Yield messages in the forms to try, until a template takes one: arguments as objects, which most templates write
    as JSON themselves; as texts; and both with an empty text where a message that calls has none."""
    objects = [_with_arguments(message, _as_object) for message in messages]
    yield objects
    if not any(message.get("tool_calls") for message in messages):
        return
    texts = [_with_arguments(message, _as_text) for message in messages]
    yield texts
    for form in (objects, texts):
        yield [
            {**message, "content": message.get("content") or ""} if message.get("tool_calls") else message
            for message in form
        ]


def _with_arguments(message: Message, form: Callable[[Any], Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return dict(message)
    return {**message, "tool_calls": [_call(call, form) for call in calls]}


def _call(call: Any, form: Callable[[Any], Any]) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(function := call.get("function"), Mapping):
        return {**call, "function": _call(function, form)}
    return {**call, "arguments": form(call["arguments"])} if "arguments" in call else call


def _as_object(arguments: Any) -> Any:
    """Return the arguments of a call whose JSON is given; what is no JSON of an object stays."""
    if not isinstance(arguments, str):
        return arguments
    try:
        read = json.loads(arguments)
    except ValueError:
        return arguments
    return read if isinstance(read, dict) else arguments


def _as_text(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
