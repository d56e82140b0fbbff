"""This module finds what a row of the data, or an agent, has for a model that never reads it: messages, calls and tools
that its chat template leaves out, and pictures or sounds, where only texts are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.worker.agent_requests import AgentRequest
from rlgraph.backends.worker.plain_prompts import uses_read_ahead
from rlgraph.backends.worker.prompt_limits import OpenedModel
from rlgraph.columns import value_kind, value_or_none
from rlgraph.conversations import (
    Content,
    Message,
    OddRow,
    example_of_format,
    parse_content,
    template_options_of,
    tools_of,
)
from rlgraph.data import BatchReader
from rlgraph.data.base import Row, numbered_rows
from rlgraph.dsl.data_uses import PromptUse
from rlgraph.dsl.lints import is_allowed
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Node, Program
from rlgraph.user_code import Environment

UNREAD_PART = "W0525"
_MARK = re.compile(r"<([a-z_]+)>")
"""Stands in a text where a picture or a sound of another column belongs: `<image>`."""
_FILE = re.compile(r"\.(png|jpe?g|webp|gif|bmp|mp4|webm|mp3|wav|flac)$|^data:(image|video|audio)/", re.IGNORECASE)
"""A text that names a picture or a sound, or is one."""
_FILES = re.compile(r"(image|picture|photo|video|audio)s?(_?(path|file|url)s?)?")
"""A column in which such texts are what a model is to see; elsewhere they are texts."""
_SYSTEM = ("system", "system_prompt")
"""Columns that data have for what the system says before a conversation."""
_ALLOWED = f"where that is meant, end the line with `# allow {UNREAD_PART}`"


def unread_part_warnings(
    program: Program,
    readers: Mapping[str, BatchReader],
    models: Mapping[str, OpenedModel],
    environments: Mapping[str, Environment],
) -> list[Diagnostic]:
    """Return a warning for each model, each column of prompts or answers and each kind of what the model does not read
    of it, by the first row that has one. Rows of a stream are passed over, which cannot be read ahead."""
    found: list[Diagnostic] = []
    for use, source in uses_read_ahead(program, readers, environments, _columns):
        first: dict[str, Diagnostic] = {}
        for hint, message in _unread(use, numbered_rows(source), models[use.model].engine.codec):
            first.setdefault(hint, Diagnostic(UNREAD_PART, message, use.node.span, f"{hint}; {_ALLOWED}"))
        found += first.values()
    return [warning for warning in found if not is_allowed(warning)]


def unread_request_warnings(
    node: Node, model: str, codec: Codec, requests: Iterable[tuple[str, AgentRequest]]
) -> Iterator[tuple[str, Diagnostic]]:
    """Yield parts of what agents ask that the chat template of a model leaves out, with a warning for each.
    requests: the name of the episode of each, and what it asks."""
    known: set[Any] = set()
    for name, request in requests:
        messages = request.messages or ()
        kinds = {*_transitions(messages, request.tools), *(("option", option) for option in request.options)}
        if not messages or kinds <= known:
            continue
        known |= kinds
        for part in codec.left_out_parts(messages, request.tools, request.options, asks=True):
            message = (
                f"the chat template of `{model}` leaves out {part} of what `{node.attr('env')}` asks, first in {name}"
            )
            hint = (
                f'take a template that writes it, `chat=chat(template="FILE.jinja")`, or {_instead(part, "`tools=`")}'
            )
            warning = Diagnostic(UNREAD_PART, message, node.span, f"{hint}; {_ALLOWED}")
            if not is_allowed(warning):
                yield part, warning


def _columns(use: PromptUse) -> str:
    """Return the columns of which a conversation is made."""
    return use.column if use.shape is None else " ".join(use.shape.columns)


def _unread(use: PromptUse, rows: Iterator[tuple[int, Row]], codec: Codec) -> Iterator[tuple[str, str]]:
    """Yield what is not read of rows, each with what to do about it."""
    known: set[Any] = set()
    for place, (number, row) in enumerate(rows):
        contents, tools, options = _contents(use, row)
        where = f"row {number:,} of `{use.source}`"
        for content in contents:
            for mark, column in _marked_columns(content, row):
                hint = "leave such rows out, and the column"
                yield hint, f"`{mark}` in {where} stands for what is in `{column}`, and `{use.model}` reads only texts"
        for column in _SYSTEM:
            if isinstance(said := row.get(column), str) and said.strip() and not _has_system(contents, said):
                message = f"`{column}` of {where} is not read with `{use.column}`: no message of the system's has it"
                yield (
                    f"write it as a message, `system` and then the others, or leave the column `{column}` out",
                    message,
                )
        if place == 0 and (name := next((name for name, value in row.items() if _is_picture(value, name)), "")):
            message = f"the column `{name}` of `{use.source}` has pictures or sounds; `{use.model}` reads only texts"
            yield "leave the column out", message
        for messages in (content for content in contents if not isinstance(content, str)):
            # Templates look at who speaks, at what comes before, and at what else a message has.
            kinds = {*_transitions(messages, tools), *(("option", name) for name in options)}
            if kinds <= known:
                continue
            known |= kinds
            for part in codec.left_out_parts(messages, tools, options, asks=use.shape is None):
                hint = f'take a template that writes it, `chat=chat(template="FILE.jinja")`, or {_instead(part)}'
                yield hint, f"the chat template of `{use.model}` leaves out {part} of {where}"


def _has_system(contents: Sequence[Content], said: str) -> bool:
    """Return whether there is no conversation that lacks what the system said."""
    chats = [content for content in contents if not isinstance(content, str)]
    return all(any(said.strip() in str(message.get("content")) for message in messages) for messages in chats)


def _instead(part: str, tools: str = "the column `tools`") -> str:
    """Return what can be written in the place of what a template leaves out. tools: where tools are given."""
    if part.startswith("the tool "):
        return f"describe the tools in the system's message, and leave {tools} out"
    if part.startswith("the `"):
        return "write it into the text, between `<think>` and `</think>` for example"
    if part.startswith("the call "):
        return "write the call into the text of the message"
    return "write it as a message of the `user` or the `system`"


def _contents(use: PromptUse, row: Row) -> tuple[list[Content], Sequence[Mapping[str, Any]], Mapping[str, Any]]:
    """Return the texts and conversations that a model reads of a row, each as it is written, with the tools and the
    options of the template. There are none in a row that cannot be used: whoever reads it says what is wrong."""
    try:
        tools, options = (tools_of(row), template_options_of(row)) if use.whole else ((), {})
        if use.shape is None:
            return [parse_content(value_or_none(row, use.column), use.column)], tools, options
        example = example_of_format(row, use.shape, last=use.last, whole=use.whole)
    except OddRow:
        return [], (), {}
    prompt, answer = example.prompt, example.answer
    if prompt is None or isinstance(prompt, str) or isinstance(answer, str):
        return [content for content in (prompt, answer) if content], tools, options
    return [[*prompt, *answer]], tools, options


def _transitions(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield the kinds of messages, each with that of the one before."""
    before: Any = bool(tools)
    for message in messages:
        kind = message["role"], frozenset(name for name, value in message.items() if value)
        yield before, kind
        before = kind


def _marked_columns(content: Content, row: Row) -> Iterator[tuple[str, str]]:
    """Yield marks in the texts of a row, each with the column of which it is the name, or the singular of it."""
    texts = [content] if isinstance(content, str) else [message.get("content") for message in content]
    for text in texts:
        for name in _MARK.findall(text) if isinstance(text, str) and "<" in text else ():
            yield from ((f"<{name}>", column) for column in (name, f"{name}s") if row.get(column))


def _is_picture(value: Any, name: str) -> bool:
    """Return whether the value of a column is a file as bytes, an object or a list with some, or a picture of Pillow's;
    in a column that is called so, also a path."""
    if isinstance(value, Mapping):
        return any(_is_picture(held, name) for held in value.values())
    if isinstance(value, list | tuple):
        return bool(value) and _is_picture(value[0], name)
    if isinstance(value, str):
        return bool(_FILES.fullmatch(name) and _FILE.search(value))
    if isinstance(value, bytes | bytearray):
        return True
    return value_kind(value) == "other" and hasattr(value, "tobytes") and hasattr(value, "mode")
