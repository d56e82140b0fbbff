"""Ranges of sizes for the pools of a partition: how they are narrowed and halved."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.passes.placement.search.partitions import packed, sizes, used
from rlgraph.passes.placement.search.problem import Blocks

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""For each block the smallest and the largest place in the sizes of its island."""


class Boxes:
    """Of the pools of a cluster."""

    def __init__(self, cluster: Cluster, candidates: Iterable[Blocks] = ()) -> None:
        """candidates: the partitions of which there are boxes."""
        self.cluster = cluster
        self.sizes: dict[tuple[int, ...], tuple[int, ...]]
        self.sizes = {(number,): sizes(island) for number, island in enumerate(cluster.islands)}
        """By the islands that a pool lies on."""
        for block in {block for blocks in candidates for block in blocks if block.others or block.devices}:
            if block.islands not in self.sizes:
                self.sizes[block.islands] = sizes(cluster.joined(block.islands))
            # Pools that a schedule declares may have sizes that the search would not choose.
            if block.devices:
                self.sizes[block.islands] = tuple(sorted({*self.sizes[block.islands], block.devices}))

    def whole(self, blocks: Blocks) -> Box:
        """All sizes of a partition's pools."""
        low, high = [], []
        for block in blocks:
            known = self.sizes[block.islands]
            place = _place(known, block.devices) if block.devices else None
            low.append(0 if place is None else place)
            high.append(len(known) - 1 if place is None else place)
        return tuple(low), tuple(high)

    def narrow(self, blocks: Blocks, box: Box) -> Box | None:
        """Without sizes that leave too few devices for the other pools; None if nothing is left."""
        low, high = box
        counts = self.counts(blocks, low)
        taken = used(self.cluster.islands, blocks, counts)
        if any(count > island.devices for count, island in zip(taken, self.cluster.islands, strict=True)):
            return None
        tops = []
        for block, count, top, bottom in zip(blocks, counts, high, low, strict=True):
            known = self.sizes[block.islands]
            left = self.cluster.islands[block.island].devices - taken[block.island] + count
            while top >= bottom and known[top] > left:
                top = _place(known, left, top)
            if top < bottom:
                return None
            tops.append(top)
        return (low, tuple(tops)) if self.packed(blocks, counts) else None

    def packed(self, blocks: Blocks, devices: Sequence[int]) -> bool:
        """Whether so many devices of each pool have room in the nodes."""
        return packed(self.cluster.islands, blocks, devices)

    def halves(self, blocks: Blocks, box: Box) -> list[Box]:
        """Two boxes, cut where sizes differ most."""
        low, high = box
        widest = max(
            range(len(blocks)),
            key=lambda at: self.sizes[blocks[at].islands][high[at]] / self.sizes[blocks[at].islands][low[at]],
        )
        known = self.sizes[blocks[widest].islands]
        middle = math.sqrt(known[low[widest]] * known[high[widest]])
        cut = low[widest]
        while cut + 1 < high[widest] and known[cut + 1] <= middle:
            cut += 1
        below, above = list(high), list(low)
        below[widest], above[widest] = cut, cut + 1
        return [(low, tuple(below)), (tuple(above), high)]

    def counts(self, blocks: Blocks, places: Sequence[int]) -> tuple[int, ...]:
        """Devices of each pool."""
        return tuple(self.sizes[block.islands][place] for block, place in zip(blocks, places, strict=True))

    def least(self, blocks: Blocks, wanted: Sequence[int]) -> tuple[int, ...] | None:
        """The fewest devices that pools can have of which each needs so many; None: the cluster has not so many."""
        found = []
        for block, count in zip(blocks, wanted, strict=True):
            known = self.sizes[block.islands]
            place = bisect_left(known, count)
            if place == len(known):
                return None
            found.append(known[place])
        taken = used(self.cluster.islands, blocks, found)
        if any(count > island.devices for count, island in zip(taken, self.cluster.islands, strict=True)):
            return None
        return tuple(found) if self.packed(blocks, found) else None

    def middle(self, blocks: Blocks, box: Box) -> tuple[int, ...]:
        """An allocation of a box that uses its devices: the least of each, and the rest in proportion to what each may
        have."""
        low, high = self.counts(blocks, box[0]), self.counts(blocks, box[1])
        found = list(low)
        taken = used(self.cluster.islands, blocks, low)
        for island, whole in enumerate(self.cluster.islands):
            mine = [at for at, block in enumerate(blocks) if block.island == island]
            left = whole.devices - taken[island]
            wish = sum(high[at] - low[at] for at in mine)
            for at in mine:
                more = left * (high[at] - low[at]) / wish if wish else 0
                known = self.sizes[blocks[at].islands]
                found[at] = max(low[at], known[_place(known, int(low[at] + more))])
        return tuple(min(a, b) for a, b in zip(found, high, strict=True))


def _place(known: Sequence[int], most: int, top: int | None = None) -> int:
    """The place of the largest size that is at most so large; -1 if there is none."""
    place = len(known) - 1 if top is None else top
    low = -1
    while low < place:
        middle = (low + place + 1) // 2
        low, place = (middle, place) if known[middle] <= most else (low, middle - 1)
    return low
