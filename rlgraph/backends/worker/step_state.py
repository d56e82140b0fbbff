"""This module works on what lives across steps: keyed states and buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.ragged import ragged_positions
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import Rows, TableData, concat_entries
from rlgraph.backends.worker.columns import column_tensor
from rlgraph.backends.worker.sampling import rows_from_counts, table_type
from rlgraph.backends.worker.session import Session
from rlgraph.columns import NO_KEYS, WORDS, value_kind
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Table, axis_of
from rlgraph.ir.types import Tensor as TensorType


def run_state_lookup(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return the number that a state has for each key."""
    entries, keys = (frame.values[name] for name in node.inputs)
    kind: Any = frame.types[node.inputs[0]]
    initial = session.initial[kind.name]
    numbers = [entries.get(key, initial) for key in _keys(entries, keys, node, frame)]
    return NodeOutput({node.outputs[0].name: torch.tensor(numbers, dtype=session.dtype)})


def run_state_assign(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Write into a state, for each key, the mean of its values."""
    entries, keys, values = (frame.values[name] for name in node.inputs)
    sums: dict[Any, list[float]] = {}
    if isinstance(values, list):
        axis = axis_of(frame.types[node.inputs[2]])
        assert axis
        values = column_tensor(values, node.inputs[2], frame.rows[axis.key].row_name, node.span, session.dtype)
    numbers = [float(value) for value in values.tolist()]
    for key, value in zip(_keys(entries, keys, node, frame), numbers, strict=True):
        sums.setdefault(key, []).append(value)
    return NodeOutput(
        {
            node.outputs[0].name: {
                **entries,
                **{key: sum(key_values) / len(key_values) for key, key_values in sums.items()},
            }
        }
    )


def _keys(entries: Mapping[Any, float], column: Any, node: Node, frame: Frame) -> list[Any]:
    """Return the keys, which are all texts or all numbers, those that the state has, too: "4" is another key than 4."""
    keys: list[Any] = column.tolist() if isinstance(column, Tensor) else column
    first = next(iter(entries), keys[0] if keys else None)
    for place, key in enumerate(keys):
        kind = value_kind(key)
        if kind not in NO_KEYS and isinstance(key, str) == isinstance(first, str):
            continue
        axis = axis_of(frame.types[node.inputs[1]])
        assert axis
        others = f"other keys are {'texts' if isinstance(first, str) else 'numbers'}"
        problem = f"is {WORDS[kind]}, and {'no key' if kind in NO_KEYS else others}"
        message = f"`{node.inputs[1]}` of {frame.rows[axis.key].row_name(place)} {problem}"
        raise RunError(Diagnostic("E0735", message, node.span, "write a text or a whole number in every row"))
    return keys


def run_buffer_push(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Put the rows of a table into a buffer, which has one table."""
    buffer, table, *extra = (frame.values[name] for name in node.inputs)
    kind: Any = frame.types[node.inputs[1]]
    named = dict(zip(node.attr("names"), extra, strict=True))
    table = replace(table, columns={**table.columns, **named})
    axis = kind.axis
    lengths = {
        inner_axis.key: np.bincount(frame.ancestor_rows(inner_axis.key, axis.key), minlength=len(table.data))
        for inner_axis in (kind.token,)
        if inner_axis
    }
    full = replace(kind, turn=None, extra=(*kind.extra, *_extra_types(node, frame)))
    for name in {*kind.column_types()} - {*full.column_types()}:
        table.columns.pop(name, None)
    new = BufferRows(full, table, frame.rows[axis.key].known_ids, lengths[kind.token.key])
    capacity = _capacity(node, session)
    return NodeOutput({node.outputs[0].name: new.appended_to(buffer, capacity)})


def _extra_types(node: Node, frame: Frame) -> list[tuple[str, TensorType]]:
    """Return the names and types of columns that are stored with a table."""
    kinds = (frame.types[name] for name in node.inputs[2:])
    return [(n, k) for n, k in zip(node.attr("names"), kinds, strict=True) if isinstance(k, TensorType)]


def _capacity(node: Node, session: Session) -> int:
    """Return how many rows a buffer has, at most."""
    kind: Any = node.outputs[0].type
    outside = next(o for o in session.program.outside if o.name == kind.name)
    return int(outside.record.option("capacity"))


@dataclass(frozen=True, eq=False)
class BufferRows:
    """The rows of a buffer: rows of a table that have left their batch."""

    kind: Table
    table: TableData
    ids: tuple[Any, ...]
    lengths: np.ndarray
    """int64: the tokens of each row."""

    def appended_to(self, held: BufferRows | None, capacity: int) -> BufferRows:
        """Return these rows behind those that were there; the oldest leave."""
        if held is not None:
            table = concat_entries([held.table, self.table])
            joined = BufferRows(self.kind, table, held.ids + self.ids, np.concatenate([held.lengths, self.lengths]))
        else:
            joined = self
        over = len(joined.ids) - capacity
        return joined.take(np.arange(over, len(joined.ids))) if over > 0 else joined

    def take(self, places: np.ndarray) -> BufferRows:
        """Return some rows."""
        starts = self.lengths.cumsum() - self.lengths
        chosen = {self.kind.axis.key: places}
        if self.kind.token:
            chosen[self.kind.token.key] = ragged_positions(starts[places], self.lengths[places])
        table = self.table.take(self.kind, chosen)
        return BufferRows(self.kind, table, tuple(self.ids[i] for i in places.tolist()), self.lengths[places])


def run_buffer_sample(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Sample rows of a buffer without repetition; all of them if it has fewer."""
    buffer: BufferRows | None = frame.values[node.inputs[0]]
    kind = table_type(node)
    assert buffer is not None, "the checker has seen a push above"
    count = min(node.attr("rows"), len(buffer.ids))
    places = frame.step.picking_rng(node.attr("key")).sample(range(len(buffer.ids)), count)
    taken = buffer.take(np.array(sorted(places), dtype=np.int64))
    assert kind.token
    rows = [Rows(kind.axis, count, None, taken.ids), rows_from_counts(kind.token, taken.lengths)]
    return NodeOutput({node.outputs[0].name: taken.table}, rows)
