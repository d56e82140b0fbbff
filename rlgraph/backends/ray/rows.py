"""Who has which rows: what has to travel before a process can work, so that each row reaches it once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlgraph.backends.frame import Frame
from rlgraph.backends.ray.orders import Given, RowsOf, Wanted, Whole
from rlgraph.backends.ray.processes import Processes
from rlgraph.backends.ray.remote import Address, Key, PieceRef, Remote, Single
from rlgraph.backends.ray.store import Places, short
from rlgraph.ir.types import Axis, axes_of

Source = Wanted | Whole | Given


@dataclass
class Delivery:
    """What one process is told, and references to the rows that it lacks."""

    inputs: dict[str, Source]
    rows: tuple[RowsOf, ...]
    arriving: list[Any] = field(default_factory=list)
    senders: list[tuple[Address, int]] = field(default_factory=list)
    """For each of them who sends, and the last piece of work that made any of it."""


class Ledger:
    """Keeps the books of one step."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._came: dict[Address, dict[Key, np.ndarray]] = {}
        """For each process and piece of somebody else which rows have come, bool [rows]."""
        self._lock = threading.Lock()

    def deliver(
        self, to: Sequence[Address], frame: Frame, names: Iterable[str], axes: Sequence[Axis], with_ids: bool
    ) -> list[Delivery]:
        """For each process the values of a frame, as far as it lacks them. All of them need the same."""
        values: dict[str, Any] = {name: frame.values[name] for name in names}
        ids = {axis.key: frame.rows[axis.key].ids for axis in axes if with_ids and frame.rows[axis.key].ids is not None}
        every: list[Any] = [*values.values(), *ids.values()]
        told = {id(value): _source(value) for value in every}
        rows = tuple(_rows_of(frame, axis, told[id(ids[axis.key])] if axis.key in ids else None) for axis in axes)
        inputs = {name: told[id(value)] for name, value in values.items()}
        found = []
        packed: dict[tuple[Any, ...], Any] = {}
        with self._lock:
            for who in to:
                delivery = Delivery(inputs, rows)
                for holder, missing in self._missing(who, every).items():
                    mark = (holder, *((key, _mark(places)) for key, places in missing))
                    if mark not in packed:
                        packed[mark] = self.processes.call(holder, "pack", missing)
                    delivery.arriving.append(packed[mark])
                    delivery.senders.append((holder, max(key[0] for key, _ in missing)))
                found.append(delivery)
        return found

    def _missing(self, who: Address, values: Iterable[Any]) -> dict[Address, list[tuple[Key, Places | None]]]:
        """What a process lacks, by who has it; from here on it counts as there."""
        have = self._came.setdefault(who, {})
        found: dict[Address, list[tuple[Key, Places | None]]] = {}
        for value in values:
            for ref, places in _used(value):
                if ref.holder == who:
                    continue
                if places is None:
                    if ref.key not in have:
                        have[ref.key] = np.ones(0, dtype=bool)
                        found.setdefault(ref.holder, []).append((ref.key, None))
                    continue
                fresh = ref.key not in have
                came = have.setdefault(ref.key, np.zeros(ref.rows, dtype=bool))
                lacking = np.unique(places[~came[places]])
                if lacking.shape[0] or fresh:
                    came[lacking] = True
                    found.setdefault(ref.holder, []).append((ref.key, short(lacking)))
        return found

    def forget(self) -> None:
        """What came from others is dropped by everybody at the end of a step."""
        self._came = {}


def live(values: Iterable[Any]) -> dict[Address, set[Key]]:
    """The pieces that values need, by who has them."""
    found: dict[Address, set[Key]] = {}
    for value in values:
        if isinstance(value, Frame):
            inner = [*value.values.values(), *(rows.ids for rows in value.rows.values())]
            for who, keys in live(inner).items():
                found.setdefault(who, set()).update(keys)
        elif isinstance(value, Remote):
            for ref in value.pieces:
                found.setdefault(ref.holder, set()).add(ref.key)
        elif isinstance(value, Single):
            found.setdefault(value.ref.holder, set()).add(value.ref.key)
    return found


def _used(value: Any) -> list[tuple[PieceRef, np.ndarray | None]]:
    if isinstance(value, Single):
        return [(value.ref, None)]
    if not isinstance(value, Remote):
        return []
    return list(value.by_piece())


def _source(value: Any) -> Source:
    if isinstance(value, Single):
        return Whole(value.ref.key)
    if not isinstance(value, Remote):
        return Given(value)
    parts = tuple((ref.key, short(places)) for ref, places in value.by_piece())
    if len(parts) == 1 or bool((np.diff(value.piece) >= 0).all()):
        return Wanted(parts)
    sorted_to = value.piece.argsort(kind="stable")
    order = np.empty_like(sorted_to)
    order[sorted_to] = np.arange(order.shape[0])
    return Wanted(parts, order)


def _rows_of(frame: Frame, axis: Axis, ids: Source | None) -> RowsOf:
    rows = frame.rows[axis.key]
    counts = None
    if rows.parent is not None and axis.parent is not None:
        counts = np.bincount(rows.parent.numpy(), minlength=frame.size(axis.parent.key))
    assert ids is None or isinstance(ids, Wanted)
    return RowsOf(axis.key, rows.size, counts, ids)


def _mark(places: Places | None) -> Any:
    return places.tobytes() if isinstance(places, np.ndarray) else places


def row_axes(frame: Frame, names: Iterable[str], more: Mapping[str, Axis]) -> list[Axis]:
    """The axes of rows that some values need to be understood, outer ones first; `more` are needed in any case."""
    found: dict[str, Axis] = {}
    for own in [*(axis for name in names for axis in axes_of(frame.types[name])), *more.values()]:
        for axis in own.path():
            if not axis.inner:
                found[axis.key] = axis
    return sorted(found.values(), key=lambda axis: axis.depth)
