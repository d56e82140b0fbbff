"""The rows that one process has: those that it made, and those that other processes sent."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.ragged import ragged_positions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.ray.row_refs import Key
from rlgraph.backends.rows import TableData, concat_entries, pick_entries
from rlgraph.ir.types import Axis, Table, Type, axes_in_rows, axis_of

Places = range | np.ndarray
"""Places of rows in a piece, int64; consecutive ones as a range, which is smaller on the wire."""

Wish = tuple[Key, Places | None, int | None]
"""What a process lacks: rows of a piece, or of a column of it; without places, a value without rows."""


Wire = list[tuple[Key, Places, tuple[Any, ...]]]
"""Rows of pieces in transit: for each piece its key, the places, and the content."""


def as_range(places: np.ndarray) -> Places:
    """Return consecutive places as a range."""
    if places.shape[0] and places[-1] - places[0] + 1 == places.shape[0] and (np.diff(places) == 1).all():
        return range(int(places[0]), int(places[-1]) + 1)
    return places


def as_array(places: Places) -> np.ndarray:
    """Return places as an array."""
    return np.arange(places.start, places.stop) if isinstance(places, range) else places


def _places_within(counts: np.ndarray, rows: np.ndarray | slice) -> np.ndarray | slice:
    """Return the places of what lies in some rows. counts: int64 [N]: how many lie in each of all rows."""
    if isinstance(rows, slice):
        start = int(counts[: rows.start].sum())
        return slice(start, start + int(counts[rows].sum()))
    starts = counts.cumsum() - counts
    return ragged_positions(starts[rows], counts[rows])


@dataclass(frozen=True)
class Piece:
    """Rows of one value, flat and without padding, with the number of entries in each row."""

    kind: Type
    value: Any
    counts: tuple[np.ndarray | None, ...] = ()
    """For each of the value's `axes_in_rows`, how many entries lie in each entry of the axis around it; None for the
    axis of the rows."""

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        outermost = next((counts for counts in self.counts if counts is not None), None)
        if outermost is not None:
            return int(outermost.shape[0])
        return len(self.value.data) if isinstance(self.value, TableData) else len(self.value)

    @property
    def token_counts(self) -> np.ndarray | None:
        """The tokens of each row of a table, int32; None where rows have none."""
        return self.value.token_counts if isinstance(self.value, TableData) else None

    def take_rows(self, rows: np.ndarray) -> Piece:
        """Return some rows, in the order of `rows`; of consecutive ones nothing is copied."""
        span = as_range(rows)
        taken = slice(span.start, span.stop) if isinstance(span, range) else rows
        chosen: dict[str, np.ndarray | slice] = {}
        counts_taken: list[np.ndarray | None] = []
        for axis, counts in zip(axes_in_rows(self.kind), self.counts, strict=True):
            if counts is None:
                chosen[axis.key] = taken
                counts_taken.append(None)
                continue
            assert axis.parent
            above = chosen.get(axis.parent.key, taken)
            chosen[axis.key] = _places_within(counts, above)
            counts_taken.append(counts[above])
        if isinstance(self.kind, Table):
            return Piece(self.kind, self.value.take(self.kind, chosen), tuple(counts_taken))
        inner = axis_of(self.kind)
        assert inner is not None
        return Piece(self.kind, pick_entries(self.value, chosen[inner.key]), tuple(counts_taken))

    @staticmethod
    def concatenate(parts: Sequence[Piece]) -> Piece:
        """Return the rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        counts = tuple(
            None
            if any(part_counts is None for part_counts in column)
            else np.concatenate([part_counts for part_counts in column if part_counts is not None])
            for column in zip(*(part.counts for part in parts), strict=True)
        )
        return Piece(parts[0].kind, concat_entries([part.value for part in parts]), counts)


def inner_axis_counts(kind: Type, counts: Sequence[np.ndarray | None]) -> Iterable[tuple[Axis, np.ndarray]]:
    """Return the axes inside the rows of a value, outer ones first, with the number of entries in each entry of the
    axis around it."""
    return (
        (axis, axis_counts)
        for axis, axis_counts in zip(axes_in_rows(kind), counts, strict=True)
        if axis_counts is not None
    )


class PieceStore:
    """Pieces by their keys. Another thread may read while the process works."""

    def __init__(self) -> None:
        self._made: dict[Key, tuple[int, Piece]] = {}
        """The number of the step that made each piece, 0 before the first step, and the piece."""
        self._came: dict[int, dict[Key, tuple[np.ndarray, Piece]]] = {}
        """For each step in flight, rows of other processes' pieces: their places and values, in the order of
        arrival."""
        self._lock = threading.Lock()

    def put(self, step: int, key: Key, piece: Piece) -> None:
        with self._lock:
            self._made[key] = step, piece

    def store_received(self, step: int, key: Key, places: np.ndarray, piece: Piece) -> None:
        """Store rows of another process's piece, for a step."""
        with self._lock:
            came = self._came.setdefault(step, {})
            if key in came:
                places_before, rows_before = came[key]
                came[key] = np.concatenate([places_before, places]), Piece.concatenate([rows_before, piece])
            else:
                came[key] = places, piece

    def get(self, key: Key, step: int | None = None) -> Piece:
        """Return a piece that was made here, or a value without rows that was sent for a step."""
        with self._lock:
            return self._made[key][1] if step is None or key in self._made else self._came[step][key][1]

    def get_rows(self, key: Key, places: np.ndarray, step: int | None = None) -> Piece:
        """Return rows of a piece that was made here, or that were sent for a step; all of them are here."""
        with self._lock:
            made = self._made[key][1] if key in self._made else None
            came = None if step is None else self._came.get(step, {}).get(key)
        if made is not None:
            return _rows_or_all(made, places)
        assert came is not None, f"{key} is not here"
        places_here, piece = came
        order = np.argsort(places_here, kind="stable")
        return _rows_or_all(piece, order[np.searchsorted(places_here, places, sorter=order)])

    def keep_only(self, step: int, keys: Iterable[Key]) -> None:
        """Forget what a finished step and those before it made, except these pieces, and all that was sent for them."""
        retained = set(keys)
        with self._lock:
            self._made = {key: made for key, made in self._made.items() if made[0] > step or key in retained}
            self._came = {number: came for number, came in self._came.items() if number > step}


def _rows_or_all(piece: Piece, rows: np.ndarray) -> Piece:
    """Return some rows of a piece; all of them in their order are the piece itself, of which nothing is copied."""
    is_all = rows.shape[0] == piece.row_count and bool((rows == np.arange(rows.shape[0])).all())
    return piece if is_all else piece.take_rows(rows)


# On the wire: tensors as numpy arrays, which Ray sends and maps without copying


def to_wire(piece: Piece) -> tuple[Any, ...]:
    """Return a piece in the form that is sent."""
    return piece.kind, to_sendable(piece.value), piece.counts


def from_wire(wire: tuple[Any, ...]) -> Piece:
    """Return a piece that was sent."""
    kind, value, counts = wire
    return Piece(kind, from_sendable(value), counts)


def wire_bytes(wire: Any) -> int:
    """Return the bytes of a piece's arrays on the wire; texts count as their characters."""
    if isinstance(wire, np.ndarray):
        return int(wire.nbytes)
    if isinstance(wire, _Array):
        return int(wire.values.nbytes)
    if isinstance(wire, _Kept):
        return wire_bytes((wire.counts, wire.ids, wire.logs))
    if isinstance(wire, _Table):
        return sum(map(wire_bytes, (wire.data, wire.prompts, wire.sequences or (), tuple(wire.columns.values()))))
    if isinstance(wire, (tuple, list)):
        return sum(map(wire_bytes, wire))
    if isinstance(wire, Mapping):
        return sum(map(wire_bytes, wire.values()))
    return len(wire) if isinstance(wire, str) else 0


@dataclass(frozen=True)
class _Table:
    """The content of a table, with its tensors as arrays."""

    data: tuple[Any, ...]
    prompts: tuple[Any, ...]
    sequences: tuple[np.ndarray, ...] | None
    columns: dict[str, Any]
    owner: str


@dataclass(frozen=True)
class _Kept:
    """`KeptTokens`, with their tensors as arrays."""

    counts: np.ndarray
    ids: np.ndarray
    logs: np.ndarray


@dataclass(frozen=True)
class _Array:
    """A tensor, to tell it from a value that is an array."""

    values: np.ndarray


def to_sendable(value: Any) -> Any:
    """Return a value in the form that is sent."""
    if isinstance(value, Tensor):
        return _Array(value.detach().cpu().numpy())
    if isinstance(value, KeptTokens):
        # No vocabulary has more than 32 bits.
        return _Kept(value.counts.numpy().astype(np.int32), value.ids.numpy(), value.logs.detach().numpy())
    if isinstance(value, TableData):
        sequences = value.sequences
        tokens: tuple[np.ndarray, ...] | None = None
        if sequences is not None:
            # Token ids fit in 32 bits.
            tokens = (sequences.tokens.numpy().astype(np.int32), sequences.lengths.numpy(), sequences.scored.numpy())
            if sequences.routes is not None:
                tokens = (*tokens, sequences.routes.numpy())
        columns = {name: to_sendable(column) for name, column in value.columns.items()}
        return _Table(value.data, value.prompts, tokens, columns, value.owner)
    return value


def from_sendable(value: Any) -> Any:
    """Return a sent value in its original form."""
    if isinstance(value, _Array):
        return _tensor(value.values)
    if isinstance(value, _Kept):
        return KeptTokens(torch.from_numpy(value.counts.astype(np.int64)), _tensor(value.ids), _tensor(value.logs))
    if isinstance(value, _Table):
        sequences = None
        if value.sequences is not None:
            tokens, lengths, scored, *routes = value.sequences
            sequences = Sequences(
                torch.from_numpy(tokens.astype(np.int64)), _tensor(lengths), _tensor(scored), *map(_tensor, routes)
            )
        columns = {name: from_sendable(column) for name, column in value.columns.items()}
        return TableData(value.data, value.prompts, sequences, columns, value.owner)
    return value


def _tensor(array: np.ndarray) -> Tensor:
    # Ray's arrays are read-only views of shared memory, and torch has no read-only tensors.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
