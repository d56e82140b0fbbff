"""Finds the pools in which offloading models could gain anything, by bounds alone: in a large problem the options with
and without offloading are too many to be compared.

An offloaded model leaves its room to others, and is brought back for its work. The bounds use the options of models
that stay, which are known from the search for a plan in which all do, and

    1. count nothing of what other models keep, and nothing for bringing models back. What cannot be better then cannot
       be better at all;
    2. for the partitions that are left: either only models are offloaded that are brought new weights in any case, for
       which nothing is counted, and others keep what they keep; or at least one other model is offloaded and takes the
       time for that, and nothing is counted of what others keep. A plan that offloads models is one of these. This is
       left out where several ways to decompose a step's work are searched together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from rlgraph.passes.placement.search.allocation_boxes import Box
from rlgraph.passes.placement.search.bounds import Bounds
from rlgraph.passes.placement.search.candidates import Candidates, PoolOptions
from rlgraph.passes.placement.search.colocation import Blocks, PartitionBlock
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.decompositions import DecompositionBounds, Decompositions
from rlgraph.passes.placement.search.incumbent import Incumbent, SearchResult
from rlgraph.passes.placement.search.option import Option, SeparateReadingOption
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.progress import UNLIMITED, SearchControl, Work
from rlgraph.passes.placement.search.search import Fuse, Search


def partitions_worth_offloading(
    problem: PlacementProblem,
    candidates: Sequence[Blocks],
    found: SearchResult,
    gap: float,
    seconds: float,
    fuse: Fuse,
    control: SearchControl | None = None,
    most_work: Work = UNLIMITED,
    ways: Decompositions | None = None,
    is_quick: bool = False,
) -> tuple[dict[Blocks, float], float, dict[Blocks, Box]]:
    """Return those partitions in which plans that offload models may be better than the plan `found` by `gap`, a share
    of its value, with a bound of each, the least bound of the others, and the sizes of pools that such plans have, as
    far as that is known. problem: one in which none may be offloaded.
    control: of the searches that end together with it. most_work: of each search. ways: as a search has them. is_quick:
    whether the second kind of bounds is left out. Raises OutOfTime."""

    def search_partitions(
        blocks: Sequence[Blocks], free: frozenset[int] | None = None, resting: int | None = None
    ) -> _OffloadSearch:
        search = _OffloadSearch(problem, blocks, found, gap, seconds, fuse, free, resting, control, most_work, ways)
        search.run_until_deadline()
        return search

    all_components = range(len(problem.components))
    unlimited = search_partitions(candidates)
    sizes = {blocks: box for blocks in candidates if (box := unlimited.tightened.get(blocks)) is not None}
    if not unlimited.could or ways or is_quick:
        return unlimited.could, unlimited.incumbent.proven_bound(), sizes
    remaining = [blocks for blocks in candidates if blocks in unlimited.could]
    brought = frozenset(number for number in all_components if problem.components[number].receives_weights)
    limited = [search_partitions(remaining, brought)] if brought else []
    limited += [search_partitions(remaining, None, number) for number in all_components if number not in brought]
    could = {
        blocks: min(search.could[blocks] for search in limited if blocks in search.could)
        for blocks in remaining
        if any(blocks in search.could for search in limited)
    }
    return could, min(search.incumbent.proven_bound() for search in (unlimited, *limited)), sizes


class _OffloadSearch(Search):
    """A search that splits ranges of devices until they are pruned, or one allocation cannot be."""

    def __init__(
        self,
        problem: PlacementProblem,
        candidates: Sequence[Blocks],
        found: SearchResult,
        gap: float,
        seconds: float,
        fuse: Fuse,
        free: frozenset[int] | None,
        resting: int | None,
        control: SearchControl | None,
        most_work: Work,
        ways: Decompositions | None,
    ) -> None:
        self.free, self.resting = free, resting
        self.could: dict[Blocks, float] = {}
        """The partitions of which an allocation cannot be pruned, with the bound of the first such one: those that are
        looked at later have larger bounds."""
        super().__init__(
            problem, candidates, gap, seconds, 0.0, ways, fuse, known=found, control=control, most_work=most_work
        )
        self._candidate_of = {
            (way, ways.translate_partition(way, blocks)): blocks
            for way in range(len(ways.problems) if ways else 0)
            for blocks in candidates
            if ways
        }

    def make_bounds(self, problem: PlacementProblem, way: int) -> Bounds:
        return _OffloadBounds(problem, self.incumbent, self.free, self.resting)

    def make_joint_bounds(self, ways: Decompositions) -> DecompositionBounds:
        return _JointOffloadBounds(ways, self.incumbent)

    def candidate_of(self, way: int, blocks: Blocks) -> Blocks:
        """Return the partition among the candidates that one of a way belongs to."""
        if not self.ways or way == len(self.ways.problems):
            return blocks
        return self._candidate_of[way, self.ways.without_readers(way, blocks)]

    def box_bound(self, way: int, blocks: Blocks, box: Box) -> float:
        return float("inf") if self.candidate_of(way, blocks) in self.could else super().box_bound(way, blocks, box)

    def sharp_box_bound(self, way: int, blocks: Blocks, box: Box) -> float:
        if self.candidate_of(way, blocks) in self.could:
            return float("inf")
        return super().sharp_box_bound(way, blocks, box)

    def search_box(
        self, way: int, blocks: Blocks, low: tuple[int, ...], high: tuple[int, ...] | None = None, tries: int = 0
    ) -> bool:
        if high is None:
            return True
        if low == high and self.boxes.has_room(blocks, low):
            # Of several ways the one that is looked at first has the least bound.
            self.could.setdefault(self.candidate_of(way, blocks), self.incumbent.least_open_bound)
        return low == high


class _OffloadBounds(Bounds):
    """Bounds in which some components leave all memory to others, and one of them has to be brought back for its
    work."""

    counts_memory = False

    def __init__(
        self, problem: PlacementProblem, incumbent: Incumbent, free: frozenset[int] | None, resting: int | None
    ) -> None:
        """free: the components that leave all memory; None: all."""
        super().__init__(problem, incumbent)
        self.free, self.resting = free, resting

    def least_resident_bytes(self, number: int, options: Sequence[Option]) -> float:
        if self.free is None or number in self.free:
            return 0.0
        return super().least_resident_bytes(number, options)

    def _fitting(self, block: PartitionBlock, devices: int) -> PoolOptions | None:
        pool, number = super()._fitting(block, devices), self.resting
        if pool is None or number is None or number not in block.components:
            return pool
        options = [
            option_ for option in pool.unshared[number].options for option_ in self._brought_back(number, option)
        ]
        returning = {number: Candidates(sorted(options, key=attrgetter("order")))}
        # A training that shares a pipeline is not offloaded.
        shared = {sharer: option_ for sharer, option_ in pool.shared.items() if sharer != number}
        return PoolOptions({**pool.choices, **returning}, {**pool.unshared, **returning}, shared)

    def _brought_back(self, number: int, option: Option) -> Iterator[Option]:
        """Yield the option with the seconds for bringing it back for its tasks and offloading it again; where it reads
        separately from its training, once for each of the two."""
        component_, tasks = self.problem.components[number], dict.fromkeys(self.problem.components[number].tasks, 0.0)
        if isinstance(option, SeparateReadingOption):
            _, trained, read = self.problem.options.parts[id(component_)]
            parts: list[tuple[Component, Option]] = [(trained, option.trainer), (read, option.reader)]
        else:
            parts = [(component_, option)]
        for component, part in parts:
            moved = self.problem.options.offload_seconds_per_step(component, part.strategy, part.copies)
            added = tasks | dict(zip(component.tasks, moved, strict=True))
            yield option.with_pipeline_seconds(
                [seconds + added[task] for seconds, task in zip(option.seconds, tasks, strict=True)]
            )


class _JointOffloadBounds(DecompositionBounds):
    """Bounds for all ways in which all components leave all memory to others."""

    counts_memory = False

    def least_resident_bytes(self, number: int, options: Sequence[Option]) -> float:
        return 0.0
