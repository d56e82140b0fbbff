"""What an agent asks of a model: requests of OpenAI's API, read from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlgraph.conversations import Message
from rlgraph.user_code.tool_calls import THINKING_ENDS

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MOST_CHOICES = 128


class RequestRefused(Exception):
    """A request that is not answered, and why."""

    def __init__(self, message: str, code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request for answers. How they are sampled is the program's to say: temperatures of a request are passed
    over."""

    messages: tuple[Message, ...] | None
    """The conversation, in the words of chat templates; None: the prompt is a text or tokens."""
    prompt: str | tuple[int, ...] = ""
    model: str = ""
    """Whom it asks, where several models answer."""
    tools: tuple[Mapping[str, Any], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template is given besides."""
    continues: bool = False
    """Whether the answer is the rest of a last message of the assistant's."""
    choices: int = 1
    """How many answers are wanted."""
    max_tokens: int | None = None
    """The longest answer."""
    stop: tuple[str, ...] = ()
    """Texts at which an answer ends, and which are not part of it."""
    seed: int | None = None
    logprobs: bool = False
    streams: bool = False
    tells_usage: bool = False
    """Whether a stream ends with how many tokens there were."""
    returns_ids: bool = False
    """Whether the answer has the ids of its tokens, and the versions of the weights that made them."""

    @property
    def is_chat(self) -> bool:
        """Whether it is answered with a message."""
        return self.messages is not None


def read_request(path: str, body: bytes) -> AgentRequest:
    """Return the request that was sent to a path. Raises RequestRefused."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the request is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise RequestRefused("the request is no JSON object")
    _refuse_unknown_meanings(given)
    common: dict[str, Any] = {
        "model": str(given.get("model") or ""),
        "choices": _whole(given, "n", 1, MOST_CHOICES) or 1,
        "max_tokens": _whole(given, "max_completion_tokens") or _whole(given, "max_tokens"),
        "stop": _stops(given.get("stop")),
        "seed": _whole(given, "seed", None),
        "logprobs": given.get("logprobs") not in (None, False),
        "streams": bool(given.get("stream")),
        "tells_usage": bool((given.get("stream_options") or {}).get("include_usage")),
        "returns_ids": bool(given.get("return_token_ids")),
    }
    if path == COMPLETIONS:
        return AgentRequest(None, _prompt(given.get("prompt")), **common)
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("`messages` must be a list of messages")
    chosen = given.get("tool_choice")
    return AgentRequest(
        tuple(_message(message) for message in messages),
        tools=() if chosen == "none" else tuple(given.get("tools") or ()),
        options=given.get("chat_template_kwargs") or {},
        continues=bool(given.get("continue_final_message")),
        **common,
    )


def is_same_message(said: Message, given: Message) -> bool:
    """Return whether a message of a request is one that was said. Of the model's the thinking may be left out, blanks
    at the ends, and all but what it says and calls."""
    if said["role"] != given["role"]:
        return False
    if said["role"] != "assistant":
        return said == given
    return _what_counts(said) == _what_counts(given)


def _what_counts(message: Message) -> tuple[str, list[Any]]:
    text = str(message.get("content") or "").rpartition(THINKING_ENDS)[2].strip()
    return text, [call.get("function") for call in message.get("tool_calls") or ()]


def _refuse_unknown_meanings(given: Mapping[str, Any]) -> None:
    """Raise RequestRefused for what would change what is answered, and is not done here."""
    form = given.get("response_format")
    if form and form.get("type") != "text":
        raise RequestRefused(
            "`response_format` is not known here: ask for it in the messages, and read it from the text"
        )
    choice = given.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise RequestRefused("`tool_choice` is auto or none here: the model decides what it calls")
    for name in ("logit_bias", "suffix", "echo", "functions", "modalities", "audio"):
        if given.get(name):
            raise RequestRefused(f"`{name}` is not known here")
    if (given.get("top_logprobs") or 0) > 0:
        raise RequestRefused(
            "`top_logprobs` is 0 here: the log-probability of the token that was sampled is kept alone"
        )


def _whole(given: Mapping[str, Any], name: str, least: int | None = 1, most: int | None = None) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    right = isinstance(value, int) and not isinstance(value, bool)
    if not right or (least is not None and value < least) or (most is not None and value > most):
        bounds = "" if least is None else f" of at least {least}" + ("" if most is None else f" and at most {most}")
        raise RequestRefused(f"`{name}` must be a whole number{bounds}, not {value!r:.40}")
    return int(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise RequestRefused("`stop` must be a text or a list of texts")
    return tuple(stops)


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in value):
        return tuple(value)
    raise RequestRefused("`prompt` must be one text, or a list of token ids")


def _message(value: Any) -> Message:
    """Return a message in the words of chat templates: content is a text, and arguments of calls are objects."""
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise RequestRefused(f'a message is {{"role": ..., "content": ...}}, not {value!r:.60}')
    role = "system" if value["role"] == "developer" else value["role"]
    message: dict[str, Any] = {"role": role, "content": _text(value.get("content"))}
    for name in ("name", "tool_call_id"):
        if value.get(name) is not None:
            message[name] = value[name]
    if calls := value.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts: Sequence[Any] = content if isinstance(content, list) else [content]
    if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
        raise RequestRefused("the content of a message is a text here, or a list of texts")
    return "".join(part["text"] for part in parts)


def _call(value: Any) -> Mapping[str, Any]:
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestRefused(f"a call of a tool has a `function` with a name, not {value!r:.60}")
    arguments = function.get("arguments") or {}
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        raise RequestRefused(f"the arguments of a call are no JSON: {arguments!r:.60}") from None
    call = {"name": function["name"], "arguments": arguments}
    return {"id": value.get("id", ""), "type": "function", "function": call}
