"""Branch and bound over pools, devices and splits.

    1. For each partition of the components, the devices of its pools are a box: a range of sizes for each. A box is
       bounded by the time that a step takes when every task is as fast as on the most devices of the range.
    2. The box with the least bound is halved, until it is one allocation. Boxes that cannot beat the best plan are
       dropped.
    3. For an allocation, each component's options are tried, fastest first, as far as the pools' memory and the bound
       allow.

The bound of what was dropped or left is what no plan can beat: it proves how good the best one is.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush

from rlgraph.placement.search.bounds import Bounds
from rlgraph.placement.search.boxes import Box, Boxes
from rlgraph.placement.search.fathom import Fathoming
from rlgraph.placement.search.incumbent import Found, Incumbent
from rlgraph.placement.search.problem import Blocks, Problem
from rlgraph.placement.search.stages import Stages
from rlgraph.placement.search.watch import OutOfTime, Watch

FIRST = 16
"""Partitions of which an allocation is tried before the search, those with the least bounds."""

EVERY = 8
"""Of so many ranges that are halved, one has an allocation tried."""

MOST_LOOKS = 20000
"""Ranges and allocations after which the best plan is given with the gap that is left."""


class Search:
    """Of one problem, among some partitions of its components."""

    def __init__(
        self,
        problem: Problem,
        candidates: Sequence[Blocks],
        gap: float,
        seconds: float = math.inf,
        spare: float = 0.0,
    ) -> None:
        """gap: how far from the best plan is near enough, as a share. seconds: after which the search ends. spare: by
        how much of it a plan that leaves too little memory has to be better than one that does not."""
        self.problem, self.candidates, self.watch = problem, candidates, Watch(seconds)
        self.incumbent = Incumbent(gap, spare)
        self.boxes = Boxes(problem.cluster, candidates)
        self.bounds = Bounds(problem, self.incumbent)
        self.stages = Stages(self.boxes, self.bounds)
        self._fathomed: set[tuple[Blocks, tuple[int, ...]]] = set()

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
        return self.incumbent.found()

    def fits(self) -> bool:
        """Whether there is a plan. Raises OutOfTime where that is not known by then, and KeyboardInterrupt."""
        self.watched()
        return self.incumbent.best is not None

    def watched(self) -> None:
        """`all`, until the time is over, which raises OutOfTime."""
        try:
            with _uncollected():
                self.all()
        except KeyboardInterrupt:
            raise self.watch.interrupted(*self.incumbent.state()) from None
        finally:
            self.watch.close()

    def all(self) -> None:
        """Looks at all partitions until the best plan is near enough."""
        known = self.incumbent
        heap: list[tuple[float, int, Blocks, Box, bool]] = []
        for blocks in self.candidates:
            box = self.boxes.narrow(blocks, self.boxes.whole(blocks))
            self.watch.look(known.state)
            if box is not None:
                heap.append((self.bound(blocks, box), len(heap), blocks, box, False))
        heapify(heap)
        count = len(heap)
        known.left = heap[0][0] if heap else math.inf
        for _, _, blocks, box, _ in sorted(heap)[:FIRST]:
            self.fathom(blocks, self.boxes.middle(blocks, box))
        popped = 0
        while heap:
            least, number, blocks, box, sharp = heappop(heap)
            known.left = least
            self.watch.look(known.state)
            if least >= known.enough() or known.best is not None and known.looked > MOST_LOOKS:
                return
            tighter = self.stages.tighten(blocks, box)
            if tighter is None:
                continue
            if tighter != box:
                box, least, sharp = tighter, max(least, self.bound(blocks, tighter)), False
                if heap and least > heap[0][0]:
                    if least < known.enough():
                        heappush(heap, (least, number, blocks, box, False))
                    else:
                        known.drop(least)
                    continue
            if not sharp:
                # What comes first is worth a bound that takes longer, and may then come later.
                least = max(least, self.sharp(blocks, box))
                if least >= known.enough():
                    known.drop(least)
                    continue
                if heap and least > heap[0][0]:
                    heappush(heap, (least, number, blocks, box, True))
                    continue
            popped += 1
            if self.fathom(blocks, *self.ends(blocks, box)):
                continue
            if popped % EVERY == 0:
                self.fathom(blocks, self.boxes.middle(blocks, box))
            for half in self.boxes.halves(blocks, box):
                near = self.boxes.narrow(blocks, half)
                if near is None:
                    continue
                value = max(least, self.bound(blocks, near))
                if value < known.enough():
                    count += 1
                    heappush(heap, (value, count, blocks, near, False))
                else:
                    known.drop(value)
        known.left = math.inf

    def ends(self, blocks: Blocks, box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The fewest and the most devices of each pool."""
        return self.boxes.counts(blocks, box[0]), self.boxes.counts(blocks, box[1])

    def bound(self, blocks: Blocks, box: Box) -> float:
        """What no allocation of a box can beat."""
        self.incumbent.looked += 1
        low, high = self.ends(blocks, box)
        choices = self.bounds.choices(blocks, high)
        return math.inf if choices is None else self.bounds.loose(blocks, low, choices)

    def sharp(self, blocks: Blocks, box: Box) -> float:
        """The same, by a bound that takes longer."""
        low, high = self.ends(blocks, box)
        choices = self.bounds.choices(blocks, high)
        return math.inf if choices is None else self.bounds.sharp(blocks, low, choices)

    def fathom(self, blocks: Blocks, low: tuple[int, ...], high: tuple[int, ...] | None = None) -> bool:
        """Looks for the best options of an allocation, or of all between two, and keeps them if they beat what is
        known. Whether they are fathomed: not where some could be better with more devices than the least."""
        high = high or low
        if low == high:
            if (blocks, low) in self._fathomed:
                return True
            self._fathomed.add((blocks, low))
            if not self.boxes.packed(blocks, low):
                return True
        self.incumbent.looked += 1
        choices = self.bounds.choices(blocks, high)
        if choices is None:
            return True
        if self.incumbent.spare:
            # Plans that leave memory come first: they keep those out that are not much better.
            Fathoming(self.bounds, self.watch, blocks, low, choices, tight=False).run()
        return Fathoming(self.bounds, self.watch, blocks, low, choices).run()


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
