"""References to rows that other processes have: all that the controller ever sees of a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rlgraph.backends.rows import Elsewhere

Address = tuple[str, int]
"""A process: its group and its rank there."""

Key = tuple[int, int, str]
"""A piece: the number of the work that made it, the rank that did, and the value's name."""


@dataclass(frozen=True)
class PieceRef:
    """A piece: rows that one process made at one time."""

    key: Key
    holder: Address
    rows: int


@dataclass(frozen=True)
class Remote(Elsewhere):
    """A value, row by row: in which piece each row is, and where in it. What lies inside a row travels with it."""

    pieces: tuple[PieceRef, ...]
    piece: np.ndarray
    """int32 [rows]"""
    place: np.ndarray
    """int64 [rows]"""

    @classmethod
    def of(cls, ref: PieceRef) -> Remote:
        """All rows of one piece."""
        return cls((ref,), np.zeros(ref.rows, dtype=np.int32), np.arange(ref.rows))

    def pick(self, places: Tensor) -> Remote:
        index = places.numpy()
        return Remote(self.pieces, self.piece[index], self.place[index])

    def join(self, others: Sequence[Elsewhere]) -> Remote:
        pieces: dict[PieceRef, int] = {}
        numbers, found = [], [self, *(other for other in others if isinstance(other, Remote))]
        for part in found:
            renumbered = np.array([pieces.setdefault(ref, len(pieces)) for ref in part.pieces], dtype=np.int32)
            numbers.append(renumbered[part.piece] if len(part.pieces) else part.piece)
        return Remote(tuple(pieces), np.concatenate(numbers), np.concatenate([part.place for part in found]))

    def by_piece(self) -> list[tuple[PieceRef, np.ndarray]]:
        """The places that are used of each piece, in the order of the rows."""
        return [(ref, self.place[self.piece == number]) for number, ref in enumerate(self.pieces)
                if len(self.pieces) == 1 or (self.piece == number).any()]  # fmt: skip


@dataclass(frozen=True)
class Single:
    """A value without rows, in one process: a number, a cursor, a state, a buffer."""

    ref: PieceRef
