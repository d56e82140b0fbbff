"""Tracks which process has which rows, and what must be sent before a process can work, so that it gets each row
once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlgraph.backends.collect_batches import Surplus
from rlgraph.backends.distributed.sharding import RequestNeeds
from rlgraph.backends.frame import Frame
from rlgraph.backends.ray.piece_store import Places, Wire, Wish, as_range, to_sendable
from rlgraph.backends.ray.processes import Processes, Reference
from rlgraph.backends.ray.requests import AxisRows, ControllerValue, PieceRows, WantedRows, WholePiece
from rlgraph.backends.ray.row_refs import Address, Key, PieceRef, RowRefs, ValueRef, column_key
from rlgraph.backends.step import Step
from rlgraph.ir.types import Axis

Source = WantedRows | WholePiece | ControllerValue


@dataclass
class Delivery:
    """What one process is told of its inputs, and references to the rows that it lacks."""

    inputs: dict[str, Source]
    rows: tuple[AxisRows, ...]
    missing_rows: dict[Address, list[Wish]] = field(default_factory=dict)
    """The rows that it lacks, by the process that has them."""
    packed_rows: list[Any] = field(default_factory=list)
    """A reference to the rows from each of these processes."""

    def senders(self) -> list[tuple[Address, int]]:
        """Return each process that sends, with the number of the last request that made any of the rows."""
        return [(holder, max(key[0] for key, _, _ in wishes)) for holder, wishes in self.missing_rows.items()]


class RowLedger:
    """Records which rows each process has got in every step in flight. Requests to a group are sent in the order in
    which their rows were recorded: who records for a group has its pool meanwhile."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._came: dict[int, dict[Address, dict[Key, np.ndarray]]] = {}
        """For each step, process and piece of another process, which rows have arrived, bool [rows]."""

    def plan_deliveries(self, to: Sequence[Address], frame: Frame, needs: RequestNeeds) -> list[Delivery]:
        """Return for each process what it lacks of a frame's values. All of them need the same. A process also stands
        for others that always get what it gets, and make nothing that others read."""
        # Columns come after tables: a column of rows that have arrived or been sent need not be sent again.
        names = sorted(
            needs.names,
            key=lambda name: isinstance(frame.values[name], RowRefs) and frame.values[name].column is not None,
        )
        values = {name: _split(frame.values[name]) for name in names}
        identities = {axis.key: frame.rows[axis.key].ids for axis in needs.axes if needs.ids}
        ids = {axis: _split(axis_ids) for axis, axis_ids in identities.items() if axis_ids is not None}
        rows = [_rows_of(frame, axis) for axis in needs.axes]
        came = self._came.setdefault(frame.step.number, {})
        return [_delivery(_Lacking(who, came.setdefault(who, {})), values, rows, ids) for who in to]

    def pack_missing_rows(self, deliveries: Sequence[Delivery]) -> None:
        """Have all lacking rows packed: each holder is called once, and packs once what several processes lack."""
        wanted: dict[Address, dict[Any, list[Wish]]] = {}
        for delivery in deliveries:
            for holder, wishes in delivery.missing_rows.items():
                wanted.setdefault(holder, {})[_mark(wishes)] = wishes
        packed: dict[tuple[Address, Any], Reference[Wire]] = {}
        for holder, parcels in wanted.items():
            packed.update(
                zip(
                    ((holder, mark) for mark in parcels),
                    self.processes.pack_rows(holder, [*parcels.values()]),
                    strict=True,
                )
            )
        for delivery in deliveries:
            delivery.packed_rows = [packed[holder, _mark(wishes)] for holder, wishes in delivery.missing_rows.items()]

    def forget_step(self, step: Step) -> None:
        """Forget what was sent for a step, which every process drops at its end."""
        self._came.pop(step.number, None)

    def forget_groups(self, groups: Collection[str]) -> None:
        """Forget what was sent to the processes of some groups, which new ones have replaced."""
        for came in self._came.values():
            for who in [who for who in came if who[0] in groups]:
                del came[who]


def live_pieces(values: Iterable[Any]) -> dict[Address, set[Key]]:
    """Return the pieces that values need, by the process that has them."""
    keys_of: dict[Address, set[Key]] = {}
    for value in values:
        inner: list[Any] = []
        if isinstance(value, Surplus):
            # Batches in flight may have to be started again.
            inner = [value.rows, *(batch.needed_inputs for batch in value.unfinished_batches)]
        elif isinstance(value, Frame):
            inner = [*value.values.values(), *(rows.ids for rows in value.rows.values())]
        for who, keys in live_pieces(inner).items() if inner else ():
            keys_of.setdefault(who, set()).update(keys)
        if isinstance(value, Surplus | Frame):
            continue
        if isinstance(value, RowRefs):
            for ref in value.pieces:
                keys_of.setdefault(ref.holder, set()).add(ref.key)
        elif isinstance(value, ValueRef):
            keys_of.setdefault(value.ref.holder, set()).add(value.ref.key)
    return keys_of


@dataclass(frozen=True)
class _Split:
    """Rows of a value by the pieces that they are in, which is the same for all receivers."""

    parts: list[tuple[PieceRef, np.ndarray, Places]]
    """Pieces, the places in them as an array, and the same in the form that is sent."""
    column: int | None
    order: np.ndarray | None
    """The same as in `WantedRows`."""


_Located = _Split | ValueRef | ControllerValue
"""What the controller knows of a value."""


def _split(value: Any) -> _Located:
    if isinstance(value, ValueRef):
        return value
    if not isinstance(value, RowRefs):
        return ControllerValue(to_sendable(value))
    parts = [(ref, places, as_range(places)) for ref, places in value.places_by_piece()]
    if value.pieces_are_contiguous:
        return _Split(parts, value.column, None)
    sorted_to = value.piece.argsort(kind="stable")
    order = np.empty_like(sorted_to)
    order[sorted_to] = np.arange(order.shape[0])
    return _Split(parts, value.column, order)


class _Lacking:
    """Finds out, value by value, what one process has to be sent."""

    def __init__(self, who: Address, came: dict[Key, np.ndarray]) -> None:
        self.who, self.came = who, came
        self.found: dict[Address, list[Wish]] = {}
        """The rows to send, by the process that has them; from then on they count as arrived."""

    def locate_value(self, value: _Located) -> Source:
        """Return how the process finds a value among what it has and what it will be sent."""
        if isinstance(value, ValueRef):
            if value.ref.holder != self.who and value.ref.key not in self.came:
                self.came[value.ref.key] = np.ones(0, dtype=bool)
                self.found.setdefault(value.ref.holder, []).append((value.ref.key, None, None))
            return WholePiece(value.ref.key)
        if isinstance(value, ControllerValue):
            return value
        return WantedRows(tuple(self.locate_piece_rows(*part, value.column) for part in value.parts), value.order)

    def locate_piece_rows(
        self, ref: PieceRef, places: np.ndarray, sent_places: Places, column: int | None
    ) -> PieceRows:
        table_came = self.came.get(ref.key)
        if ref.holder == self.who or column is not None and table_came is not None and bool(table_came[places].all()):
            return ref.key, sent_places, column
        key = ref.key if column is None else column_key(ref.key, column)
        came = self.came.get(key)
        if came is None or not came[places].all():
            lacking = np.zeros(ref.rows, dtype=bool)
            lacking[places] = True
            if came is not None:
                lacking &= ~came
            self.came[key] = lacking if came is None else came | lacking
            self.found.setdefault(ref.holder, []).append((ref.key, as_range(np.flatnonzero(lacking)), column))
        return key, sent_places, None


def _delivery(
    lacking: _Lacking, values: Mapping[str, _Located], rows: Sequence[AxisRows], ids: Mapping[str, _Located]
) -> Delivery:
    inputs = {name: lacking.locate_value(value) for name, value in values.items()}
    named: list[AxisRows] = []
    for axis_rows in rows:
        identities = ids.get(axis_rows.axis)
        source = None if identities is None else lacking.locate_value(identities)
        assert source is None or isinstance(source, WantedRows)
        named.append(axis_rows if source is None else replace(axis_rows, ids=source))
    return Delivery(inputs, tuple(named), lacking.found)


def _rows_of(frame: Frame, axis: Axis) -> AxisRows:
    """Return the rows of an axis without their identities."""
    rows = frame.rows[axis.key]
    counts = None
    if rows.parent is not None and axis.parent is not None:
        counts = np.bincount(rows.parent, minlength=frame.row_count(axis.parent.key))
    return AxisRows(axis.key, rows.size, counts, None)


def _mark(wishes: Sequence[Wish]) -> tuple[Any, ...]:
    """Return a key that is equal for equal wishes."""
    return tuple(
        (key, places.tobytes() if isinstance(places, np.ndarray) else places, column) for key, places, column in wishes
    )
