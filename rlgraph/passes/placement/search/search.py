"""Branch and bound over pools, devices and splits.

    1. For each partition of the components, the devices of its pools are a box: a range of sizes for each. A box is
       bounded by the time that a step takes when every task is as fast as on the most devices of the range.
    2. The box with the least bound is halved, until it is one allocation. Boxes that cannot beat the best plan are
       dropped.
    3. For an allocation, each component's options are tried, fastest first, as far as the pools' memory and the bound
       allow.
    4. Trainings that share pipelines are among what is tried; of a large problem only in the end, in the pools of the
       best plan.

The bound of what was dropped or left is what no plan can beat: it proves how good the best one is.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import heappop, heappush
from typing import Literal

from rlgraph.passes.placement.search.bounds import Bounds
from rlgraph.passes.placement.search.boxes import Box, Boxes
from rlgraph.passes.placement.search.decompositions import Undecided, Ways
from rlgraph.passes.placement.search.depth_first import MOST_TRIES, Fathoming, Tries
from rlgraph.passes.placement.search.heterogeneous import unlike
from rlgraph.passes.placement.search.incumbent import Found, Incumbent
from rlgraph.passes.placement.search.partitions import joining
from rlgraph.passes.placement.search.problem import Blocks, Problem
from rlgraph.passes.placement.search.progress import OutOfTime, Watch
from rlgraph.passes.placement.search.stages import Stages

FIRST = 16
"""Partitions of which an allocation is tried before the search, those with the least bounds."""

EVERY = 8
"""Of so many ranges that are halved, one has an allocation tried."""

MOST_LOOKS = 20000
"""Ranges and allocations after which the best plan is given with the gap that is left."""


PATIENCE = 100_000
"""Choices and ranges that are looked at without a gain, after which the best plan is given with the gap that is left.
Most searches that come to an end look at a tenth of that in all."""

GAIN = 0.05
"""By which share a gap has to shrink to be a gain."""


Fuse = Literal["all", "last", "none"]
"""Where trainings may share pipelines: in all plans that are looked at, in the end in the pools of the best one, or in
no plan."""

Entry = tuple[float, int, int, Blocks, Box, bool]
"""A bound, the count of entries before it, the problem, a partition, sizes of its pools, whether the bound is the sharp
one."""


class Search:
    """Of one problem, among some partitions of its components; or of all ways to take a step's work apart."""

    def __init__(
        self,
        problem: Problem,
        candidates: Sequence[Blocks],
        gap: float,
        seconds: float = math.inf,
        spare: float = 0.0,
        ways: Ways | None = None,
        fuse: Fuse = "all",
        known: Found | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """gap: how far from the best plan is near enough, as a share. seconds: after which the search ends. spare: by
        how much of it a plan that leaves too little memory has to be better than one that does not. ways: of which
        `problem` is the first one; `candidates` are then of the last one, and its readers may be anywhere. fuse: where
        trainings may share pipelines. known: a plan for another problem that has to be beaten. patience: steps
        without a gain after which the search ends; steps, and no seconds, so that one problem has one plan."""
        self.problem, self.candidates, self.watch = problem, candidates, Watch(seconds)
        self.incumbent, self.known = Incumbent(gap, spare), known
        if known is not None:
            self.incumbent.keep(known)
        self.ways = ways
        self.boxes = Boxes(problem.cluster, candidates)
        problems = ways.problems if ways else [problem]
        self.bounds = [self.bounding(each, way) for way, each in enumerate(problems)]
        if ways:
            self.bounds.append(Undecided(ways, self.incumbent))
        self.fuse = fuse
        for each in self.bounds:
            each.fuses &= fuse == "all"
        self.stages = [Stages(self.boxes, bounds) for bounds in self.bounds]
        self.tries, self.patience = Tries(), patience
        self._gap, self._gained = math.inf, 0
        """What was known of the gap at the last gain, and the steps until then."""
        self._fathomed: set[tuple[int, Blocks, tuple[int, ...]]] = set()
        self._count = 0
        self.fused: Found | None = None
        """A plan whose trainings share pipelines, and that is better than the best of those that were searched."""

    def bounding(self, problem: Problem, way: int) -> Bounds:
        """Of the plans that are searched."""
        return Bounds(problem, self.incumbent, way)

    def run(self) -> Found | None:
        """The best plan; None if none fits. Raises ProgramError where the time is over before there is one, and on
        Ctrl-C KeyboardInterrupt with what there is."""
        try:
            return self.best()
        except OutOfTime:
            raise self.watch.none() from None

    def best(self) -> Found | None:
        """The same, but raises OutOfTime where the time is over before there is a plan."""
        try:
            self.watched()
        except OutOfTime:
            if self.incumbent.best is None:
                raise
        return self.incumbent.found() if self.fused is None else self.fused

    def fits(self) -> bool:
        """Whether there is a plan. Raises OutOfTime where that is not known by then, and KeyboardInterrupt."""
        self.watched()
        return self.incumbent.best is not None

    def watched(self) -> None:
        """`all`, until the time is over, which raises OutOfTime."""
        try:
            with _uncollected():
                self.all()
                best = self.incumbent.best
                if best is not None and best is not self.known:
                    self.together()
        except KeyboardInterrupt:
            raise self.watch.interrupted(*self.incumbent.state()) from None
        finally:
            self.watch.close()

    def together(self) -> None:
        """Lets trainings share pipelines where that comes after the best plan without."""
        if self.fuse == "last":
            self.last()
        if self.fuse != "none":
            self.unlike()

    def all(self) -> None:
        """Looks at all partitions until the best plan is near enough."""
        known = self.incumbent
        heap: list[Entry] = []
        first = len(self.bounds) - 1
        for blocks in self.candidates:
            box = self.boxes.narrow(blocks, self.boxes.whole(blocks))
            self.watch.look(known.state)
            if box is not None:
                self.add(heap, self.bound(first, blocks, box), first, blocks, box)
        known.left = heap[0][0] if heap else math.inf
        for _, _, _, blocks, box, _ in sorted(heap)[:FIRST]:
            whole = self.ways.translated(0, blocks) if self.ways else blocks
            self.fathom(0, whole, self.boxes.middle(whole, box))
        popped = 0
        while heap:
            least, number, way, blocks, box, sharp = heappop(heap)
            known.left = least
            self.watch.look(known.state)
            if least >= known.enough() or known.best is not None and (known.looked > MOST_LOOKS or self.stalled()):
                return
            tighter = self.stages[way].tighten(blocks, box)
            if tighter is None:
                continue
            if tighter != box:
                box, least, sharp = tighter, max(least, self.bound(way, blocks, tighter)), False
                if heap and least > heap[0][0]:
                    if least < known.enough():
                        heappush(heap, (least, number, way, blocks, box, False))
                    else:
                        known.drop(least)
                    continue
            if not sharp:
                # What comes first is worth a bound that takes longer, and may then come later.
                least = max(least, self.sharp(way, blocks, box))
                if least >= known.enough():
                    known.drop(least)
                    continue
                if heap and least > heap[0][0]:
                    heappush(heap, (least, number, way, blocks, box, True))
                    continue
            parts = self.decided(way, blocks, box)
            if parts is None:
                popped += 1
                if self.fathom(way, blocks, *self.ends(blocks, box)):
                    continue
                if popped % EVERY == 0:
                    self.fathom(way, blocks, self.boxes.middle(blocks, box))
                parts = [(way, blocks, half) for half in self.boxes.halves(blocks, box)]
            for own, part, half in parts:
                near = self.boxes.narrow(part, half)
                if near is not None:
                    self.add(heap, max(least, self.bound(own, part, near)), own, part, near)
        known.left = math.inf

    def stalled(self) -> bool:
        """Whether the last steps brought neither a better plan nor a better bound."""
        _, gap = self.incumbent.state()
        if gap <= (1 - GAIN) * self._gap:
            self._gap, self._gained = gap, self.watch.steps
        return self.watch.steps - self._gained > self.patience

    def last(self) -> None:
        """Keeps beside the best plan one whose trainings share pipelines in its pools, or in one pool that has the
        devices of all of those that train so, if that is better."""
        alone = self.incumbent.found()
        if alone is None:
            return
        problem = self.bounds[alone.way].problem
        known = Incumbent(self.incumbent.gap, self.incumbent.spare)
        known.keep(alone)
        bounds, among = Bounds(problem, known, alone.way), {frozenset(blocks) for blocks in self.candidates}
        for blocks, devices in {(alone.blocks, alone.devices): 0, self.joined(problem, alone): 0}:
            shared = problem.fusing.sharings([block.components for block in blocks])
            there = frozenset(blocks) in among and self.boxes.packed(blocks, devices)
            if shared and there and bounds.choices(blocks, devices):
                Fathoming(self.boxes, bounds, self.watch, blocks, devices, devices).run()
        best = known.best
        if best is None or not best.pieces:
            return
        seconds = problem.whole(best.blocks, best.options, best.pieces)
        value = problem.value(seconds, best.blocks, best.devices)
        if value < alone.value:
            self.fused = replace(best, seconds=seconds, value=value, bound=alone.bound, before=alone)

    def unlike(self) -> None:
        """Keeps beside the best plan one whose trainings of one pipeline are split unlike, if that is better."""
        found = self.fused or self.incumbent.found()
        problem = None if found is None else self.bounds[found.way].problem
        if found is None or problem is None or not problem.fusing.partners:
            return
        best = unlike(problem, found, self.watch, self.incumbent.spare)
        if best is not found:
            self.fused = best

    def joined(self, problem: Problem, found: Found) -> tuple[Blocks, tuple[int, ...]]:
        """Its pools, those of an island as one whose trainings may share pipelines; not those that a schedule
        declares."""
        trained: dict[tuple[int, ...], list[int]] = {}
        for number, block in enumerate(found.blocks):
            if not block.name and not problem.fusing.partners.keys().isdisjoint(block.components):
                trained.setdefault(block.islands, []).append(number)
        blocks, devices = dict(enumerate(found.blocks)), dict(enumerate(found.devices))
        for first, *others in trained.values():
            components = sorted(each for number in (first, *others) for each in blocks[number].components)
            blocks[first] = replace(blocks[first], components=tuple(components))
            most = sum(devices[number] for number in (first, *others))
            devices[first] = max(size for size in self.boxes.sizes[blocks[first].islands] if size <= most)
            for number in others:
                del blocks[number], devices[number]
        return tuple(blocks.values()), tuple(devices.values())

    def add(self, heap: list[Entry], value: float, way: int, blocks: Blocks, box: Box) -> None:
        """Something that is worth looking at, later."""
        if value < self.incumbent.enough():
            self._count += 1
            heappush(heap, (value, self._count, way, blocks, box, False))
        else:
            self.incumbent.drop(value)

    def decided(self, way: int, blocks: Blocks, box: Box) -> list[tuple[int, Blocks, Box]] | None:
        """The same for each way, where that is open; else with each pool for the first component that has none. None:
        all have one."""
        if self.ways and way == len(self.ways.problems):
            return [(each, self.ways.translated(each, blocks), box) for each in range(way)]
        problem = self.bounds[way].problem
        unplaced = problem.unplaced(blocks)
        if not unplaced:
            return None
        trainer = next(source for source, target in problem.syncs if target == unplaced[0])
        return [(way, part, box) for part in joining(blocks, unplaced[0], trainer)]

    def ends(self, blocks: Blocks, box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The fewest and the most devices of each pool."""
        return self.boxes.counts(blocks, box[0]), self.boxes.counts(blocks, box[1])

    def bound(self, way: int, blocks: Blocks, box: Box) -> float:
        """What no allocation of a box can beat."""
        self.incumbent.looked += 1
        low, high = self.ends(blocks, box)
        bounds = self.bounds[way]
        choices = bounds.choices(blocks, high)
        return math.inf if choices is None else bounds.loose(blocks, low, choices)

    def sharp(self, way: int, blocks: Blocks, box: Box) -> float:
        """The same, by a bound that takes longer."""
        low, high = self.ends(blocks, box)
        bounds = self.bounds[way]
        choices = bounds.choices(blocks, high)
        return math.inf if choices is None else bounds.sharp(blocks, low, choices)

    def fathom(self, way: int, blocks: Blocks, low: tuple[int, ...], high: tuple[int, ...] | None = None) -> bool:
        """Looks for the best options of an allocation, or of all between two, and keeps them if they beat what is
        known. Whether they are fathomed: not where some could be better with more devices than the least."""
        high = high or low
        if low == high:
            if (way, blocks, low) in self._fathomed:
                return True
            self._fathomed.add((way, blocks, low))
            if not self.boxes.packed(blocks, low):
                return True
        self.incumbent.looked += 1
        bounds = self.bounds[way]
        if bounds.choices(blocks, high) is None:
            return True
        tries = MOST_TRIES if low == high else self.tries.most
        if self.incumbent.spare:
            # Plans that leave memory come first: they keep those out that are not much better.
            Fathoming(self.boxes, bounds, self.watch, blocks, low, high, tight=False, tries=tries).run()
        last = Fathoming(self.boxes, bounds, self.watch, blocks, low, high, tries=tries)
        fathomed = last.run()
        if not fathomed and last.left < 0:
            self.tries.given_up()
        return fathomed


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles: what a search makes stays until its end, and to go through it again and again
    takes a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
