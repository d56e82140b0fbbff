"""Meshes: how many devices work on one model, along which named axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """A way to spread a model's work over devices."""

    name: str
    splits: Literal["rows", "layers", "rounds", "tensors", "experts", "tokens", "shards"]
    """What its ranks share out."""
    doc: str
    """What its size counts."""
    usual: bool = True
    """Every mesh has it, if only with one rank; of the others those that split."""
    spread: bool = True
    """There is a rank for each place along it; else each rank has all of these places."""


AXES = (
    MeshAxis("tp", "tensors", "devices over which each layer is split"),
    MeshAxis("ep", "experts", "devices over which experts are split", usual=False),
    MeshAxis("cp", "tokens", "devices over which each row's tokens are split", usual=False),
    MeshAxis("fsdp", "shards", "devices that share out each layer's parameters and the rows of a copy", usual=False),
    MeshAxis("chunks", "rounds", "parts of the layers that each stage has, far from each other", False, False),
    MeshAxis("pp", "layers", "stages in which the layers lie one after another"),
    MeshAxis("dp", "rows", "copies that share the rows"),
)
"""Inner ones first: ranks of the first are neighbours, since they talk most, and copies lie one behind the other.
Schedules, plan files, the search and what is printed have the axes from here; along which of them an engine can split,
its spec says."""

LISTED = tuple(sorted(AXES, key=lambda axis: not axis.usual))
"""As schedules list them: the usual ones first."""

_WITHIN = frozenset(axis.name for axis in AXES if not axis.spread)
"""Those that lie within each rank."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks 0 to size - 1, counted with the last axis fastest."""

    axes: tuple[tuple[str, int], ...] = ()
    """Name and size, outer ones first."""

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return math.prod(size for name, size in self.axes if name not in _WITHIN)

    @property
    def spread(self) -> tuple[tuple[str, int], ...]:
        """The axes along which there are ranks."""
        return tuple(axis for axis in self.axes if axis[0] not in _WITHIN)

    def length(self, axis: str) -> int:
        """The size of an axis; 1 where there is none of this name."""
        for name, size in self.axes:
            if name == axis:
                return size
        return 1

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is on each axis."""
        found = {}
        for name, size in reversed(self.spread):
            rank, found[name] = divmod(rank, size)
        return found

    def at(self, rank: int, axis: str) -> int:
        """Where a rank is on one axis; 0 on an axis that is not there."""
        return self.coordinates(rank).get(axis, 0)

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates, 0 on the axes that are left out."""
        found = 0
        for name, size in self.spread:
            found = found * size + coordinates.get(name, 0)
        return found

    def turned(self, rank: int, axis: str) -> int:
        """The rank that is as far from the end of an axis as this one is from its beginning."""
        place = self.coordinates(rank)
        return self.rank(**place | {axis: self.length(axis) - 1 - place[axis]} if axis in place else place)

    def ranks(self, **coordinates: int) -> Iterator[int]:
        """The ranks with these coordinates, whatever the others are, in order."""
        known = dict(self.spread)
        if any(at for name, at in coordinates.items() if name not in known):
            return
        found = [0]
        for name, size in known.items():
            at = coordinates.get(name)
            there = range(size) if at is None else range(at, at + 1)
            found = [rank * size + index for rank in found for index in there]
        yield from found

    @property
    def splits(self) -> tuple[str, ...]:
        """The axes along which there are several ranks."""
        return tuple(name for name, size in self.axes if size > 1 and name not in _WITHIN)

    @property
    def copy_size(self) -> int:
        """The ranks of one data-parallel copy."""
        return self.size // self.length("dp")

    def copied(self, copies: int) -> Mesh:
        """So many data-parallel copies of the same split."""
        return mesh(**{**dict(self.axes), "dp": copies})

    def __str__(self) -> str:
        shown = " x ".join(f"{name}{size}" for name, size in self.axes if size > 1)
        return shown or "1 device"


def mesh(dp: int = 1, pp: int = 1, tp: int = 1, **others: int) -> Mesh:
    """A mesh of these sizes, its axes in the order of `AXES`."""
    sizes = {"dp": dp, "pp": pp, "tp": tp, **others}
    order = ((axis, sizes.get(axis.name, 1)) for axis in reversed(AXES))
    return Mesh(tuple((axis.name, size) for axis, size in order if axis.usual or size > 1))


AXIS_NAMES = tuple(dict.fromkeys([*dict(mesh().axes), *(axis.name for axis in AXES)]))
"""Of all axes: those that every mesh has, outer ones first, and the others."""
