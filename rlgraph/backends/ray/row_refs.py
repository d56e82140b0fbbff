"""References to rows that other processes hold: all that the controller ever sees of a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rlgraph.backends.distributed.transport import RemoteRows
from rlgraph.backends.rows import RemoteEntries

Address = tuple[str, int]
"""A process: its group's name and its rank there."""

Key = tuple[int, int, str]
"""A piece: the number of the request that made it, the rank that did, and the value's name."""


def recorded_process_name(who: Address) -> str:
    """Return the name of a process in a recording."""
    return f"{who[0]}-{who[1]}"


@dataclass(frozen=True)
class PieceRef:
    """A reference to a piece: rows that one process made at one time."""

    key: Key
    holder: Address
    rows: int
    tokens: np.ndarray | None = field(default=None, compare=False, repr=False)
    """The tokens of each row of a table, int32; None where rows have none."""


@dataclass(frozen=True)
class RowRefs(RemoteRows):
    """A value, row by row: the piece that each row is in, and its place there. What lies inside a row travels with
    it."""

    pieces: tuple[PieceRef, ...]
    piece: np.ndarray
    """int32 [rows]"""
    place: np.ndarray
    """int64 [rows]"""
    column: int | None = None
    """If the pieces are tables, the node that reads a column of them: only that column is meant, and it is computed by
    the reader, or where the rows are."""

    @classmethod
    def from_whole_piece(cls, ref: PieceRef) -> RowRefs:
        """Return a reference to all rows of one piece."""
        return cls((ref,), np.zeros(ref.rows, dtype=np.int32), np.arange(ref.rows))

    def pick(self, places: np.ndarray) -> RowRefs:
        return replace(self, piece=self.piece[places], place=self.place[places])

    def select_column(self, column: int) -> RowRefs:
        return replace(self, column=column)

    def concat(self, others: Sequence[RemoteEntries]) -> RowRefs:
        # A value grows block by block: pieces that already have a number are not numbered again.
        pieces = dict(self.piece_numbers)
        numbers, places = [self.piece], [self.place]
        for part in others:
            assert isinstance(part, RowRefs)
            renumbered = np.array([pieces.setdefault(ref, len(pieces)) for ref in part.pieces], dtype=np.int32)
            numbers.append(renumbered[part.piece] if len(part.pieces) else part.piece)
            places.append(part.place)
        joined = RowRefs(tuple(pieces), np.concatenate(numbers), np.concatenate(places), self.column)
        joined.__dict__["piece_numbers"] = pieces
        return joined

    @cached_property
    def token_counts(self) -> np.ndarray | None:
        counts = np.zeros(self.place.shape[0], dtype=np.int64)
        for number, ref in enumerate(self.pieces):
            if ref.tokens is None:
                return None
            here = self.piece == number
            counts[here] = ref.tokens[self.place[here]]
        return counts

    @cached_property
    def piece_numbers(self) -> dict[PieceRef, int]:
        """The number of each piece."""
        return {ref: number for number, ref in enumerate(self.pieces)}

    def places_by_piece(self) -> list[tuple[PieceRef, np.ndarray]]:
        """Return the places that are used of each piece, in the order of the rows; without rows, no places of the first
        piece."""
        if len(self.pieces) == 1 or not self.place.shape[0]:
            return [(ref, self.place) for ref in self.pieces[:1]]
        piece, place = self.piece, self.place
        if not self.pieces_are_contiguous:
            order = piece.argsort(kind="stable")
            piece, place = piece[order], place[order]
        starts = np.flatnonzero(np.diff(piece, prepend=-1))
        return [
            (self.pieces[piece[start]], places)
            for start, places in zip(starts, np.split(place, starts[1:]), strict=True)
        ]

    @cached_property
    def pieces_are_contiguous(self) -> bool:
        """Whether the rows of each piece are contiguous, in the order of the pieces."""
        return bool((np.diff(self.piece) >= 0).all())


def column_key(key: Key, column: int) -> Key:
    """Return the key of a column of a piece that is sent without the rest."""
    number, rank, name = key
    return number, rank, f"{name}/{column}"


@dataclass(frozen=True)
class ValueRef:
    """A reference to a value without rows, in one process: a number, a cursor, a state, a buffer."""

    ref: PieceRef
