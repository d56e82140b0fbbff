"""Whether plans fit into memory at all, whatever they take: exact, and far quicker than a search.

What a pool needs on a device is what its components keep, and the most that one of them has in addition while it works.
So for each number of additional bytes the best choice is the option that keeps least, of each component by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from math import ceil, inf

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.passes.cost.peak_memory import usable_device_bytes
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.allocation_boxes import AllocationBoxes
from rlgraph.passes.placement.search.colocation import Blocks, PartitionBlock
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.virtual_stages import ChunkedStrategy

Front = list[tuple[float, Option]]
"""The most bytes that an option has in addition while it works, and the option: fewer bytes first, each of which keeps
less than the one before."""

Fitting = tuple[Blocks, tuple[int, ...], Mapping[int, Option]]
"""A partition, the devices of its pools, and an option of each component that has room there."""


class MemoryFit:
    """What fits into the pools of a problem."""

    def __init__(self, problem: PlacementProblem, boxes: AllocationBoxes) -> None:
        self.problem, self.boxes = problem, boxes
        self._fronts: dict[tuple[int, tuple[int, ...], int], Front] = {}
        self._pools: dict[tuple[tuple[int, ...], tuple[int, ...], int], Mapping[int, Option] | None] = {}
        self._fewest: dict[tuple[tuple[int, ...], tuple[int, ...], int], int | None] = {}
        self._options: dict[tuple[int, int, int], list[Option]] = {}
        self._kept: dict[tuple[int, tuple[int, ...]], float] = {}

    def fitting_plan(self, candidates: Iterable[Blocks]) -> Fitting | None:
        """Return a plan of one of these partitions that fits, on few devices, those with few pools first; None if there
        is none. Of offloaded models not all choices are tried."""
        for blocks in sorted(candidates, key=len):
            wanted = self.pool_sizes(blocks)
            devices = wanted and self.boxes.fewest_devices(blocks, wanted)
            if not devices:
                continue
            pools = [self.pool_options(block, size) for block, size in zip(blocks, devices, strict=True)]
            if all(pools):
                return blocks, devices, {number: option for pool in pools if pool for number, option in pool.items()}
        return None

    def pool_sizes(self, blocks: Blocks) -> list[int] | None:
        """Return the fewest devices of each pool of a partition; None if it does not fit."""
        # Where what all keep has no room, that is quicker to know than how many devices are enough.
        at_least = [self.least_devices(block) for block in blocks]
        counts = [count for count in at_least if count is not None]
        if len(counts) < len(blocks) or sum(counts) > self.problem.cluster.device_count:
            return None
        sizes = []
        for block in blocks:
            count = self.fewest_devices(block)
            if count is None:
                return None
            sizes.append(count)
        return sizes

    def least_devices(self, block: PartitionBlock) -> int | None:
        """Return a number of devices below which a pool has no room for what its components keep; None if some
        component has no option."""
        if block.devices:
            return block.devices
        room = usable_device_bytes(self.problem.pool_node_group(block), self.problem.constants)
        kept = [self.kept_bytes(number, block) for number in block.components]
        return None if inf in kept or room <= 0 else max(1, ceil(sum(kept) / room))

    def kept_bytes(self, number: int, block: PartitionBlock) -> float:
        """Return bytes that a component keeps at least on all of its devices together: more replicas keep no less."""
        component, island = self.problem.twins[number], self.problem.pool_node_group(block)
        options = self.problem.options

        def least_bytes() -> float:
            totals = []
            for same_split in options.strategies_by_split(component, island):
                for strategy in same_split:
                    held, _ = strategy.needed_bytes_bound(1)
                    awake = 0.0 if options.may_offload(strategy.deployment) else held
                    totals.append((awake + strategy.non_tensor_bytes(1)) * strategy.size)
            return min(totals, default=inf)

        return get_or_compute(self._kept, (number, block.islands), least_bytes)

    def fewest_devices(self, block: PartitionBlock) -> int | None:
        """Return the fewest devices of a pool in which its components have room; None if no number of devices is
        enough. What fits on some devices fits on more."""
        key = (block.components, block.islands, block.devices)
        return get_or_compute(self._fewest, key, lambda: self._fewest_devices(block))

    def _fewest_devices(self, block: PartitionBlock) -> int | None:
        if block.devices:
            return None if self.pool_options(block, block.devices) is None else block.devices
        sizes = self.boxes.sizes[block.islands]
        if self.pool_options(block, sizes[-1]) is None:
            return None
        low, high = bisect_left(sizes, self.least_devices(block) or 1) - 1, len(sizes) - 1
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.pool_options(block, sizes[middle]) is not None else (middle, high)
        return sizes[high]

    def pool_options(self, block: PartitionBlock, devices: int) -> Mapping[int, Option] | None:
        """Return an option of each component of a pool with which all have room there; None if there are none."""
        key = (block.components, block.islands, devices)
        return get_or_compute(self._pools, key, lambda: self._pool_options(block, devices))

    def _pool_options(self, block: PartitionBlock, devices: int) -> Mapping[int, Option] | None:
        every = [self.front(number, block, devices) for number in block.components]
        fitting = self._choose_options(block, every)
        if fitting is None and self.problem.options.settings.host_optimizer:
            # What sleeps takes room of optimizers on the host.
            awake = [
                self._front_of(
                    option for option in self.options(number, block, devices) if not (option.offload and option.host)
                )
                for number in block.components
            ]
            fitting = self._choose_options(block, awake)
        return fitting

    def _choose_options(self, block: PartitionBlock, every: Sequence[Front]) -> Mapping[int, Option] | None:
        fronts = []
        for front in every:
            if not front:
                return None
            fronts.append(front)
        island = self.problem.pool_node_group(block)
        room, host_room = usable_device_bytes(island, self.problem.constants), self.problem.options.offload_room(island)
        # Below the least that some component needs while it works there is nothing to choose.
        least = max(front[0][0] for front in fronts)
        for active in sorted({extra for front in fronts for extra, _ in front if extra >= least}):
            chosen = [[option for extra, option in front if extra <= active][-1] for front in fronts]
            if (
                sum(option.resident for option in chosen) + active <= room
                and sum(option.host for option in chosen) <= host_room
            ):
                return dict(zip(block.components, chosen, strict=True))
        return None

    def front(self, number: int, block: PartitionBlock, devices: int) -> Front:
        """Return the options of a component on at most so many devices of a pool's node group, without those that keep
        no less than one that has no more in addition."""
        key = (number, block.islands, devices)
        return get_or_compute(self._fronts, key, lambda: self._front(number, block, devices))

    def _front(self, number: int, block: PartitionBlock, devices: int) -> Front:
        return self._front_of(self.options(number, block, devices))

    def _front_of(self, options: Iterable[Option]) -> Front:
        by_active = sorted(
            ((max(option.active, default=0.0), option) for option in options),
            key=lambda item: (item[0], item[1].resident),
        )
        front: Front = by_active[:1]
        for active, option in by_active:
            if option.resident < front[-1][1].resident:
                front.append((active, option))
        assert all(more.resident < less.resident for (_, less), (_, more) in pairwise(front))
        return front

    def options(self, number: int, block: PartitionBlock, devices: int) -> Sequence[Option]:
        """Return the options of a component on at most so many devices of a pool's node group that may need less memory
        than others: how fast they are does not matter."""
        component, island = self.problem.twins[number], self.problem.pool_node_group(block)
        return get_or_compute(
            self._options,
            (id(component), id(island), devices),
            lambda: [*self._light_options(component, island, devices)],
        )

    def _light_options(self, component: Component, island: NodeGroup, devices: int) -> Iterator[Option]:
        options, constants = self.problem.options, self.problem.constants
        fit, host = usable_device_bytes(island, constants), options.offload_room(island)
        # Of several node groups it may need fewer.
        if island.inner:
            yield from self._light_options(component, island.inner, min(devices, island.inner.device_count))
        for strategy in chain.from_iterable(options.strategies_by_split(component, island)):
            # Several parts of the layers on a stage keep no less than one.
            if isinstance(strategy, ChunkedStrategy):
                continue
            for copies in options.counts.light_replica_counts(component, strategy, strategy.most_replicas(devices)):
                if strategy.least_peak(copies) > fit:
                    continue
                for option in options.options_of_replica_count(component, strategy, copies):
                    if option.peak <= fit and option.host <= host:
                        yield option


def with_smallest_cache(option: Option) -> Option:
    """Return the option with the smallest of its caches."""
    return option if option.has_fixed_cache else option.with_cache_range(option.strategy.cache, option.strategy.cache)
