"""Meshes: the arrangement of a group's ranks along named axes, along which they split a model's work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """A kind of parallelism, along which ranks split a model's work."""

    name: str
    splits: Literal["rows", "layers", "rounds", "tensors", "experts", "tokens", "shards"]
    """What its ranks split."""
    doc: str
    """A description of what its size counts."""
    usual: bool = True
    """Whether every mesh has it, if only with one rank; others are in a mesh only if they split."""
    spread: bool = True
    """Whether each position along it is a rank of its own; otherwise each rank has all positions."""


AXES = (
    MeshAxis("tp", "tensors", "devices over which each layer is split"),
    MeshAxis("ep", "experts", "devices over which experts are split", usual=False),
    MeshAxis("cp", "tokens", "devices over which each row's tokens are split", usual=False),
    MeshAxis("fsdp", "shards", "devices that share out each layer's parameters and the rows of a copy", usual=False),
    MeshAxis("chunks", "rounds", "parts of the layers that each stage has, far from each other", False, False),
    MeshAxis("pp", "layers", "stages in which the layers lie one after another"),
    MeshAxis("dp", "rows", "copies that share the rows"),
)
"""All axes, innermost first: ranks of the first are neighbours, since they communicate most, and replicas follow each
other. Schedules, plan files, the search and printed texts use this list; an engine's spec says which axes it
supports."""

LISTED = tuple(sorted(AXES, key=lambda axis: not axis.usual))
"""The axes in the order of schedules: the usual ones first."""

_WITHIN = frozenset(axis.name for axis in AXES if not axis.spread)
"""The axes along which there are no ranks."""


@dataclass(frozen=True)
class Mesh:
    """A mesh of ranks 0 to size - 1 along named axes; the last axis varies fastest."""

    axes: tuple[tuple[str, int], ...] = ()
    """The name and size of each axis, outermost first."""

    @cached_property
    def rank_count(self) -> int:
        """The number of ranks."""
        return math.prod(size for name, size in self.axes if name not in _WITHIN)

    @property
    def rank_axes(self) -> tuple[tuple[str, int], ...]:
        """The axes along which there are ranks."""
        return tuple(axis for axis in self.axes if axis[0] not in _WITHIN)

    def axis_size(self, axis: str) -> int:
        """Return the size of an axis; 1 if the mesh does not have it."""
        for name, size in self.axes:
            if name == axis:
                return size
        return 1

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the position of a rank on each axis."""
        positions = {}
        for name, size in reversed(self.rank_axes):
            rank, positions[name] = divmod(rank, size)
        return positions

    def axis_position(self, rank: int, axis: str) -> int:
        """Return the position of a rank on one axis; 0 if the mesh does not have it."""
        return self.coordinates(rank).get(axis, 0)

    def rank_at(self, **coordinates: int) -> int:
        """Return the rank at these coordinates, which are 0 for axes that are left out."""
        rank = 0
        for name, size in self.rank_axes:
            rank = rank * size + coordinates.get(name, 0)
        return rank

    def mirrored_rank(self, rank: int, axis: str) -> int:
        """Return the rank at the mirrored position along an axis."""
        place = self.coordinates(rank)
        return self.rank_at(**place | {axis: self.axis_size(axis) - 1 - place[axis]} if axis in place else place)

    def ranks_at(self, **coordinates: int) -> Iterator[int]:
        """Return all ranks with these coordinates in order, whatever their positions on other axes."""
        sizes = dict(self.rank_axes)
        if any(at for name, at in coordinates.items() if name not in sizes):
            return
        ranks = [0]
        for name, size in sizes.items():
            at = coordinates.get(name)
            positions = range(size) if at is None else range(at, at + 1)
            ranks = [rank * size + index for rank in ranks for index in positions]
        yield from ranks

    @property
    def split_axes(self) -> tuple[str, ...]:
        """The axes along which there is more than one rank."""
        return tuple(name for name, size in self.axes if size > 1 and name not in _WITHIN)

    @cached_property
    def replica_size(self) -> int:
        """The number of ranks of one data-parallel replica."""
        return self.rank_count // self.axis_size("dp")

    def with_replicas(self, copies: int) -> Mesh:
        """Return a mesh with the same split and so many data-parallel replicas."""
        return make_mesh(**{**dict(self.axes), "dp": copies})

    def __str__(self) -> str:
        shown = " x ".join(f"{name}{size}" for name, size in self.axes if size > 1)
        return shown or "1 device"


def make_mesh(dp: int = 1, pp: int = 1, tp: int = 1, **others: int) -> Mesh:
    """Return a mesh of these sizes, with its axes in the order of `AXES`."""
    sizes = {"dp": dp, "pp": pp, "tp": tp, **others}
    order = ((axis, sizes.get(axis.name, 1)) for axis in reversed(AXES))
    return Mesh(tuple((axis.name, size) for axis, size in order if axis.usual or size > 1))


AXIS_NAMES = tuple(dict.fromkeys([*dict(make_mesh().axes), *(axis.name for axis in AXES)]))
"""The names of all axes: those that every mesh has, outermost first, then the others."""
