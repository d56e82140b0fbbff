"""The options of a component: how it can be split over so many devices, what each strategy takes, and what it needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import mul

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.peak_memory import usable_device_bytes, usable_host_bytes
from rlgraph.passes.cost.task import Task
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.dominance import undominated
from rlgraph.passes.placement.search.limit import NO_LIMIT, Limit
from rlgraph.passes.placement.search.made_options import MadeOptions
from rlgraph.passes.placement.search.option import Option, SeparateReadingOption
from rlgraph.passes.placement.search.replica_counts import ReplicaCounts
from rlgraph.passes.placement.search.search_settings import SearchSettings
from rlgraph.passes.placement.search.separate_reading import SeparateReading
from rlgraph.passes.placement.search.strategy import Ranks, Strategy

COMPARED, BOUND = 0.1, 0.4
"""How many options can be made in the time in which one is compared with others, and in which a bound is computed, for
each task of a step."""

Sharing = Mapping[Ranks, Sequence[Option]]
"""Options that may share a pipeline, by how they are split."""


class Options(MadeOptions):
    """The options of all components, computed once for each number of devices."""

    def __init__(
        self,
        tasks: Sequence[Task],
        constants: Constants,
        settings: SearchSettings,
        parts: Sequence[tuple[Component, Component, Component]] = (),
    ) -> None:
        """parts: components that train and read, each with its training part and its reading part, which may be split
        differently in a pool."""
        super().__init__(tasks, constants, settings)
        self.parts = {id(undivided): (undivided, trainer, reader) for undivided, trainer, reader in parts}
        self.counts, self.reading = ReplicaCounts(self), SeparateReading(self, self.parts)
        self.options_compared, self.bounds_computed = 0, 0.0
        """How many options were compared with others, and how many bounds were computed of them."""
        self._fitting: dict[tuple[Strategy, int], list[Option]] = {}
        self._fronts: dict[tuple[object, ...], tuple[Option, ...]] = {}
        self._found: dict[tuple[int, int, int, Limit], tuple[Option, ...]] = {}
        self._sharing: dict[tuple[object, ...], Sharing] = {}
        self._filled: dict[tuple[int, int], Sharing] = {}

    def is_like(self, other: Options) -> bool:
        """Return whether these are the options of the same work with the same settings, whatever the components."""
        return self.has_like_strategies(other) and self.settings == other.settings

    def has_like_strategies(self, other: Options) -> bool:
        """Return whether these are the options of the same work, and have the same strategies."""
        same_work = self.tasks == other.tasks and self.constants == other.constants
        return same_work and self.settings.has_same_strategies(other.settings)

    def adopt(self, components: Sequence[Component], other: Options, known: Sequence[Component]) -> Sequence[Component]:
        """Return the components of other options that are like these, so that these are theirs, too: in place of one
        that is equal to one of `known`, and has the same parts, that one."""

        def parts_of(options: Options, component: Component) -> tuple[Component, ...]:
            return options.parts.get(id(component), (component, component, component))

        equal = [next((own for own in known if own == component), component) for component in components]
        adopted = [
            own if parts_of(self, own) == parts_of(other, component) else component
            for own, component in zip(equal, components, strict=True)
        ]
        self.parts |= {key: parts for key, parts in other.parts.items() if any(key == id(one) for one in adopted)}
        return adopted

    def share_strategies(self, components: Sequence[Component], other: Options) -> Sequence[Component]:
        """Take the strategies of other options, of the same work on the same node groups, whose models may be offloaded
        otherwise. Return the components: in place of one that has strategies there, that one."""

        def known(component: Component) -> Component:
            return next((own for own in other.components.values() if own == component), component)

        self.strategies, self.components = other.strategies, other.components
        parts = [tuple(map(known, each)) for each in self.parts.values()]
        self.parts.clear()
        self.parts.update({id(undivided): (undivided, trainer, reader) for undivided, trainer, reader in parts})
        return [known(component) for component in components]

    @property
    def work_done(self) -> float:
        """The work of the searches for these options, in options made: it depends on the problem alone."""
        return self.options_made + COMPARED * self.options_compared + BOUND * len(self.tasks) * self.bounds_computed

    def undominated_options(
        self, component: Component, island: NodeGroup, devices: int, limit: Limit = NO_LIMIT
    ) -> tuple[Option, ...]:
        """Return the options of a component on at most so many devices of a node group, none of which another one
        dominates, and none of which takes longer than the limit allows, fastest first. More devices have all the
        options of fewer."""
        key = (id(component), id(island), devices, limit)
        return get_or_compute(self._found, key, lambda: self._undominated(component, island, devices, limit))

    def _undominated(self, component: Component, island: NodeGroup, devices: int, limit: Limit) -> tuple[Option, ...]:
        # Neighbouring numbers of devices often have the same options.
        strategies = self.strategies_by_split(component, island)
        rooms = [
            self.counts.equivalent_replica_limit(component, island, same_split[0].most_replicas(devices))
            for same_split in strategies
        ]
        # Who trains beside readers of their own shares no pipeline.
        apart = limit._replace(shares=False)
        part_options = [
            self.undominated_options(part, island, _rounded(devices), apart)
            for part in self.parts.get(id(component), ())[1:]
        ]
        # Of several node groups it may need fewer.
        inner = (
            self.undominated_options(component, island.inner, min(devices, island.inner.device_count), limit)
            if island.inner
            else ()
        )

        def compute_undominated_options() -> tuple[Option, ...]:
            options = [
                option
                for room, same_split in zip(rooms, strategies, strict=True)
                for option in self.options_within(component, same_split, room, limit)
            ]
            if part_options:
                trainers, readers = part_options
                options += self.reading.options(component, trainers, readers, apart)
            if inner:
                options = [*dict.fromkeys((*inner, *options))]
            self.options_compared += len(options)
            return tuple(undominated(options, usable_device_bytes(island, self.constants), self.offload_room(island)))

        return get_or_compute(
            self._fronts,
            (id(component), id(island), limit, *rooms, *map(id, part_options), id(inner)),
            compute_undominated_options,
        )

    def offload_room(self, island: NodeGroup) -> float:
        """Return the bytes of a node's host for offloaded models; infinity where nothing may be there."""
        return usable_host_bytes(island, self.constants) if self.settings.hosts else math.inf

    def pipeline_sharing_options(self, component: Component, island: NodeGroup, devices: int) -> Sharing:
        """Return, by split, the options that may share a pipeline; also some that others dominate that share none."""
        fusible = [same_split for same_split in self.strategies_by_split(component, island) if same_split[0].fuses]
        rooms = [
            self.counts.equivalent_replica_limit(component, island, same_split[0].most_replicas(devices))
            for same_split in fusible
        ]

        def compute_pipeline_sharing_options() -> Sharing:
            result: dict[Ranks, Sequence[Option]] = {}
            for same_split, room in zip(fusible, rooms, strict=True):
                result |= self.pipeline_sharing_options_of_mesh(component, same_split, room)
            if island.inner:
                result |= self.pipeline_sharing_options(
                    component, island.inner, min(devices, island.inner.device_count)
                )
            return result

        return get_or_compute(self._sharing, (id(component), id(island), *rooms), compute_pipeline_sharing_options)

    def pipeline_sharing_options_of_mesh(self, component: Component, own: list[Strategy], most: int) -> Sharing:
        """Return, by split, the options of the strategies of one mesh that may share a pipeline, where there is room
        for so many replicas."""

        def group_options_by_split() -> Sharing:
            splits: dict[Ranks, list[Option]] = {}
            for option in self.options_of_split(component, own, most):
                if option.can_share_stages:
                    splits.setdefault(option.split.pipeline_key, []).append(option)
            return splits

        return get_or_compute(self._filled, (id(own), most), group_options_by_split)

    def options_of_split(self, component: Component, own: list[Strategy], most: int) -> list[Option]:
        """Return the options of the strategies of one split, where there is room for so many replicas."""
        return [option for strategy in own for option in self.options_of_strategy(component, strategy, most)]

    def options_of_strategy(self, component: Component, strategy: Strategy, most: int) -> list[Option]:
        """Return the options of a strategy, where there is room for so many replicas. Of numbers of replicas that a
        device has no room for none is made."""

        def fitting_options() -> list[Option]:
            numbers = self.counts.replica_counts(component, strategy, most)
            fit = usable_device_bytes(strategy.deployment.island, self.constants)
            # Fewer replicas mostly need more: where the fewest have room the others are not asked.
            if numbers and strategy.least_peak(min(numbers)) > fit:
                numbers = [copies for copies in numbers if strategy.least_peak(copies) <= fit]
            return [
                option for copies in numbers for option in self.options_of_replica_count(component, strategy, copies)
            ]

        return get_or_compute(self._fitting, (strategy, most), fitting_options)

    def options_within(self, component: Component, own: list[Strategy], most: int, limit: Limit) -> Iterator[Option]:
        """Yield those options of the strategies of one split that take no longer than the limit allows. Of strategies
        none of whose options does, none is made."""
        often = [self.tasks[number].repetitions for number in component.tasks]
        limited, alone = limit.value < math.inf, not limit.dollars and not limit.shares
        allowed = limit.value - limit.besides_s
        for strategy in own if most else ():
            if limited:
                once = strategy.least_task_seconds(most, limit.shares)
                if limit.seconds_left_of(sum(map(mul, once, often)), 1) <= 0:
                    continue
            options = self.options_of_strategy(component, strategy, most)
            if not limited:
                yield from options
            elif alone:
                # As below, without a call for each.
                yield from [option for option in options if option.total < allowed]
            else:
                yield from [option for option in options if limit.seconds_left(option) > 0]

    def quick_task_seconds(
        self, component: Component, island: NodeGroup, devices: int, shares: bool
    ) -> Mapping[int, float]:
        """Return such seconds as `least_task_seconds`, but less of them, where there is one node group: no options are
        made, but of what samples, which has few."""
        if component.work == "generate":
            return self.least_task_seconds(component, island, devices, shares)
        rows = [
            strategy.least_task_seconds(most, shares)
            for same_split in self.strategies_by_split(component, island)
            if (most := same_split[0].most_replicas(devices))
            for strategy in same_split
        ]
        return {
            task: self.tasks[task].repetitions * min(seconds)
            for task, seconds in zip(component.tasks, zip(*rows, strict=True), strict=False)
        }

    def least_task_seconds(
        self, component: Component, island: NodeGroup, devices: int, shares: bool = False, limit: Limit = NO_LIMIT
    ) -> dict[int, float]:
        """Return seconds of each of a component's tasks that no option with one split for all of them takes less than,
        of those that take no longer than the limit allows, on at most so many devices of a node group; empty where
        there is none. shares: whether it may share its pipeline with others."""
        least = self.least_task_seconds(component, island.inner, devices, shares, limit) if island.inner else {}
        fit = usable_device_bytes(island, self.constants)
        for same_split in self.strategies_by_split(component, island):
            most = self.counts.equivalent_replica_limit(component, island, same_split[0].most_replicas(devices))
            for option in self.options_within(component, same_split, most, limit):
                if option.least_peak <= fit:
                    seconds = option.least_seconds if shares else option.seconds
                    for task, task_s in zip(component.tasks, seconds, strict=True):
                        least[task] = min(task_s, least.get(task, task_s))
        return least

    def all_options(self, component: Component, island: NodeGroup, devices: int) -> Iterator[Option]:
        """Yield all options that may be worth it, also those that do not fit next to others."""
        if island.inner:
            yield from self.all_options(component, island.inner, min(devices, island.inner.device_count))
        for strategy in chain.from_iterable(self.strategies_by_split(component, island)):
            for copies in self.counts.replica_counts(component, strategy, strategy.most_replicas(devices)):
                yield from self.options_of_replica_count(component, strategy, copies)

    def same_option(self, component: Component, option: Option, island: NodeGroup | None = None) -> Option:
        """Return, for a component, the option that does the same as one of a component with the same tasks; its bytes
        may be others. The model stays on its devices. island: the node group, where it is another one."""
        if isinstance(option, SeparateReadingOption):
            _, trained, read = self.parts[id(component)]
            trainer, reader = self.same_option(trained, option.trainer), self.same_option(read, option.reader)
            seconds = [option.seconds[component.tasks.index(task)] for task in read.tasks]
            return self.reading.make_option(component, trainer, reader, seconds)
        deployment = option.strategy.deployment
        strategy = self.make_strategy(component, replace(deployment, island=island) if island else deployment)
        return self.make_options(component, strategy, option.copies)[0]


def _rounded(devices: int) -> int:
    """Return the largest number that is no more, and has only zeros after its first three binary digits."""
    more = max(0, devices.bit_length() - 3)
    return devices >> more << more
