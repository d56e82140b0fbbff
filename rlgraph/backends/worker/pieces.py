"""Puts the tokens of a table's rows behind another prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import Rows, TableData, pick_entries
from rlgraph.backends.worker.session import Session, engine_run_error
from rlgraph.conversations import OddRow, parse_content, template_options_of, tools_of
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Table, axis_of


def replace_row_prompts(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return a table whose rows begin with other prompts and go on with the same tokens, from the first that carries
    loss on. Raises RunError for a prompt that cannot be used."""
    table: TableData = frame.values[node.inputs[0]]
    kind = frame.types[node.inputs[0]]
    assert isinstance(kind, Table) and table.sequences is not None
    rows = frame.rows[kind.axis.key]
    prompts = _prompts(node, frame, kind, rows)
    codec = session.models[table.owner].engine.codec
    encoded = []
    for place, (prompt, row) in enumerate(zip(prompts, table.data, strict=True)):
        try:
            asked = parse_content(prompt, "prompt")
            encoded.append(codec.encode_prompt(asked, tools_of(row), template_options_of(row)))
        except OddRow as error:
            message = f"the pieces of {rows.row_name(place)} cannot be used: {error}"
            raise RunError(Diagnostic("E0892", message, node.span)) from None
        except (EngineError, TypeError, KeyError) as error:
            raise engine_run_error(node, f"the pieces of {rows.row_name(place)} cannot be used", error) from None
        if not encoded[-1]:
            message = f"the pieces of {rows.row_name(place)} have no token: nothing stands before those of the row"
            hint = "put a text before them that is in every row"
            raise RunError(Diagnostic("E0892", message, node.span, hint))
    made = replace(table, prompts=tuple(prompts), sequences=_behind(encoded, table.sequences))
    return NodeOutput({node.outputs[0].name: made})


def _prompts(node: Node, frame: Frame, kind: Table, rows: Rows) -> list[Any]:
    """Return what stands before the tokens of each row: its pieces behind one another, a text or messages."""
    prompts: list[Any] = [None] * rows.size
    for name in node.inputs[1:]:
        axis = axis_of(frame.types[name])
        assert axis
        entries = frame.values[name]
        if axis.key != kind.axis.key:
            entries = pick_entries(entries, frame.ancestor_rows(kind.axis.key, axis.key))
        for place, entry in enumerate(entries):
            before = prompts[place]
            if (
                not isinstance(entry, str | list)
                or before is not None
                and isinstance(before, str) != isinstance(entry, str)
            ):
                what = "no text and no list of messages" if not isinstance(entry, str | list) else "of another kind"
                message = f"`{name}` of {rows.row_name(place)} is {what}: {entry!r:.60}"
                hint = "the pieces before the tokens are all texts, or all lists of messages"
                raise RunError(Diagnostic("E0892", message, node.span, hint))
            prompts[place] = entry if before is None else before + entry
    return prompts


def _behind(prompts: Sequence[Sequence[int]], sequences: Sequences) -> Sequences:
    """Return rows of other prompts, with the same tokens from the first that carries loss on."""
    flags = [part.tolist() for part in sequences.scored.split(sequences.lengths.tolist())]
    tokens, scored = [], []
    for prompt, row, row_flags in zip(prompts, sequences.rows(), flags, strict=True):
        first = row_flags.index(True) if True in row_flags else len(row)
        tokens.append([*prompt, *row[first:]])
        scored.append([False] * len(prompt) + row_flags[first:])
    return Sequences.from_lists(tokens, scored)
