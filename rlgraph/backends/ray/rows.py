"""Who has which rows: what has to travel before a process can work, so that each row reaches it once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlgraph.backends.distributed.sharding import Needs
from rlgraph.backends.frame import Frame, Surplus
from rlgraph.backends.ray.orders import Given, PieceRows, RowsOf, Wanted, Whole
from rlgraph.backends.ray.processes import Processes, Reference
from rlgraph.backends.ray.remote import Address, Key, PieceRef, Remote, Single, column_key
from rlgraph.backends.ray.store import Places, Wire, Wish, flat, short
from rlgraph.backends.step import Step
from rlgraph.ir.types import Axis

Source = Wanted | Whole | Given


@dataclass
class Delivery:
    """What one process is told, and references to the rows that it lacks."""

    inputs: dict[str, Source]
    rows: tuple[RowsOf, ...]
    lacking: dict[Address, list[Wish]] = field(default_factory=dict)
    """What it does not have, by who has it."""
    arriving: list[Any] = field(default_factory=list)
    """A reference for each of them."""

    def senders(self) -> list[tuple[Address, int]]:
        """For each of them who sends, and the last piece of work that made any of it."""
        return [(holder, max(key[0] for key, _, _ in wishes)) for holder, wishes in self.lacking.items()]


class Ledger:
    """Keeps the books of every step that is under way. Orders to a group go out in the order in which their rows were
    booked: who books for a group has its pool meanwhile."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._came: dict[int, dict[Address, dict[Key, np.ndarray]]] = {}
        """For each step, process and piece of somebody else which rows have come, bool [rows]."""

    def deliver(self, to: Sequence[Address], frame: Frame, needs: Needs) -> list[Delivery]:
        """For each process the values of a frame, as far as it lacks them. All of them need the same. A process also
        stands for others that always get what it gets, and make nothing that anybody reads."""
        # Columns come after the tables: of rows that are there, or on their way, nothing needs to travel again.
        names = sorted(
            needs.names,
            key=lambda name: isinstance(frame.values[name], Remote) and frame.values[name].column is not None,
        )
        values = {name: _split(frame.values[name]) for name in names}
        known = {axis.key: frame.rows[axis.key].ids for axis in needs.axes if needs.ids}
        ids = {axis: _split(found) for axis, found in known.items() if found is not None}
        rows = [_rows_of(frame, axis) for axis in needs.axes]
        came = self._came.setdefault(frame.step.number, {})
        return [_delivery(_Lacking(who, came.setdefault(who, {})), values, rows, ids) for who in to]

    def send(self, deliveries: Sequence[Delivery]) -> None:
        """Has all that is lacking packed: each holder is called once, and packs once what several lack."""
        wanted: dict[Address, dict[Any, list[Wish]]] = {}
        for delivery in deliveries:
            for holder, wishes in delivery.lacking.items():
                wanted.setdefault(holder, {})[_mark(wishes)] = wishes
        packed: dict[tuple[Address, Any], Reference[Wire]] = {}
        for holder, parcels in wanted.items():
            packed.update(
                zip(((holder, mark) for mark in parcels), self.processes.pack(holder, [*parcels.values()]), strict=True)
            )
        for delivery in deliveries:
            delivery.arriving = [packed[holder, _mark(wishes)] for holder, wishes in delivery.lacking.items()]

    def finish(self, step: Step) -> None:
        """What came from others for a step is dropped by everybody at its end."""
        self._came.pop(step.number, None)

    def forget(self, groups: Collection[str]) -> None:
        """Others are in the places of the processes of some groups: nothing has come to these."""
        for came in self._came.values():
            for who in [who for who in came if who[0] in groups]:
                del came[who]


def live(values: Iterable[Any]) -> dict[Address, set[Key]]:
    """The pieces that values need, by who has them."""
    found: dict[Address, set[Key]] = {}
    for value in values:
        inner: list[Any] = []
        if isinstance(value, Surplus):
            # What goes on may have to begin again.
            inner = [value.rows, *(batch.needed for batch in value.going)]
        elif isinstance(value, Frame):
            inner = [*value.values.values(), *(rows.ids for rows in value.rows.values())]
        for who, keys in live(inner).items() if inner else ():
            found.setdefault(who, set()).update(keys)
        if isinstance(value, Surplus | Frame):
            continue
        if isinstance(value, Remote):
            for ref in value.pieces:
                found.setdefault(ref.holder, set()).add(ref.key)
        elif isinstance(value, Single):
            found.setdefault(value.ref.holder, set()).add(value.ref.key)
    return found


@dataclass(frozen=True)
class _Split:
    """Rows of a value by the pieces that they are in: the same for all who get them."""

    parts: list[tuple[PieceRef, np.ndarray, Places]]
    """The places of a piece, and the same as they are told."""
    column: int | None
    order: np.ndarray | None
    """As in `Wanted`."""


_Known = _Split | Single | Given
"""What the controller has of a value."""


def _split(value: Any) -> _Known:
    if isinstance(value, Single):
        return value
    if not isinstance(value, Remote):
        return Given(flat(value))
    parts = [(ref, places, short(places)) for ref, places in value.by_piece()]
    if value.in_turn:
        return _Split(parts, value.column, None)
    sorted_to = value.piece.argsort(kind="stable")
    order = np.empty_like(sorted_to)
    order[sorted_to] = np.arange(order.shape[0])
    return _Split(parts, value.column, order)


class _Lacking:
    """What one process needs to be sent, found out value by value."""

    def __init__(self, who: Address, came: dict[Key, np.ndarray]) -> None:
        self.who, self.came = who, came
        self.found: dict[Address, list[Wish]] = {}
        """By who has it; from here on it counts as there."""

    def source(self, value: _Known) -> Source:
        """How the process finds a value among what it has and what it will be sent."""
        if isinstance(value, Single):
            if value.ref.holder != self.who and value.ref.key not in self.came:
                self.came[value.ref.key] = np.ones(0, dtype=bool)
                self.found.setdefault(value.ref.holder, []).append((value.ref.key, None, None))
            return Whole(value.ref.key)
        if isinstance(value, Given):
            return value
        return Wanted(tuple(self.part(*part, value.column) for part in value.parts), value.order)

    def part(self, ref: PieceRef, places: np.ndarray, told: Places, column: int | None) -> PieceRows:
        here = self.came.get(ref.key)
        if ref.holder == self.who or column is not None and here is not None and bool(here[places].all()):
            return ref.key, told, column
        key = ref.key if column is None else column_key(ref.key, column)
        came = self.came.get(key)
        if came is None or not came[places].all():
            lacking = np.zeros(ref.rows, dtype=bool)
            lacking[places] = True
            if came is not None:
                lacking &= ~came
            self.came[key] = lacking if came is None else came | lacking
            self.found.setdefault(ref.holder, []).append((ref.key, short(np.flatnonzero(lacking)), column))
        return key, told, None


def _delivery(
    lacking: _Lacking, values: Mapping[str, _Known], rows: Sequence[RowsOf], ids: Mapping[str, _Known]
) -> Delivery:
    inputs = {name: lacking.source(value) for name, value in values.items()}
    named: list[RowsOf] = []
    for told in rows:
        known = ids.get(told.axis)
        source = None if known is None else lacking.source(known)
        assert source is None or isinstance(source, Wanted)
        named.append(told if source is None else replace(told, ids=source))
    return Delivery(inputs, tuple(named), lacking.found)


def _rows_of(frame: Frame, axis: Axis) -> RowsOf:
    """Who they are is not told."""
    rows = frame.rows[axis.key]
    counts = None
    if rows.parent is not None and axis.parent is not None:
        counts = np.bincount(rows.parent, minlength=frame.size(axis.parent.key))
    return RowsOf(axis.key, rows.size, counts, None)


def _mark(wishes: Sequence[Wish]) -> tuple[Any, ...]:
    """The same for the same wishes."""
    return tuple(
        (key, places.tobytes() if isinstance(places, np.ndarray) else places, column) for key, places, column in wishes
    )
