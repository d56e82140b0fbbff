"""Lower bounds for the plans of some allocations: every task is as fast as the option that is fastest at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product
from operator import attrgetter, le
from types import MappingProxyType

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.passes.cost.peak_memory import usable_device_bytes
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.candidates import (
    Candidates,
    Choices,
    Devices,
    PoolOptions,
    SharedPipelineOptions,
    column_minima,
)
from rlgraph.passes.placement.search.colocation import Blocks, PartitionBlock
from rlgraph.passes.placement.search.fused_pipelines import Others, Pieces
from rlgraph.passes.placement.search.incumbent import Incumbent
from rlgraph.passes.placement.search.limit import NO_LIMIT, Limit
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.pool_knapsack import PoolKnapsack
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.strategy import Ranks


class Bounds:
    """The bounds of one problem."""

    counts_memory = True
    """Whether each component keeps what its candidates say, and does so in one pool."""

    def __init__(self, problem: PlacementProblem, incumbent: Incumbent, way: int = 0) -> None:
        """way: the index among the problems that are searched together."""
        self.problem, self.incumbent, self.way = problem, incumbent, way
        self.fuses = bool(problem.fusing.partners)
        """Whether trainings may share a pipeline."""
        self._fit: dict[tuple[tuple[int, ...], tuple[int, ...], int], PoolOptions | None] = {}
        self._lasting: dict[tuple[object, ...], SharedPipelineOptions] = {}
        self._anywhere: dict[tuple[int, Devices], Candidates] = {}
        self.limits: dict[int, Limit] = {}
        """What the best plan allows options of a component to take, as far as that is asked for."""
        self.knapsacks: dict[tuple[object, ...], PoolKnapsack] = {}
        """The knapsacks of pools, by what they depend on."""

    def limit_options(self, best: float) -> None:
        """Leave out options with which no plan has a smaller value than this, from here on."""
        problem, value = self.problem, max(best, self.incumbent.good_enough_bound())
        self.incumbent.note_pruned(value)
        cheapest = min(island.device.price for island in problem.cluster.islands) / 3600
        dollars = cheapest if problem.goal == "cost" else 0.0
        partners = problem.fusing.partners if self.fuses else ()
        # At first some options are left out by what is quick to tell; of those that a search has made then, more are.
        quick = [True] if self.incumbent.best is self.incumbent.known else [True, False]
        for is_quick in [False] if self.limits else quick:
            self.limits = {
                number: Limit(value, besides_s, dollars, number in partners)
                for number, besides_s in enumerate(self.seconds_besides(is_quick))
            }

    def seconds_besides(self, is_quick: bool) -> list[float]:
        """Return for each component the least seconds of the stages of a step in which it does nothing, with options
        that are not left out yet. is_quick: whether fewer will do, without making options."""
        problem, numbers = self.problem, range(len(self.problem.components))
        if problem.staleness_steps or len(problem.cluster.islands) > 1:
            return [0.0 for _ in numbers]
        (island,) = problem.cluster.islands
        count, least = len(problem.sync_pairs), dict[int, float]()
        options = problem.options
        for place, (component, twin) in enumerate(zip(problem.components, problem.twins, strict=True)):
            parts = [options.parts.get(id(one), (one,)) for one in (component, twin)]
            for part, known in zip(*parts, strict=True):
                where = known, island, island.device_count, self.fuses
                taken = (
                    options.quick_task_seconds(*where)
                    if is_quick
                    else options.least_task_seconds(*where, self.limits[place])
                )
                for task, other in zip(part.tasks, known.tasks, strict=True):
                    if other in taken:
                        least[count + task] = min(taken[other], least.get(count + task, taken[other]))
        besides = [problem.host_seconds_between_stages for _ in numbers]
        for stage in problem.job_stages:
            busy: dict[int | None, float] = {}
            for job in stage:
                number = problem.component_of[job - count] if job >= count else None
                busy[number] = busy.get(number, 0.0) + least.get(job, 0.0)
            for number in {*numbers} - busy.keys():
                besides[number] += max(busy.values())
        return besides

    def options_of(self, number: int, island: NodeGroup, devices: int) -> tuple[Option, ...]:
        """Return the options of a component on at most so many devices of a node group that may beat the best plan."""
        component, limit = self.problem.twins[number], self.limits.get(number, NO_LIMIT)
        return self.problem.options.undominated_options(component, island, devices, limit)

    def candidates_by_component(self, blocks: Blocks, devices: Sequence[int]) -> Choices | None:
        """Return the candidates of all components, with so many devices of each pool; None if a pool cannot hold its
        own. A component that has no pool yet may have any of these."""
        result: dict[int, Candidates] = {}
        if unplaced := self.problem.unplaced_components(blocks):
            largest: dict[tuple[int, ...], int] = {}
            for block, size in zip(blocks, devices, strict=True):
                largest[block.islands] = max(size, largest.get(block.islands, 0))
            result = {number: self.options_anywhere(number, tuple(sorted(largest.items()))) for number in unplaced}
            if not all(candidates.options for candidates in result.values()):
                return None
        for block, most in zip(blocks, devices, strict=True):
            pool = self.pool_options(block, most)
            if pool is None:
                return None
            result |= pool.choices
        return result

    def options_anywhere(self, number: int, devices: Devices) -> Candidates:
        """Return the options of a component on any of some pools: devices of the largest one on each node group."""
        if (number, devices) not in self._anywhere:
            joined = self.problem.cluster.join_node_groups
            options = [self.options_of(number, joined(islands), size) for islands, size in devices]
            candidates = Candidates(sorted(chain.from_iterable(options), key=attrgetter("order")), devices)
            self._anywhere[number, devices] = candidates
        return self._anywhere[number, devices]

    def unfused_candidates(self, blocks: Blocks, devices: Sequence[int]) -> Choices:
        """Return the candidates where no trainings share a pipeline."""
        pools = [self.pool_options(block, most) for block, most in zip(blocks, devices, strict=True)]
        return {number: candidates for pool in pools if pool for number, candidates in pool.unshared.items()}

    def ways_to_share_pipelines(
        self, blocks: Blocks, devices: Sequence[int]
    ) -> Iterator[tuple[Pieces, Mapping[int, SharedPipelineOptions]]]:
        """Yield which trainings may share a pipeline, and how it is split: the options of those that do."""
        pools = [self.pool_options(block, most) for block, most in zip(blocks, devices, strict=True)]
        shared = {number: by_ranks for pool in pools if pool for number, by_ranks in pool.shared.items()}
        for pieces in self.problem.fusing.possible_pipeline_sharings([block.components for block in blocks]):
            pieces_shared = [[shared.get(number, {}) for number in piece] for piece in pieces]
            splits = [
                [ranks for ranks in first if all(ranks in by_ranks for by_ranks in rest)]
                for first, *rest in pieces_shared
            ]
            for chosen in product(*splits):
                split_pieces = zip(pieces, chosen, strict=True)
                yield pieces, {number: shared[number][ranks] for piece, ranks in split_pieces for number in piece}

    def fitting_candidates(self, block: PartitionBlock, devices: int) -> Choices | None:
        """Return for each component of a pool the options that fit next to the least of the others; None if one has
        none."""
        pool = self.pool_options(block, devices)
        return None if pool is None else pool.choices

    def pool_options(self, block: PartitionBlock, devices: int) -> PoolOptions | None:
        """Return the options that fit into a pool, and those where trainings share a pipeline; None if a component has
        none."""
        key = (block.components, block.islands, devices)
        return get_or_compute(self._fit, key, lambda: self._fitting(block, devices))

    def _fitting(self, block: PartitionBlock, devices: int) -> PoolOptions | None:
        island = self.problem.pool_node_group(block)
        all_options = {number: self.options_of(number, island, devices) for number in block.components}
        if not all(all_options.values()):
            return None
        held = {number: self.least_resident_bytes(number, options) for number, options in all_options.items()}
        room = usable_device_bytes(island, self.problem.constants) - sum(held.values())
        offloaded = {number: min(option.host for option in options) for number, options in all_options.items()}
        host_room = self.problem.options.offload_room(island) - sum(offloaded.values())
        fit = {
            number: [
                fitted
                for option in options
                if (fitted := option.with_fitting_caches(room + held[number], host=host_room + offloaded[number]))
                is not None
            ]
            for number, options in all_options.items()
        }
        if not all(fit.values()):
            return None
        alone = {number: Candidates(options) for number, options in fit.items()}
        if not self.fuses:
            return PoolOptions(alone, alone, {})
        shared = self._shared(block, devices, {number: room + held[number] for number in fit})
        both = {
            number: Candidates([*alone[number].options, *(options.fastest_option for options in by_ranks.values())])
            for number, by_ranks in shared.items()
        }
        return PoolOptions(alone | both, alone, shared)

    def least_resident_bytes(self, number: int, options: Sequence[Option]) -> float:
        """Return the least bytes that a component keeps resident in its pool, whatever its option."""
        return min(option.resident for option in options)

    def _shared(
        self, block: PartitionBlock, devices: int, rooms: Mapping[int, float]
    ) -> dict[int, dict[Ranks, SharedPipelineOptions]]:
        """Return the options of a pool that may share a pipeline with others of them. rooms: for each component the
        bytes besides the least of the others."""
        fusing, result = self.problem.fusing, dict[int, dict[Ranks, SharedPipelineOptions]]()
        splits: dict[int, dict[Ranks, list[Option]]] = {}
        for number in block.components:
            if fusing.partners.get(number, frozenset()).isdisjoint(block.components):
                continue
            component, island, room = (
                self.problem.twins[number],
                self.problem.pool_node_group(block),
                rooms[number],
            )
            fit = {
                split: [option for option in options if option.peak <= room]
                for split, options in self.problem.options.pipeline_sharing_options(component, island, devices).items()
            }
            splits[number] = {split: options for split, options in fit.items() if options}
        for number, by_split in splits.items():
            partners = {other: splits[other] for other in fusing.partners[number] if other in splits}
            for split, options in by_split.items():
                if beside := {
                    other: other_splits[split] for other, other_splits in partners.items() if split in other_splits
                }:
                    # What all of those that may share a pipeline wait together is counted for the first of them.
                    others = fusing.least_partner_seconds(beside) if number < min(partners) else None
                    result.setdefault(number, {})[split] = self._together(number, options, others)
        return result

    def _together(self, number: int, options: Sequence[Option], others: Others | None) -> SharedPipelineOptions:
        """Return options of one split as they are in a pipeline with others."""
        least_of = self.problem.fusing.least_shared_seconds
        key = (*map(id, options), others)
        return get_or_compute(
            self._lasting,
            key,
            lambda: SharedPipelineOptions(options, [least_of(number, option, others) for option in options]),
        )

    def loose_bound(
        self,
        blocks: Blocks,
        devices: Sequence[int],
        choices: Choices,
        taken: Mapping[int, Sequence[float]] = MappingProxyType({}),
        in_order: bool = False,
    ) -> float:
        """Return a bound by which each transfer of weights is as fast as the fastest pair of options makes it, too.
        devices: the fewest of each pool. taken: seconds of the tasks of some components. in_order: whether the order
        in which pools serve requests counts: not where trainings share pipelines."""
        self.problem.options.bounds_computed += 1
        colocation = self.problem.make_colocation(blocks)
        durations = {number: candidates.least_task_seconds for number, candidates in choices.items()}
        syncs = []
        for source, target in self.problem.sync_pairs:
            sync, durations[target] = self.fastest_sync_seconds(source, target, choices, colocation.pool_of_component)
            syncs.append(sync)
        durations |= taken
        copies = (
            {number: candidates.most_replicas for number, candidates in choices.items()}
            if colocation.group_transfers
            else {}
        )
        order = self.problem.request_order(blocks) if in_order else None
        return self.problem.objective_value(
            self.problem.least_step_seconds(durations, syncs, colocation, copies, order), blocks, devices
        )

    def sharp_bound(self, blocks: Blocks, devices: Sequence[int], choices: Choices, in_order: bool = False) -> float:
        """Return a better bound, with one split for all that a component does. Weights that are brought tie two
        components together: the split of the one that trains decides how fast they come."""
        bound = self.loose_bound(blocks, devices, choices, in_order=in_order)
        home = self.problem.make_colocation(blocks).pool_of_component
        source = next(
            (source for source, target in self.problem.sync_pairs if self.may_wait_for_weights(target, home)), None
        )
        if (
            source is None
            or bound >= self.incumbent.good_enough_bound()
            or len(choices[source].candidates_by_split) == 1
        ):
            return bound
        targets = [
            (ends, choices[ends[1]], together)
            for ends in self.problem.sync_pairs
            if ends[0] == source and self.may_wait_for_weights(ends[1], home)
            for together in _together(ends, home)
        ]
        return min(
            self.loose_bound(blocks, devices, {**choices, source: split}, in_order=in_order)
            for split in self.undominated_splits(choices[source], targets)
        )

    def undominated_splits(
        self, source: Candidates, targets: Sequence[tuple[tuple[int, int], Candidates, bool]]
    ) -> list[Candidates]:
        """Return the splits of a component that is trained that no other one dominates in what it takes itself, and in
        when its weights have arrived. targets: who needs them, and whether that one shares its pool."""
        keys: list[tuple[float, ...]] = []
        splits = []
        for split in source.candidates_by_split:
            key = tuple(split.least_task_seconds)
            for ends, target, together in targets:
                known = ends, id(split.options[0].split), together
                arrived = partial(self._arrivals, ends, split.options[0], target, together)
                key = (*get_or_compute(target.arrivals, known, arrived), *key)
            if self.problem.options.settings.apart:
                key = (*key, -split.most_replicas)
            if not any(all(map(le, other, key)) for other in keys):
                keys.append(key)
                splits.append(split)
        return splits

    def _arrivals(self, ends: tuple[int, int], source: Option, target: Candidates, together: bool) -> tuple[float, ...]:
        """Return the seconds of the fastest transfer of weights from one option to some others, and for each task of
        these the least seconds until it has its weights and is done."""
        splits = target.candidates_by_split
        waits = [self.problem.pair_sync_seconds(ends, source, split.options[0], together) for split in splits]
        arrivals = [
            [wait + task_s for task_s in split.least_task_seconds] for wait, split in zip(waits, splits, strict=True)
        ]
        return (min(waits), *column_minima(arrivals))

    def may_wait_for_weights(self, number: int, home: Mapping[int, int]) -> bool:
        """Return whether a component may have to wait for weights."""
        return True

    def fastest_sync_seconds(
        self, source: int, target: int, choices: Choices, home: Mapping[int, int]
    ) -> tuple[float, Sequence[float]]:
        """Return the fastest transfer of weights between some options, and the least seconds of the tasks that need
        them; of a component that has no pool yet, in whichever pool it may get."""
        answers = [
            self.fastest_sync_seconds_between(source, target, choices, together)
            for together in _together((source, target), home)
        ]
        return (
            answers[0] if len(answers) == 1 else (min(wait for wait, _ in answers), choices[target].least_task_seconds)
        )

    def fastest_sync_seconds_between(
        self, source: int, target: int, choices: Choices, together: bool
    ) -> tuple[float, Sequence[float]]:
        """Return the fastest transfer of weights between some options, and the least seconds of the tasks that need
        them. together: whether they are in one pool."""
        cache, key = choices[source].brought, (choices[target], together)
        return get_or_compute(cache, key, lambda: self._brought(source, target, choices, together))

    def _fastest(self, ends: tuple[int, int], sources: Sequence[Option], target: Option, together: bool) -> float:
        """Return the seconds of the fastest transfer of weights from some options to one."""
        seconds = self.problem.pair_sync_seconds
        return min([seconds(ends, option, target, together) for option in sources])

    def _brought(self, source: int, target: int, choices: Choices, together: bool) -> tuple[float, Sequence[float]]:
        sources, candidates = choices[source].quickest_ends, choices[target]
        alone, fastest = target in self.problem.independent_receivers, {}
        # What waits for more than its weights is not faster with one split than with another.
        ends = [split.options[0] for split in candidates.candidates_by_split] if alone else candidates.quickest_ends
        for option in ends:
            key = (target, option.split.weights, together)
            fastest[option.split.weights] = get_or_compute(
                choices[source].fastest, key, partial(self._fastest, (source, target), sources, option, together)
            )
        sync = min(fastest.values())
        if not alone:
            return sync, candidates.least_task_seconds
        # An option to which weights come fast may generate slowly: no option has both, which one task is made to count.
        # The host may work for longer than the weights travel.
        least, host = list(candidates.least_task_seconds), self.problem.host_seconds_at_start
        together_s = [
            min(max(host, fastest[option.split.weights]) + option.seconds[task] for option in candidates.options)
            - max(host, sync)
            for task in range(len(least))
        ]
        task = max(range(len(least)), key=lambda index: together_s[index] - least[index])
        least[task] = together_s[task]
        return sync, least


def _together(ends: tuple[int, int], home: Mapping[int, int]) -> list[bool]:
    """Return whether two components share a pool; both answers, where one of them has none yet."""
    pools = [home.get(component) for component in ends]
    return [True, False] if None in pools else [pools[0] == pools[1]]
