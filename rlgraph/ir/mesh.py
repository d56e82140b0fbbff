"""Meshes: how many devices work on one model, along which named axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

MeshAxis = Literal["dp", "pp", "tp", "ep", "cp"]
"""Copies that share the rows; stages of layers; splits of a layer; of the experts; of a row's tokens."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks 0 to size - 1, counted with the last axis fastest."""

    axes: tuple[tuple[str, int], ...] = ()
    """Name and size, outer ones first."""

    @property
    def size(self) -> int:
        return math.prod(size for _, size in self.axes)

    def length(self, axis: str) -> int:
        """The size of an axis; 1 where there is none of this name."""
        return dict(self.axes).get(axis, 1)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is on each axis."""
        found = {}
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return found

    def at(self, rank: int, axis: str) -> int:
        """Where a rank is on one axis; 0 on an axis that is not there."""
        return self.coordinates(rank).get(axis, 0)

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates, 0 on the axes that are left out."""
        found = 0
        for name, size in self.axes:
            found = found * size + coordinates.get(name, 0)
        return found

    def ranks(self, **coordinates: int) -> Iterator[int]:
        """The ranks with these coordinates, whatever the others are."""
        for rank in range(self.size):
            where = self.coordinates(rank)
            if all(where.get(name, 0) == at for name, at in coordinates.items()):
                yield rank

    def __str__(self) -> str:
        shown = " x ".join(f"{name}{size}" for name, size in self.axes if size > 1)
        return shown or "1 device"


def mesh(dp: int = 1, pp: int = 1, tp: int = 1) -> Mesh:
    """Copies outermost, tensor-parallel ranks next to each other: they talk most."""
    return Mesh((("dp", dp), ("pp", pp), ("tp", tp)))
