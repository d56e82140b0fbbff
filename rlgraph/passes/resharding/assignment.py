"""Which rank of the destination runs on which device, where both sides are on the same devices: the fewest bytes move.

Ranks are numbered by their mesh, copies outermost and tensor-parallel ranks next to each other. Laid out on the devices
in that order, generation with a smaller mesh than training finds little of what it needs on its device. Other orders
put some of the copies between the other axes, or innermost: then the tensor-parallel ranks of one copy are a stride
apart, and each device's training shard is a part of its generation shard. (HybridFlow calls the first grouping vanilla,
the second its zero-redundancy grouping, and has a rule for the second; here it is the order that moves the fewest
bytes.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlgraph.ir.mesh import Mesh
from rlgraph.passes.resharding.cells import Layout, cells, distinct

Axis = tuple[str, int]
"""A mesh axis, or a factor of one, and its size."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Ranks on devices."""

    ranks: tuple[int, ...]
    """For each device the rank of the destination."""
    order: tuple[Axis, ...]
    """How the devices are counted: the outermost axis first. An axis may be in several places, in factors."""
    moved: int
    """Elements that a device needs and does not hold, over all devices."""

    def __str__(self) -> str:
        return " x ".join(f"{name}{size}" for name, size in self.order if size > 1) or "1 device"


def assign(source: Sequence[Layout], destination: Sequence[Layout], mesh: Mesh) -> Assignment:
    """The assignment that moves the least; of equal ones, the one that is closest to counting ranks as the mesh does.

    `source` is what each device holds, and `destination` what each rank of `mesh` needs; there are as many of both.
    """
    if not len(source) == len(destination) == mesh.size:
        raise ValueError(f"{len(source)} devices cannot run the {len(destination)} ranks of {mesh}, one on each")
    lacking = _lacking(source, destination)
    candidates = [_assignment(order, mesh, lacking) for order in _orders(mesh)]
    return min(candidates, key=lambda each: each.moved)


def _orders(mesh: Mesh) -> Iterator[tuple[Axis, ...]]:
    """Ways to count devices: copies before, between and after the other axes, in factors, and those in either order.
    The mesh's own is the first."""
    copies = mesh.length("dp")
    rest = [(name, size) for name, size in mesh.axes if name != "dp"]
    for axes in (rest, rest[::-1]):
        for factors in _factors(copies, len(axes) + 1):
            order = [("dp", factors[0])]
            for axis, factor in zip(axes, factors[1:], strict=True):
                order += [axis, ("dp", factor)]
            yield tuple(order)


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of so many, those with large ones first first."""
    if count == 1:
        yield (number,)
        return
    for first in range(number, 0, -1):
        if number % first == 0:
            yield from ((first, *others) for others in _factors(number // first, count - 1))


def _assignment(order: tuple[Axis, ...], mesh: Mesh, lacking: NDArray[np.int64]) -> Assignment:
    at = np.unravel_index(np.arange(mesh.size), [size for _, size in order])
    ranks = np.zeros(mesh.size, np.int64)
    for name, size in mesh.axes:
        where = np.zeros(mesh.size, np.int64)
        for (other, factor), index in zip(order, at, strict=True):
            if other == name:
                where = where * factor + index
        ranks = ranks * size + where
    moved = int(lacking[np.arange(mesh.size), ranks].sum())
    return Assignment(tuple(ranks.tolist()), order, moved)


def _lacking(source: Sequence[Layout], destination: Sequence[Layout]) -> NDArray[np.int64]:
    """For each device and rank how many elements the rank needs and the device does not hold."""
    held, devices = distinct(dict(enumerate(source)))
    needed, ranks = distinct(dict(enumerate(destination)))
    found = np.zeros((len(held), len(needed)), np.int64)
    for tensor in cells([*held, *needed]):
        have, need = tensor.held[: len(held)], tensor.held[len(held) :]
        found += (~have * tensor.volumes()) @ need.T.astype(np.int64)
    return found[np.ix_(_members(devices, len(source)), _members(ranks, len(destination)))]


def _members(groups: Sequence[Sequence[int]], count: int) -> NDArray[np.int64]:
    """For each number the group that it is in."""
    found = np.zeros(count, np.int64)
    for index, group in enumerate(groups):
        found[list(group)] = index
    return found
