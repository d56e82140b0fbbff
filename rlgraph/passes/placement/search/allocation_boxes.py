"""Ranges of sizes for the pools of a partition, and how they are narrowed and halved."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.passes.placement.search.colocation import Blocks, PartitionBlock
from rlgraph.passes.placement.search.partitions import allowed_pool_sizes, can_pack_pools, devices_used_per_node_group

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""For each block the smallest and the largest index into the sizes of its node group."""

ROUND = 0.25
"""The share of a range of devices by which its bound may be that of more devices."""


class AllocationBoxes:
    """The boxes for the pools of a cluster."""

    def __init__(self, cluster: Cluster, candidates: Iterable[Blocks] = (), most_nodes: int = 0) -> None:
        """candidates: the partitions of which there are boxes. most_nodes: of the first node group, that pools may lie
        on; 0: all."""
        if most_nodes:
            first, *others = cluster.islands
            cluster = replace(cluster, islands=(replace(first, nodes=min(most_nodes, first.nodes)), *others))
        self.cluster = cluster
        self.sizes: dict[tuple[int, ...], tuple[int, ...]]
        self.sizes = {(number,): allowed_pool_sizes(island) for number, island in enumerate(cluster.islands)}
        """By the node groups that a pool lies on."""
        for block in {block for blocks in candidates for block in blocks if block.other_islands or block.devices}:
            if block.islands not in self.sizes:
                self.sizes[block.islands] = allowed_pool_sizes(cluster.join_node_groups(block.islands))
            # Pools that a schedule declares may have sizes that the search would not choose.
            if block.devices:
                self.sizes[block.islands] = tuple(sorted({*self.sizes[block.islands], block.devices}))

    def full_box(self, blocks: Blocks) -> Box:
        """Return the box of all sizes of a partition's pools."""
        low, high = [], []
        for block in blocks:
            pool_sizes = self.sizes[block.islands]
            fixed = _index(pool_sizes, block.devices) if block.devices else None
            low.append(0 if fixed is None else fixed)
            high.append(len(pool_sizes) - 1 if fixed is None else fixed)
        return tuple(low), tuple(high)

    def narrow_box(self, blocks: Blocks, box: Box) -> Box | None:
        """Return the box without sizes that leave too few devices for the other pools; None if nothing is left."""
        low, high = box
        counts = self.pool_device_counts(blocks, low)
        taken = devices_used_per_node_group(self.cluster.islands, blocks, counts)
        if any(count > island.device_count for count, island in zip(taken, self.cluster.islands, strict=True)):
            return None
        tops = []
        for block, count, top, bottom in zip(blocks, counts, high, low, strict=True):
            pool_sizes = self.sizes[block.islands]
            left = self.cluster.islands[block.island].device_count - taken[block.island] + count
            while top >= bottom and pool_sizes[top] > left:
                top = _index(pool_sizes, left, top)
            if top < bottom:
                return None
            tops.append(top)
        return (low, tuple(tops)) if self.has_room(blocks, counts) else None

    def has_room(self, blocks: Blocks, devices: Sequence[int]) -> bool:
        """Return whether so many devices of each pool have room in the nodes."""
        return can_pack_pools(self.cluster.islands, blocks, devices)

    def halve_box(self, blocks: Blocks, box: Box) -> list[Box]:
        """Return two boxes, cut where sizes differ most."""
        low, high = box
        widest = max(
            range(len(blocks)),
            key=lambda pool: self.sizes[blocks[pool].islands][high[pool]] / self.sizes[blocks[pool].islands][low[pool]],
        )
        pool_sizes = self.sizes[blocks[widest].islands]
        middle = math.sqrt(pool_sizes[low[widest]] * pool_sizes[high[widest]])
        cut = low[widest]
        while cut + 1 < high[widest] and pool_sizes[cut + 1] <= middle:
            cut += 1
        below, above = list(high), list(low)
        below[widest], above[widest] = cut, cut + 1
        return [(low, tuple(below)), (tuple(above), high)]

    def pool_device_counts(self, blocks: Blocks, places: Sequence[int]) -> tuple[int, ...]:
        """Return the devices of each pool."""
        return tuple(self.sizes[block.islands][place] for block, place in zip(blocks, places, strict=True))

    def rounded_up(self, blocks: Blocks, box: Box) -> tuple[int, ...]:
        """Return the places of a number of devices for each pool that is no less than the most of a box, and more by at
        most a share `ROUND` of the range: such numbers are asked for again and again."""
        places = []
        for block, bottom, top in zip(blocks, *box, strict=True):
            pool_sizes = self.sizes[block.islands]
            step = _power_of_two(ROUND * (pool_sizes[top] - pool_sizes[bottom]))
            place = bisect_left(pool_sizes, math.ceil(pool_sizes[top] / step) * step, top)
            places.append(min(place, len(pool_sizes) - 1))
        return tuple(places)

    def round_place(self, block: PartitionBlock, bottom: int, top: int) -> int:
        """Return the place of the roundest number of devices of a pool in the middle half of a range of places."""
        pool_sizes, margin = self.sizes[block.islands], (top - bottom) // 4
        least, most = pool_sizes[bottom + margin], pool_sizes[top - margin]
        step = _power_of_two(most)
        while -(-least // step) * step > most:
            step //= 2
        return min(bisect_left(pool_sizes, -(-least // step) * step), top)

    def fewest_devices(self, blocks: Blocks, wanted: Sequence[int]) -> tuple[int, ...] | None:
        """Return the fewest devices that pools can have of which each needs so many; None if the cluster has fewer."""
        counts = []
        for block, count in zip(blocks, wanted, strict=True):
            pool_sizes = self.sizes[block.islands]
            index = bisect_left(pool_sizes, count)
            if index == len(pool_sizes):
                return None
            counts.append(pool_sizes[index])
        taken = devices_used_per_node_group(self.cluster.islands, blocks, counts)
        if any(count > island.device_count for count, island in zip(taken, self.cluster.islands, strict=True)):
            return None
        return tuple(counts) if self.has_room(blocks, counts) else None

    def middle_allocation(self, blocks: Blocks, box: Box) -> tuple[int, ...]:
        """Return an allocation of a box that uses its devices: the least of each, and the rest in proportion to what
        each may have."""
        low, high = self.pool_device_counts(blocks, box[0]), self.pool_device_counts(blocks, box[1])
        counts = list(low)
        taken = devices_used_per_node_group(self.cluster.islands, blocks, low)
        for number, island in enumerate(self.cluster.islands):
            pools = [pool for pool, block in enumerate(blocks) if block.island == number]
            free = island.device_count - taken[number]
            range_sum = sum(high[pool] - low[pool] for pool in pools)
            for pool in pools:
                extra = free * (high[pool] - low[pool]) / range_sum if range_sum else 0
                pool_sizes = self.sizes[blocks[pool].islands]
                counts[pool] = max(low[pool], pool_sizes[_index(pool_sizes, int(low[pool] + extra))])
        return tuple(min(a, b) for a, b in zip(counts, high, strict=True))


def _power_of_two(most: float) -> int:
    """Return the largest power of two that is no more; 1 at least."""
    return 1 << max(0, int(most).bit_length() - 1)


def _index(pool_sizes: Sequence[int], most: int, top: int | None = None) -> int:
    """Return the index of the largest size of at most `most`; -1 if there is none."""
    high = len(pool_sizes) - 1 if top is None else top
    low = -1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if pool_sizes[middle] <= most else (low, middle - 1)
    return low
