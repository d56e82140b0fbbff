"""This module works on buffers: rows of earlier steps, which are pushed, sampled, and found by a key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.ragged import ragged_positions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import Rows, TableData, concat_entries, pick_entries
from rlgraph.backends.worker.sampling import rows_of_inner_axes, table_type
from rlgraph.backends.worker.sampling_inputs import table_column
from rlgraph.backends.worker.session import Session
from rlgraph.backends.worker.step_state import checked_keys
from rlgraph.columns import NO_KEYS, WORDS, value_kind
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import ConstructorCall, Node
from rlgraph.ir.types import SUPPORT, StateHandle, Table, Type, axis_of, has_parts
from rlgraph.ir.types import Tensor as TensorType
from rlgraph.ops.nodes import model_of, sampling_node


@dataclass(frozen=True, eq=False)
class BufferRows:
    """The rows of a buffer: rows of a table that have left their batch."""

    kind: Table
    table: TableData
    ids: tuple[Any, ...]
    lengths: np.ndarray
    """int64: the tokens of each row."""
    keys: tuple[Any, ...] = ()
    """The key of each row, in a buffer that has one."""

    def appended_to(self, held: BufferRows | None, capacity: int, last: int | None = None) -> BufferRows:
        """Return these rows behind those that were there, at most `last` of a key; the oldest leave."""
        joined = self
        if held is not None:
            table = concat_entries([held.table, self.table])
            lengths = np.concatenate([held.lengths, self.lengths])
            joined = BufferRows(self.kind, table, held.ids + self.ids, lengths, held.keys + self.keys)
        stay = np.arange(len(joined.ids)) if last is None else last_of_each_key(joined.keys, last)
        stay = stay[max(0, stay.shape[0] - capacity) :]
        return joined if stay.shape[0] == len(joined.ids) else joined.take(stay)

    def take(self, places: np.ndarray) -> BufferRows:
        """Return some rows."""
        starts = self.lengths.cumsum() - self.lengths
        chosen = {self.kind.axis.key: places}
        if self.kind.turn:
            turns = self.table.columns["turns"].numpy()
            chosen[self.kind.turn.key] = ragged_positions((turns.cumsum() - turns)[places], turns[places])
        if self.kind.token:
            chosen[self.kind.token.key] = ragged_positions(starts[places], self.lengths[places])
        indices = places.tolist()
        keys = tuple(self.keys[i] for i in indices) if self.keys else ()
        table = self.table.take(self.kind, chosen)
        return BufferRows(self.kind, table, tuple(self.ids[i] for i in indices), self.lengths[places], keys)


def last_of_each_key(keys: Sequence[Any], count: int) -> np.ndarray:
    """Return the places of the last `count` rows of each key, int64, ascending."""
    seen: dict[Any, int] = defaultdict(int)
    stay = []
    for place in range(len(keys) - 1, -1, -1):
        seen[keys[place]] += 1
        if seen[keys[place]] <= count:
            stay.append(place)
    return np.array(stay[::-1], dtype=np.int64)


def run_buffer_push(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Put the rows of a table into a buffer, which has one table."""
    buffer, table, *extra = (frame.values[name] for name in node.inputs)
    kind = frame.types[node.inputs[1]]
    assert isinstance(kind, Table) and kind.token
    axis = kind.axis
    extra_kinds = _extra_types(node, frame, kind)
    named = {
        name: _by_row(value, frame.types[source], column, frame, session)
        for (name, column), value, source in zip(extra_kinds, extra, node.inputs[2:], strict=True)
    }
    table = replace(table, columns={**table.columns, **named})
    lengths = np.bincount(frame.ancestor_rows(kind.token.key, axis.key), minlength=len(table.data))
    of_rows = tuple((name, column) for name, column in kind.extra if not has_parts(name))
    full = replace(kind, extra=(*of_rows, *extra_kinds))
    record = _declaration(node.outputs[0].type, session)
    keys = _keys_of_rows(record.option("key"), buffer, table, frame.rows[axis.key], node, session)
    for name in {*kind.column_types()} - {*full.column_types()}:
        table.columns.pop(name, None)
    new = BufferRows(full, table, frame.rows[axis.key].known_ids, lengths, keys)
    made = new.appended_to(buffer, int(record.option("capacity")), record.option("last"))
    return NodeOutput({node.outputs[0].name: made})


def _keys_of_rows(
    name: str | None, held: BufferRows | None, table: TableData, rows: Rows, node: Node, session: Session
) -> tuple[Any, ...]:
    """Return the key of each row that is pushed; () in a buffer without a key. Raises RunError for what is none."""
    if name is None:
        return ()
    column = table_column(name, table, session, rows, node)
    keys = tuple(column.tolist() if isinstance(column, Tensor) else column)
    first = next(iter((held.keys if held else ()) + keys), None)
    for place, key in enumerate(keys):
        kind = value_kind(key)
        if kind in NO_KEYS or isinstance(key, str) != isinstance(first, str):
            others = f"other keys are {'texts' if isinstance(first, str) else 'numbers'}"
            problem = f"is {WORDS[kind]}, and {'no key' if kind in NO_KEYS else others}"
            message = f"`{name}` of {rows.row_name(place)} {problem}"
            raise RunError(Diagnostic("E0735", message, node.span, "write a text or a whole number in every row"))
    return keys


def _extra_types(node: Node, frame: Frame, kind: Table) -> list[tuple[str, TensorType]]:
    """Return the names and types of columns that are stored with a table: what its rows lie in, each row has."""
    assert kind.token
    columns = []
    for name, source in zip(node.attr("names"), node.inputs[2:], strict=True):
        given = frame.types[source]
        assert isinstance(given, TensorType)
        inside = given.axis in (kind.turn, kind.token)
        columns.append((name, replace(given, axis=given.axis if given.axis and inside else kind.axis)))
    return columns


def _by_row(value: Any, given: Type, column: TensorType, frame: Frame, session: Session) -> Any:
    """Return a value with an entry for each row, turn or token of a column."""
    axis = axis_of(given)
    assert column.axis is not None
    if axis is not None:
        same = axis.key == column.axis.key
        return value if same else pick_entries(value, frame.ancestor_rows(column.axis.key, axis.key))
    count = frame.rows[column.axis.key].size
    if isinstance(value, str):
        return [value] * count
    dtype = {"int": torch.int64, "bool": torch.bool}.get(column.dtype, session.dtype)
    return torch.as_tensor(value, dtype=dtype).expand(count).clone()


def _declaration(kind: Any, session: Session) -> ConstructorCall:
    """Return how a buffer is declared."""
    assert isinstance(kind, StateHandle)
    return next(outside.record for outside in session.program.outside if outside.name == kind.name)


def run_buffer_sample(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Sample rows of a buffer without repetition; all of them if it has fewer."""
    buffer: BufferRows | None = frame.values[node.inputs[0]]
    held = () if buffer is None else buffer.ids
    count = min(node.attr("rows"), len(held))
    places = frame.step.picking_rng(node.attr("key")).sample(range(len(held)), count)
    return _rows_taken(node, buffer, sorted(places), None, held, session)


def run_buffer_recall(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Find the rows of a buffer that have a key, for each row of the keys: from the oldest to the newest."""
    buffer: BufferRows | None = frame.values[node.inputs[0]]
    held = buffer.keys if buffer else ()
    keys = checked_keys(held, frame.values[node.inputs[1]], node, frame)
    places_by_key: dict[Any, list[int]] = defaultdict(list)
    for place, key in enumerate(held):
        places_by_key[key].append(place)
    found = [places_by_key.get(key, []) for key in keys]
    counts = np.array([len(places) for places in found], dtype=np.int64)
    parent = table_type(node).axis.parent
    assert parent is not None
    known = frame.rows[parent.key].known_ids
    # What is random of such a row depends on whose it is: two rows may have one key.
    ids = [(*known[row], number) for row, places in enumerate(found) for number in range(len(places))] if known else []
    parents = np.repeat(np.arange(len(keys)), counts)
    return _rows_taken(node, buffer, [place for places in found for place in places], parents, ids, session)


def _rows_taken(
    node: Node,
    buffer: BufferRows | None,
    places: list[int],
    parents: np.ndarray | None,
    ids: Iterable[Any],
    session: Session,
) -> NodeOutput:
    """Return the output of a node that takes rows of a buffer. parents: in which row each lies, int64; ids: of the rows
    taken, or where they lie in none, of all that the buffer has."""
    kind = table_type(node)
    assert kind.token
    if buffer is None:
        table = _no_rows(node, kind, session)
    else:
        taken = buffer.take(np.array(places, dtype=np.int64))
        table = taken.table
        ids = taken.ids if parents is None else ids
    rows = Rows(kind.axis, len(places), parents, tuple(ids))
    return NodeOutput({node.outputs[0].name: table}, [rows, *rows_of_inner_axes(kind, table)])


def _no_rows(node: Node, kind: Table, session: Session) -> TableData:
    """Return a table of a buffer into which nothing has been pushed yet."""
    dtypes = {"float": session.dtype, "int": torch.int64, "bool": torch.bool}
    columns: dict[str, Any] = {
        name: torch.zeros(0, dtype=dtypes[column.dtype]) if column.dtype in dtypes else []
        for name, column in kind.column_types().items()
        if name not in (kind.data or ())
    }
    if SUPPORT in dict(kind.extra):
        columns[SUPPORT] = KeptTokens.nothing(session.dtype)
    return TableData((), (), Sequences.from_lists([]), columns, _tokenizing_model(node, session))


def _tokenizing_model(node: Node, session: Session) -> str:
    """Return the model whose tokens the rows of a buffer are going to have: that which samples what is pushed; of
    encoded texts the first that is declared."""
    for phase in session.program.phases:
        types = phase.graph.value_types()
        handle = next((types[name] for name in node.inputs[:1] if name in types), None)
        makers = {value.name: (maker, at) for maker in phase.graph.walk() for at, value in enumerate(maker.outputs)}
        pushes = (push for push in phase.graph.walk() if push.op == "push" and types[push.inputs[0]] == handle)
        for sampler in (sampling_node(push.inputs[1], makers) for push in pushes):
            model = types[model_of(sampler)] if sampler else None
            if isinstance(model, StateHandle):
                return model.name
    return session.program.models[0].name
