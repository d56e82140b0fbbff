"""Writes texts of rows, with columns and numbers in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import pick_entries
from rlgraph.backends.worker.session import Session
from rlgraph.columns import NOT_IN_A_TEXT, WORDS, value_kind
from rlgraph.conversations import OddRow, conversation_text
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node
from rlgraph.ir.types import axis_of
from rlgraph.ops import attribute_value
from rlgraph.ops.texts import format_entry


def run_compose_texts(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return a text of each row, or messages with it; a conversation in a text is written out. Raises RunError for an
    entry that is no text, number or conversation, or that a format does not fit."""
    axis = axis_of(node.outputs[0].type)
    assert axis
    rows, role = frame.rows[axis.key], attribute_value(node, "role")
    first, *others = node.attr("pieces")
    texts = [first] * rows.size
    for name, how, piece in zip(node.inputs, node.attr("formats"), others, strict=True):
        entries = _entries(frame, name, axis.key, rows.size)
        for place, entry in enumerate(entries):
            try:
                if role is None and value_kind(entry) == "messages":
                    entry = conversation_text(entry, name)
                texts[place] += format_entry(entry, how) + piece
            except (TypeError, OddRow) as error:
                raise RunError(_odd_entry(node, f"`{name}` of {rows.row_name(place)}", entry, error)) from None
            except ValueError as error:
                message = f"`{name}` of {rows.row_name(place)} is {entry!r:.60}, and {error}"
                raise RunError(Diagnostic("E0871", message, node.span)) from None
    return NodeOutput(
        {node.outputs[0].name: texts if role is None else [_messages(node, role, text) for text in texts]}
    )


def run_join_texts(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return for each row of an axis the texts of what lies in it, in their order. Raises RunError for an entry that is
    no text."""
    inner, outer = axis_of(frame.types[node.inputs[0]]), axis_of(node.outputs[0].type)
    assert inner and outer
    texts: list[list[str]] = [[] for _ in range(frame.row_count(outer.key))]
    groups = frame.ancestor_rows(inner.key, outer.key)
    for place, (group, entry) in enumerate(zip(groups, frame.values[node.inputs[0]], strict=True)):
        if not isinstance(entry, str):
            row = frame.rows[inner.key].row_name(place) if inner.key in frame.rows else "an entry"
            message = f"`{node.inputs[0]}` of {row} is {WORDS[value_kind(entry)]}: {entry!r:.60}, and no text to join"
            hint = 'write a text in every row, or put the value into one: `"{prompts.level}"`'
            raise RunError(Diagnostic("E0872", message, node.span, hint))
        texts[group].append(entry)
    return NodeOutput({node.outputs[0].name: [node.attr("between").join(group) for group in texts]})


def _odd_entry(node: Node, place: str, entry: Any, error: Exception) -> Diagnostic:
    """Return the diagnostic for an entry that cannot stand in a text, or in a message of a user."""
    kind = value_kind(entry)
    if isinstance(error, OddRow):
        return Diagnostic("E0872", f"{place} cannot stand in a text: {error}", node.span)
    message = f"{place} is {WORDS[kind]}: {entry!r:.60}, which cannot stand in a text"
    return Diagnostic("E0872", message, node.span, NOT_IN_A_TEXT["messages" if kind == "messages" else ""])


def _messages(node: Node, role: str, text: str) -> list[dict[str, str]]:
    """Return a text as a message, with the system's before it if there is one."""
    system = attribute_value(node, "system")
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": role, "content": text}]


def _entries(frame: Frame, name: str, axis: str, count: int) -> Sequence[Any]:
    """Return what a value has for each row of an axis, which lies in its own."""
    value, outer = frame.values[name], axis_of(frame.types[name])
    # NumPy writes a number of 32 bits with the digits that it has.
    entries = [*value.detach().numpy().reshape(-1)] if isinstance(value, Tensor) else value
    if outer is None:
        return [entries[0] if isinstance(value, Tensor) else value] * count
    return entries if outer.key == axis else pick_entries(entries, frame.ancestor_rows(axis, outer.key))
