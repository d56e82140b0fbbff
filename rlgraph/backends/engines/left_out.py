"""What a chat template leaves out of a conversation without a word: it is rendered with signs in the place of what is
said, and those that do not come back are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlgraph.backends.engines.chat import Conversation
from rlgraph.backends.engines.errors import EngineError
from rlgraph.conversations import Message

_EDGE = "\ue0a7"
"""Begins and ends a sign: a character that nobody has given a meaning."""

_THINKING = ("reasoning_content", "reasoning", "thinking")
"""Where a message may have what was thought before it, which templates leave out of earlier turns on purpose."""

Mark = Callable[[str, str], str]
"""Returns the sign for a text, of which it is told what that is."""


def left_out_parts(chat: Conversation, first: int = 0, *, asks: bool = False, tools: bool = True) -> list[str]:
    """Return what of a conversation its template does not write, each in words: `the text of message 2 (role
    "developer")`. first: messages before this one are not counted. asks: as it is written to be answered. tools: those
    that it is given are counted, too.

    A conversation that the template refuses has no such parts: whoever reads it says what is wrong.
    """
    what: dict[str, tuple[str, str]] = {}

    def mark(text: str, name: str) -> str:
        sign = f"{_EDGE}{len(what)}{_EDGE}"
        what[sign] = text, name
        return sign

    messages = [*chat.messages[:first], *_marked(chat.messages[first:], mark)]
    given = [_named(tool, "the tool `{}`", mark) for tool in chat.tools] if tools else chat.tools
    try:
        text = replace(chat, messages=messages, tools=given).rendered(asks=asks)
        return [name for sign, (_, name) in what.items() if sign not in text]
    except EngineError:
        pass
    try:
        text = chat.rendered(asks=asks)
    except EngineError:
        return []
    # This template looks into what is said.
    return [name for said, name in what.values() if said.strip() not in text]


def _marked(messages: Sequence[Message], mark: Mark) -> Iterator[Message]:
    """Yield messages with signs for their texts, and for the names of the functions that they call."""
    for number, message in enumerate(messages, 1):
        place, content = f'message {number} (role "{message["role"]:.40}")', message.get("content")
        if isinstance(content, str) and content.strip():
            message = {**message, "content": mark(content, f"the text of {place}")}
        if calls := message.get("tool_calls"):
            calls = [_named(call, "the call of `{}` in " + place, mark) for call in calls]
            message = {**message, "tool_calls": calls}
        if message["role"] == "assistant" and number == len(messages):
            for name in _THINKING:
                if isinstance(thought := message.get(name), str) and thought.strip():
                    message = {**message, name: mark(thought, f"the `{name}` of {place}")}
        yield message


def _named(described: Any, what: str, mark: Mark) -> Any:
    """Return a tool, or a call of one, with a sign for its name, which is in its `function` or in itself. what: it in
    words, with a place for the name."""
    if not isinstance(described, Mapping):
        return described
    function = described.get("function")
    if isinstance(function, Mapping):
        return {**described, "function": _named(function, what, mark)}
    name = described.get("name")
    if not isinstance(name, str) or not name:
        return described
    return {**described, "name": mark(name, what.replace("{}", name))}
