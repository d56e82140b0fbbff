"""Assigns the destination's ranks to devices, where both sides of a transfer are on the same devices, so that the
fewest bytes move.

Ranks are numbered by their mesh, replicas outermost and tensor-parallel ranks next to each other. If devices follow
that order, generation with a smaller mesh than training finds little of what it needs on its device. Other orders put
some of the replicas between the other axes, or innermost: then the tensor-parallel ranks of one replica are a stride
apart, and each device's training shard is a part of its generation shard. (HybridFlow calls the first grouping vanilla
and the second zero-redundancy, and has a rule for the second; here the order that moves the fewest bytes is chosen.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlgraph.ir.mesh import Mesh
from rlgraph.passes.resharding.cells import Layout, cut_into_cells, distinct_layouts

Axis = tuple[str, int]
"""The name of a mesh axis, and its size or a factor of that."""


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """An assignment of ranks to devices."""

    ranks: tuple[int, ...]
    """The destination's rank of each device."""
    axis_order: tuple[Axis, ...]
    """The order in which devices are numbered, outermost axis first. An axis may occur several times, in factors."""
    moved_elements: int
    """The elements that a device needs and does not hold, summed over all devices."""

    def __str__(self) -> str:
        return " x ".join(f"{name}{size}" for name, size in self.axis_order if size > 1) or "1 device"


def assign_ranks(source: Sequence[Layout], destination: Sequence[Layout], mesh: Mesh) -> RankAssignment:
    """Return the assignment that moves the least; of equal ones, the one closest to the numbering of the mesh.

    `source` is what each device holds, and `destination` what each rank of `mesh` needs; both have the same length.
    """
    if not len(source) == len(destination) == mesh.rank_count:
        raise ValueError(f"{len(source)} devices cannot run the {len(destination)} ranks of {mesh}, one on each")
    lacking = _lacking(source, destination)
    candidates = [_assignment(order, mesh, lacking) for order in _orders(mesh)]
    return min(candidates, key=lambda assignment: assignment.moved_elements)


def _orders(mesh: Mesh) -> Iterator[tuple[Axis, ...]]:
    """Return ways to number devices: replicas before, between and after the other axes, in factors, and these axes in
    either order. The mesh's own numbering is the first."""
    copies = mesh.axis_size("dp")
    other_axes = [(name, size) for name, size in mesh.axes if name != "dp"]
    for axes in (other_axes, other_axes[::-1]):
        for factors in _factors(copies, len(axes) + 1):
            order = [("dp", factors[0])]
            for axis, factor in zip(axes, factors[1:], strict=True):
                order += [axis, ("dp", factor)]
            yield tuple(order)


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Return all ways to write a number as a product of `count` factors, large first factors first."""
    if count == 1:
        yield (number,)
        return
    for first in range(number, 0, -1):
        if number % first == 0:
            yield from ((first, *others) for others in _factors(number // first, count - 1))


def _assignment(order: tuple[Axis, ...], mesh: Mesh, lacking: NDArray[np.int64]) -> RankAssignment:
    coordinates = np.unravel_index(np.arange(mesh.rank_count), [size for _, size in order])
    ranks = np.zeros(mesh.rank_count, np.int64)
    for name, size in mesh.axes:
        position = np.zeros(mesh.rank_count, np.int64)
        for (other, factor), index in zip(order, coordinates, strict=True):
            if other == name:
                position = position * factor + index
        ranks = ranks * size + position
    moved = int(lacking[np.arange(mesh.rank_count), ranks].sum())
    return RankAssignment(tuple(ranks.tolist()), order, moved)


def _lacking(source: Sequence[Layout], destination: Sequence[Layout]) -> NDArray[np.int64]:
    """Return for each device and rank how many elements the rank needs and the device does not hold."""
    held, devices = distinct_layouts(dict(enumerate(source)))
    needed, ranks = distinct_layouts(dict(enumerate(destination)))
    counts = np.zeros((len(held), len(needed)), np.int64)
    for tensor in cut_into_cells([*held, *needed]):
        have, need = tensor.held_by_layout[: len(held)], tensor.held_by_layout[len(held) :]
        counts += (~have * tensor.volumes()) @ need.T.astype(np.int64)
    return counts[np.ix_(_members(devices, len(source)), _members(ranks, len(destination)))]


def _members(groups: Sequence[Sequence[int]], count: int) -> NDArray[np.int64]:
    """Return for each number the index of its group."""
    group_of = np.zeros(count, np.int64)
    for index, group in enumerate(groups):
        group_of[list(group)] = index
    return group_of
