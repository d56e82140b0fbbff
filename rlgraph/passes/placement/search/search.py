"""Branch and bound over pools, devices and splits.

    1. For each partition of the components, the devices of its pools are a box: a range of sizes for each. A box is
       bounded by the time that a step takes when every task is as fast as on the most devices of the range.
    2. The box with the least bound is halved, until it is one allocation. Boxes that cannot beat the best plan are
       pruned.
    3. For an allocation, each component's options are tried, fastest first, as far as the pools' memory and the bound
       allow.
    4. Trainings that share pipelines are among what is tried; of a large problem only in the end, in the pools of the
       best plan.

The bound of what was pruned or left is what no plan can beat: it proves how good the best one is.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Literal

from rlgraph.passes.placement.search.allocation_boxes import AllocationBoxes, Box
from rlgraph.passes.placement.search.bounds import Bounds
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.decompositions import DecompositionBounds, Decompositions
from rlgraph.passes.placement.search.depth_first import FEW_TRIES, MOST_TRIES, AllocationSearch, TryBudget
from rlgraph.passes.placement.search.heterogeneous_meshes import try_heterogeneous_meshes
from rlgraph.passes.placement.search.incumbent import Incumbent, SearchResult
from rlgraph.passes.placement.search.job_stage_bounds import JobStageBounds
from rlgraph.passes.placement.search.memory_bounds import MemoryBounds
from rlgraph.passes.placement.search.memory_fit import MemoryFit, with_smallest_cache
from rlgraph.passes.placement.search.options import BOUND
from rlgraph.passes.placement.search.partitions import partitions_with_component
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.progress import (
    UNLIMITED,
    OutOfTime,
    OutOfWork,
    SearchControl,
    SearchProgress,
    Work,
)

FIRST = 16
"""Partitions of which an allocation is tried before the search, those with the least bounds."""

FIRST_WORK = 0.75
"""The share of the work of a search after which no more of them are tried before it."""

FIRST_TRIES = 0.25
"""The share of the work of a search that the choices of options in these allocations may take together."""

EVERY = 8
"""One of so many ranges that are halved has an allocation tried."""

MOST_LOOKS = 20000
"""Ranges and allocations after which the best plan is returned with the gap that is left."""

MOST_WORK = 200_000
"""Work (`Options.work_done`) after which a search that has a plan returns it with the gap that is left: ten seconds of
a slow core."""

MORE = 10
"""How many times as many choices are tried of an allocation that comes up again."""

FUSING_WORK = MOST_WORK // 4
"""As many more for trainings that share a pipeline."""

PATIENCE = 100_000
"""Choices and ranges that are looked at without a gain, after which the best plan is returned with the gap that is
left. Most searches that finish look at a tenth of that in all."""

GAIN = 0.05
"""The share by which a gap has to shrink to be a gain."""

Fuse = Literal["all", "last", "none"]
"""Where trainings may share pipelines: in all plans that are looked at, at the end in the pools of the best one, or in
no plan."""

Postponed = tuple[float, int, int, Blocks, tuple[int, ...], int]
"""An allocation of which not all choices were tried: its bound, the count of those before it, the index of the problem,
its pools with their devices, and how many choices were tried."""

Entry = tuple[float, int, int, Blocks, Box, bool]
"""An entry of the heap: a bound, the count of entries before it, the index of the problem, a partition, the sizes of
its pools, and whether the bound is the sharp one."""


class Search:
    """A search of one problem among some partitions of its components, or of all ways to decompose a step's work."""

    def __init__(
        self,
        problem: PlacementProblem,
        candidates: Sequence[Blocks],
        gap: float,
        seconds: float = math.inf,
        spare: float = 0.0,
        ways: Decompositions | None = None,
        fuse: Fuse = "all",
        known: SearchResult | None = None,
        margin: float = 0.0,
        patience: float = PATIENCE,
        control: SearchControl | None = None,
        most_work: Work = UNLIMITED,
        most_nodes: int = 0,
        within: Mapping[Blocks, Box] = MappingProxyType({}),
        near: bool = False,
    ) -> None:
        """gap: how far from the best plan is near enough, as a share. seconds: the time after which the search ends.
        spare: the share by which a plan that leaves too little memory has to be better than one that does not. ways:
        the ways of which `problem` is the first one; `candidates` are then those of the last one, and its readers may
        be anywhere. fuse: where trainings may share pipelines. known, margin: as `Incumbent` has them.
        patience: steps without a gain after which the search ends; steps, not seconds, so that one problem has one
        plan. control: of the searches that end together with this one. most_work: work after
        which it ends with the plan that it has. most_nodes: as `AllocationBoxes` has it. within: for partitions the
        sizes of their pools among which all plans are that are good enough, as far as that is known. near: the known
        plan is one of this problem and may be the best: no other is tried before the search, nor options that make it
        better by less than the gap."""
        self.problem, self.candidates = problem, candidates
        self.incumbent, self.known = Incumbent(gap, spare, known, margin), known
        options, before = problem.options, problem.options.work_done
        self.watch = SearchProgress(seconds, control, problem.goal, most_work, lambda: options.work_done - before)
        self.ways = ways
        self.boxes = AllocationBoxes(problem.cluster, candidates, most_nodes)
        problems = ways.problems if ways else [problem]
        self.bounds = [self.make_bounds(way_problem, way) for way, way_problem in enumerate(problems)]
        if ways:
            self.bounds.append(self.make_joint_bounds(ways))
        self.fuse = fuse
        for bounds in self.bounds:
            bounds.fuses &= fuse == "all"
        self.stages = [JobStageBounds(self.boxes, bounds) for bounds in self.bounds]
        self.tries, self.patience = TryBudget(), patience
        self._gap, self._gained = math.inf, 0
        """The gap at the last gain, and the steps until then."""
        self._limited_by: SearchResult | None = None
        """The plan that options have to beat."""
        self.within, self.near = within, near and known is not None
        self.tightened: dict[Blocks, Box] = {}
        """The sizes of the pools of each partition among the candidates, as far as bounds have left them when it was
        first looked at."""
        self._seen_allocations: set[tuple[int, Blocks, tuple[int, ...]]] = set()
        self._count = 0
        self._postponed: list[Postponed] = []
        self.fused: SearchResult | None = None
        """A plan whose trainings share pipelines, if it is better than the best of those that were searched."""

    def make_bounds(self, problem: PlacementProblem, way: int) -> Bounds:
        """Return the bounds of the plans of a problem."""
        return Bounds(problem, self.incumbent, way)

    def make_joint_bounds(self, ways: Decompositions) -> DecompositionBounds:
        """Return the bounds of the plans of all ways."""
        return DecompositionBounds(ways, self.incumbent)

    def run(self) -> SearchResult | None:
        """Return the best plan; None if none fits. Ctrl-C gives the best one so far. Raises ProgramError where the time
        is over before there is one, and KeyboardInterrupt where it is interrupted before."""
        try:
            return self.run_or_time_out()
        except OutOfTime:
            raise self.watch.out_of_time_error() from None

    def run_or_time_out(self) -> SearchResult | None:
        """Return the best plan, like `run`, but raise OutOfTime where the time is over before there is one."""
        try:
            self.run_until_deadline()
        except OutOfTime:
            if self.incumbent.best is None:
                raise
        return self.incumbent.best_with_bound() if self.fused is None else self.fused

    def run_until_deadline(self) -> None:
        """Run `search_partitions` and `search_shared_pipelines` until the time is over, which raises OutOfTime."""
        try:
            with uncollected():
                try:
                    self.search_partitions()
                    self.search_postponed()
                except OutOfWork:
                    self.watch.share, self.watch.most_work = 1.0, Work(self.watch.work_done() + FUSING_WORK)
                best = self.incumbent.best
                if best is not None and best is not self.known:
                    self.search_shared_pipelines()
        except KeyboardInterrupt:
            self.watch.interrupt(*self.incumbent.value_and_gap())
        finally:
            self.watch.close()

    def search_shared_pipelines(self) -> None:
        """Let trainings share pipelines where that comes after the best plan without."""
        if self.fuse == "last":
            self.fuse_best_plan()
        if self.fuse != "none":
            self.fuse_heterogeneous()

    def search_partitions(self) -> None:
        """Look at all partitions until the best plan is near enough."""
        incumbent = self.incumbent
        self.limit_options()
        heap: list[Entry] = []
        first = len(self.bounds) - 1
        for blocks in self.candidates:
            box = self.boxes.narrow_box(blocks, self.within.get(blocks) or self.boxes.full_box(blocks))
            self.watch.check_time(incumbent.value_and_gap)
            if box is not None:
                self.push_entry(heap, self.box_bound(first, blocks, box), first, blocks, box)
        incumbent.least_open_bound = heap[0][0] if heap else math.inf
        first_tries = self.tries_within(FIRST_TRIES * self.watch.most_work.near / FIRST)
        for _, _, _, blocks, box, _ in () if self.near else sorted(heap)[:FIRST]:
            if incumbent.best is not None and self.watch.work_done() > FIRST_WORK * self.watch.most_work.near:
                # What is left goes into bounds of the others, of which nothing is known yet.
                break
            translated = self.ways.translate_partition(0, blocks) if self.ways else blocks
            self.search_box(0, translated, self.boxes.middle_allocation(translated, box), tries=first_tries)
            if self._limited_by is None:
                self.limit_options()
        if incumbent.best is None and not self.keep_plan_that_fits() and not self.ways:
            heap.clear()
        self.limit_options()
        popped = 0
        while heap:
            least, number, way, blocks, box, sharp = heappop(heap)
            incumbent.least_open_bound = least
            self.watch.check_time(incumbent.value_and_gap)
            if (
                least >= incumbent.good_enough_bound()
                or incumbent.best is not None
                and (incumbent.ranges_searched > MOST_LOOKS or self.has_stalled())
            ):
                return
            tighter = self.stages[way].tighten_box(blocks, box)
            if tighter is None:
                continue
            if way == first:
                self.tightened.setdefault(blocks, tighter)
            if tighter != box:
                box, least, sharp = tighter, max(least, self.box_bound(way, blocks, tighter)), False
                if heap and least > heap[0][0]:
                    if least < incumbent.good_enough_bound():
                        heappush(heap, (least, number, way, blocks, box, False))
                    else:
                        incumbent.note_pruned(least)
                    continue
            if not sharp:
                # The first entry is worth a bound that takes longer, and may then come later.
                least = max(least, self.sharp_box_bound(way, blocks, box))
                if least >= incumbent.good_enough_bound():
                    incumbent.note_pruned(least)
                    continue
                if heap and least > heap[0][0]:
                    heappush(heap, (least, number, way, blocks, box, True))
                    continue
            incumbent.least_open_bound = least
            parts = self.branch_entry(way, blocks, box)
            if parts is None:
                popped += 1
                if self.search_box(way, blocks, *self.device_range(blocks, box)):
                    continue
                if popped % EVERY == 0:
                    self.search_box(way, blocks, self.boxes.middle_allocation(blocks, box))
                parts = [(way, blocks, half) for half in self.boxes.halve_box(blocks, box)]
            for part_way, part, half in parts:
                narrowed = self.boxes.narrow_box(part, half)
                if narrowed is not None:
                    self.push_entry(
                        heap, max(least, self.box_bound(part_way, part, narrowed)), part_way, part, narrowed
                    )
        incumbent.least_open_bound = math.inf

    def limit_options(self) -> None:
        """Leave out options with which no plan beats the best one, where there is one and it is another one than so
        far."""
        if self.incumbent.best is not None and self.incumbent.best is not self._limited_by:
            self._limited_by = self.incumbent.best
            unbeaten = self.near and self._limited_by is self.known
            value = self.incumbent.good_enough_bound() if unbeaten else self._limited_by.value
            for bounds in self.bounds:
                bounds.limit_options(value)

    def search_postponed(self) -> None:
        """Look again at the allocations of which not all choices were tried, the one with the least bound first, until
        the best plan is near enough, or half of the work is done: searches for other plans need the rest. Where nothing
        has fitted yet it would take as long again to say so."""
        self.watch.share = 0.5
        while self._postponed and self.incumbent.best is not None and not self.has_stalled():
            least, _, way, blocks, devices, tries = self._postponed[0]
            if least >= self.incumbent.good_enough_bound():
                break
            again = AllocationSearch(
                self.boxes, self.bounds[way], self.watch, blocks, devices, devices, tries=MORE * tries
            )
            again.run()
            heappop(self._postponed)
            self.postpone(way, again, max(least, again.least_untried_bound), MORE * tries)
        # Trainings that share a pipeline are still to come.
        self.watch.share = 1.0

    def postpone(self, way: int, search: AllocationSearch, bound: float, tries: int) -> None:
        """Note an allocation that was searched with so many tries, if these were not enough."""
        if bound < math.inf:
            self._count += 1
            heappush(self._postponed, (bound, self._count, way, search.blocks, search.devices, tries))
        self.incumbent.least_postponed_bound = self._postponed[0][0] if self._postponed else math.inf

    def keep_plan_that_fits(self) -> bool:
        """Keep a plan that has room, however long its steps take: from there on there is one. Return false where there
        is none."""
        blocks_of_first = [
            self.ways.translate_partition(0, blocks) if self.ways else blocks for blocks in self.candidates
        ]
        fitting = MemoryFit(self.problem, self.boxes).fitting_plan(dict.fromkeys(blocks_of_first))
        if fitting is None:
            # Of models that are offloaded not all choices are tried.
            return self.problem.options.settings.offload
        blocks, devices, options = fitting
        search = AllocationSearch(self.boxes, self.bounds[0], self.watch, blocks, devices, devices)
        search.keep_plan_if_better({number: with_smallest_cache(option) for number, option in options.items()}, devices)
        return True

    def has_stalled(self) -> bool:
        """Return whether the last steps brought neither a better plan nor a better bound."""
        _, gap = self.incumbent.value_and_gap()
        if gap <= (1 - GAIN) * self._gap:
            self._gap, self._gained = gap, self.watch.steps
        return self.watch.steps - self._gained > self.patience

    def fuse_best_plan(self) -> None:
        """Keep in `fused` a plan whose trainings share pipelines in the pools of the best plan, or in one pool that has
        the devices of all pools that train so, if it is better."""
        alone = self.incumbent.best_with_bound()
        if alone is None:
            return
        problem = self.bounds[alone.problem_index].problem
        incumbent = Incumbent(self.incumbent.gap, self.incumbent.spare)
        incumbent.keep_if_better(alone)
        bounds, among = (
            Bounds(problem, incumbent, alone.problem_index),
            {frozenset(blocks) for blocks in self.candidates},
        )
        for blocks, devices in {(alone.blocks, alone.devices): 0, self.join_fusible_pools(problem, alone): 0}:
            shared = problem.fusing.possible_pipeline_sharings([block.components for block in blocks])
            possible = frozenset(blocks) in among and self.boxes.has_room(blocks, devices)
            if shared and possible and bounds.candidates_by_component(blocks, devices):
                AllocationSearch(self.boxes, bounds, self.watch, blocks, devices, devices).run()
        best = incumbent.best
        if best is None or not best.pieces:
            return
        seconds = problem.step_seconds_with_options(best.blocks, best.options, best.pieces)
        value = problem.objective_value(seconds, best.blocks, best.devices)
        if value < alone.value:
            self.fused = replace(best, seconds=seconds, value=value, bound=alone.bound, before_fusing=alone)

    def fuse_heterogeneous(self) -> None:
        """Keep in `fused` a plan whose trainings of one pipeline have heterogeneous meshes, if it is better."""
        found = self.fused or self.incumbent.best_with_bound()
        problem = None if found is None else self.bounds[found.problem_index].problem
        if found is None or problem is None or not problem.fusing.partners:
            return
        best = try_heterogeneous_meshes(problem, found, self.watch, self.incumbent.spare)
        if best is not found:
            self.fused = best

    def join_fusible_pools(self, problem: PlacementProblem, found: SearchResult) -> tuple[Blocks, tuple[int, ...]]:
        """Return the plan's pools and devices, with the pools of a node group whose trainings may share pipelines
        joined into one, but not those that a schedule declares."""
        trained: dict[tuple[int, ...], list[int]] = {}
        for number, block in enumerate(found.blocks):
            if not block.name and not problem.fusing.partners.keys().isdisjoint(block.components):
                trained.setdefault(block.islands, []).append(number)
        blocks, devices = dict(enumerate(found.blocks)), dict(enumerate(found.devices))
        for first, *others in trained.values():
            components = sorted(component for number in (first, *others) for component in blocks[number].components)
            blocks[first] = replace(blocks[first], components=tuple(components))
            most = sum(devices[number] for number in (first, *others))
            devices[first] = max(size for size in self.boxes.sizes[blocks[first].islands] if size <= most)
            for number in others:
                del blocks[number], devices[number]
        return tuple(blocks.values()), tuple(devices.values())

    def push_entry(self, heap: list[Entry], value: float, way: int, blocks: Blocks, box: Box) -> None:
        """Put something that is worth looking at onto the heap."""
        if value < self.incumbent.good_enough_bound():
            self._count += 1
            heappush(heap, (value, self._count, way, blocks, box, False))
        else:
            self.incumbent.note_pruned(value)

    def branch_entry(self, way: int, blocks: Blocks, box: Box) -> list[tuple[int, Blocks, Box]] | None:
        """Return the entry once for each way, where that is open; else once for each pool that the first unplaced
        component may have. None if all have one."""
        if self.ways and way == len(self.ways.problems):
            return [(number, self.ways.translate_partition(number, blocks), box) for number in range(way)]
        problem = self.bounds[way].problem
        unplaced = problem.unplaced_components(blocks)
        if not unplaced:
            return None
        trainer = next(source for source, target in problem.sync_pairs if target == unplaced[0])
        return [(way, part, box) for part in partitions_with_component(blocks, unplaced[0], trainer)]

    def device_range(self, blocks: Blocks, box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the fewest and the most devices of each pool."""
        return self.boxes.pool_device_counts(blocks, box[0]), self.boxes.pool_device_counts(blocks, box[1])

    def bounded_range(self, blocks: Blocks, box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the fewest devices of each pool, and at least the most, with which a box is bounded."""
        most = self.boxes.rounded_up(blocks, box)
        return self.boxes.pool_device_counts(blocks, box[0]), self.boxes.pool_device_counts(blocks, most)

    def box_bound(self, way: int, blocks: Blocks, box: Box) -> float:
        """Return what no allocation of a box can beat."""
        self.incumbent.ranges_searched += 1
        low, high = self.bounded_range(blocks, box)
        bounds = self.bounds[way]
        choices = bounds.candidates_by_component(blocks, high)
        return math.inf if choices is None else bounds.loose_bound(blocks, low, choices)

    def sharp_box_bound(self, way: int, blocks: Blocks, box: Box) -> float:
        """Return a better bound of a box that takes longer to compute."""
        low, high = self.bounded_range(blocks, box)
        bounds = self.bounds[way]
        choices = bounds.candidates_by_component(blocks, high)
        if choices is None:
            return math.inf
        value = bounds.sharp_bound(blocks, low, choices)
        if not bounds.counts_memory or value >= self.incumbent.good_enough_bound():
            return value
        rooms = bounds.problem.usable_pool_bytes(blocks)
        return max(value, MemoryBounds(bounds, blocks, low, choices, rooms).value)

    def tries_within(self, work: float) -> int:
        """Return how many choices of an allocation may be looked at, first for plans that leave memory and then for
        all, so that they take so much work."""
        each = BOUND * len(self.problem.options.tasks)
        return int(min(MOST_TRIES, max(FEW_TRIES, work / (2 * each))))

    def search_box(
        self,
        way: int,
        blocks: Blocks,
        low: tuple[int, ...],
        high: tuple[int, ...] | None = None,
        tries: int = MOST_TRIES,
    ) -> bool:
        """Look for the best options of an allocation, or of all between two, and keep them if they beat the best plan.
        Return whether these allocations are done: not where some could be better with more devices than the least.
        tries: choices of one allocation that are looked at."""
        high = high or low
        if low == high:
            if (way, blocks, low) in self._seen_allocations:
                return True
            self._seen_allocations.add((way, blocks, low))
            if not self.boxes.has_room(blocks, low):
                return True
        self.incumbent.ranges_searched += 1
        bounds = self.bounds[way]
        if bounds.candidates_by_component(blocks, high) is None:
            return True
        tries = tries if low == high else self.tries.max_tries
        if self.incumbent.spare:
            # Plans that leave memory are tried first: they keep out those that are not much better.
            AllocationSearch(self.boxes, bounds, self.watch, blocks, low, high, tight=False, tries=tries).run()
        full = AllocationSearch(self.boxes, bounds, self.watch, blocks, low, high, tries=tries)
        fathomed = full.run()
        if full.tries_left < 0 and low == high and tries < MOST_TRIES:
            # It is looked at again when its turn comes.
            self._seen_allocations.discard((way, blocks, low))
            return fathomed
        self.postpone(way, full, full.least_untried_bound, tries)
        if not fathomed and full.tries_left < 0:
            self.tries.note_given_up()
        return fathomed


@contextmanager
def uncollected() -> Iterator[None]:
    """Turn off the garbage collector: what a search makes stays until its end, and to go through it again and again
    takes a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
