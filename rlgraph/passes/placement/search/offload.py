"""In which pools anything could be gained if models slept in the host's memory, by bounds alone: of a large problem,
whose options with and without sleeping are too many to be compared.

Who sleeps leaves its room to others, and comes back for its work. Bounds take the options of models that stay, which
are known from the search for a plan in which all do, and

    1. count none of what other models keep, and nothing that it takes to come back. What cannot be better so cannot be
       better;
    2. of the partitions that are left: only who comes back for nothing sleeps, as who is brought new weights in any
       case, and others keep what they keep; or one other model sleeps at least, takes what that takes, and nothing is
       counted of what others keep. A plan in which models sleep is one of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from rlgraph.passes.placement.search.bounds import Bounds, Candidates, Pool
from rlgraph.passes.placement.search.boxes import Box
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.incumbent import Found, Incumbent
from rlgraph.passes.placement.search.option import Apart, Option
from rlgraph.passes.placement.search.problem import Block, Blocks, Problem
from rlgraph.passes.placement.search.search import Fuse, Search


def could_sleep(
    problem: Problem, candidates: Sequence[Blocks], found: Found, gap: float, seconds: float, fuse: Fuse
) -> tuple[list[Blocks], float]:
    """Those partitions in which plans whose models sleep may be better than one that was found by `gap`, a share of its
    value, and the least bound of the others. problem: where none may sleep. Raises OutOfTime."""

    def among(blocks: Sequence[Blocks], free: frozenset[int], resting: int | None = None) -> _Sleepers:
        search = _Sleepers(problem, blocks, found, gap, seconds, fuse, free, resting)
        search.watched()
        return search

    everyone = range(len(problem.components))
    first = among(candidates, frozenset(everyone))
    if not first.could:
        return [], first.incumbent.proven()
    left = [blocks for blocks in candidates if blocks in first.could]
    brought = frozenset(number for number in everyone if problem.components[number].brought)
    later = [among(left, brought)] if brought else []
    later += [among(left, frozenset(everyone), number) for number in everyone if number not in brought]
    could = set[Blocks]().union(*(each.could for each in later))
    return [blocks for blocks in left if blocks in could], min(each.incumbent.proven() for each in (first, *later))


class _Sleepers(Search):
    """Looks at ranges of devices until they are dropped, or at one allocation that cannot be."""

    def __init__(
        self,
        problem: Problem,
        candidates: Sequence[Blocks],
        found: Found,
        gap: float,
        seconds: float,
        fuse: Fuse,
        free: frozenset[int],
        resting: int | None,
    ) -> None:
        self.free, self.resting = free, resting
        self.could: set[Blocks] = set()
        super().__init__(problem, candidates, gap, seconds, fuse=fuse, known=found)

    def bounding(self, problem: Problem, way: int) -> Bounds:
        return _Rooms(problem, self.incumbent, self.free, self.resting)

    def bound(self, way: int, blocks: Blocks, box: Box) -> float:
        return float("inf") if blocks in self.could else super().bound(way, blocks, box)

    def sharp(self, way: int, blocks: Blocks, box: Box) -> float:
        return float("inf") if blocks in self.could else super().sharp(way, blocks, box)

    def fathom(self, way: int, blocks: Blocks, low: tuple[int, ...], high: tuple[int, ...] | None = None) -> bool:
        if high is None:
            return True
        if low == high and self.boxes.packed(blocks, low):
            self.could.add(blocks)
        return low == high


class _Rooms(Bounds):
    """Where some components keep nothing from others, and one of them has to come for its work."""

    def __init__(self, problem: Problem, incumbent: Incumbent, free: frozenset[int], resting: int | None) -> None:
        super().__init__(problem, incumbent)
        self.free, self.resting = free, resting

    def held(self, number: int, options: Sequence[Option]) -> float:
        return 0.0 if number in self.free else super().held(number, options)

    def _fitting(self, block: Block, devices: int) -> Pool | None:
        found, number = super()._fitting(block, devices), self.resting
        if found is None or number is None or number not in block.components:
            return found
        coming = [each for option in found.alone[number].options for each in self._coming(number, option)]
        own = {number: Candidates(sorted(coming, key=attrgetter("order")))}
        # Who shares a pipeline does not sleep.
        shared = {other: each for other, each in found.shared.items() if other != number}
        return Pool({**found.choices, **own}, {**found.alone, **own}, shared)

    def _coming(self, number: int, option: Option) -> Iterator[Option]:
        """The same with what it takes to come for its tasks, and to go; where it reads apart from its training, of
        either of the two."""
        whole, tasks = self.problem.components[number], dict.fromkeys(self.problem.components[number].tasks, 0.0)
        if isinstance(option, Apart):
            _, trained, read = self.problem.options.parts[id(whole)]
            parts: list[tuple[Component, Option]] = [(trained, option.trainer), (read, option.reader)]
        else:
            parts = [(whole, option)]
        for component, part in parts:
            moved = self.problem.options.coming(component, part.strategy, part.copies)
            more = tasks | dict(zip(component.tasks, moved, strict=True))
            yield option.lasting([taken + more[task] for taken, task in zip(option.seconds, tasks, strict=True)])
