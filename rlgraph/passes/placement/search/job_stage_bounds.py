"""The least devices that each pool needs. A step has stages, none of which begins before the one before it is done, and
each takes as long as its slowest pool."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.allocation_boxes import AllocationBoxes, Box
from rlgraph.passes.placement.search.bounds import Bounds
from rlgraph.passes.placement.search.candidates import Choices
from rlgraph.passes.placement.search.colocation import Blocks, PartitionBlock
from rlgraph.passes.placement.search.problem import PlacementProblem

NEAR = 1 / 16
"""The share of a range of sizes to which the least that a pool needs is found."""


class JobStageBounds:
    """Narrows the boxes of one problem, in a search that has a plan already."""

    def __init__(self, boxes: AllocationBoxes, bounds: Bounds) -> None:
        self.boxes, self.bounds = boxes, bounds
        self.problem, self.incumbent = bounds.problem, bounds.incumbent
        self._loads: dict[tuple[tuple[int, ...], tuple[int, ...], int], Sequence[float] | None] = {}

    def tighten_box(self, blocks: Blocks, box: Box) -> Box | None:
        """Return the box without sizes with which a pool alone would make the step too long, or too dear, whatever the
        others have; None if nothing is left. Devices that a pool needs at least are taken from the others."""
        if self.incumbent.best is None:
            return box
        low, high = box
        while True:
            tops = self.boxes.rounded_up(blocks, (low, high))
            choices = self.bounds.candidates_by_component(blocks, self.boxes.pool_device_counts(blocks, tops))
            if choices is None:
                # A pool cannot hold its components, not even with the most devices that it may have.
                return None
            most = [self.pool_stage_seconds(block, place) for block, place in zip(blocks, tops, strict=True)]
            others = _most(
                [arrival_seconds(self.bounds, blocks, choices), *(each for each in most if each is not None)]
            )
            highs = high
            if self.problem.goal == "cost":
                step_s = self.least_step_seconds(others)
                highs = tuple(
                    [self.largest_affordable_place(blocks, (low, high), pool, step_s) for pool in range(len(blocks))]
                )
                if any(top < bottom for bottom, top in zip(low, highs, strict=True)):
                    return None
            lows = []
            for pool in range(len(blocks)):
                least, lost = self.smallest_size_index(blocks, (low, highs), pool, others)
                self.incumbent.note_pruned(lost)
                if least > highs[pool]:
                    return None
                lows.append(least)
            if (tuple(lows), highs) == (low, high):
                return low, high
            narrower = self.boxes.narrow_box(blocks, (tuple(lows), highs))
            if narrower is None:
                return None
            low, high = narrower

    def least_step_seconds(self, stages: Sequence[float], load: float = 0.0) -> float:
        """Return the least seconds of a step whose stages take at least so long. load: seconds that a pool is busy."""
        step_s = self.problem.host_seconds_between_stages + sum(stages)
        # With several steps in flight a pool does one stage while others do the next.
        return max(load, step_s / (self.problem.staleness_steps + 1))

    def value_of_second(self, blocks: Blocks, places: Sequence[int], pool: int, place: int) -> float:
        """Return what a second of a step is worth, with the fewest devices of all pools but one."""
        places = [*places[:pool], place, *places[pool + 1 :]]
        return self.problem.objective_value(1.0, blocks, self.boxes.pool_device_counts(blocks, places))

    def largest_affordable_place(self, blocks: Blocks, box: Box, pool: int, step_s: float) -> int:
        """Return the largest place of a pool with which a step that takes at least so long is not too dear; one less
        than the smallest of the box if it is too dear with all."""
        lows, highs = box
        low, high = lows[pool] - 1, highs[pool]
        while low < high:
            middle = (low + high + 1) // 2
            value = step_s * self.value_of_second(blocks, lows, pool, middle)
            if value < self.incumbent.good_enough_bound():
                low = middle
            else:
                self.incumbent.note_pruned(value)
                high = middle - 1
        return low

    def smallest_size_index(self, blocks: Blocks, box: Box, pool: int, others: Sequence[float]) -> tuple[int, float]:
        """Return a place of a pool's range below which it makes the step too long, or too dear, where no stage is
        shorter than in `others`; one more than the largest if it does so with all. It is the largest such place, but
        for a share `NEAR` of the range. Also return the least bound of the places below."""
        lost, bottom, top = math.inf, box[0][pool], box[1][pool]
        low, high = bottom, top + 1
        while high - low > NEAR * (top - bottom):
            middle = self.boxes.round_place(blocks[pool], low, high - 1)
            loads = self.pool_stage_seconds(blocks[pool], middle)
            value = math.inf
            if loads is not None:
                step_s = self.least_step_seconds(list(map(max, loads, others)), sum(loads))
                value = step_s * self.value_of_second(blocks, box[0], pool, low)
            if value < self.incumbent.good_enough_bound():
                high = middle
            else:
                low, lost = middle + 1, min(lost, value)
        return low, lost

    def pool_stage_seconds(self, block: PartitionBlock, place: int) -> Sequence[float] | None:
        """Return the least seconds that a pool is busy in each stage; None if its components do not fit."""
        devices = self.boxes.sizes[block.islands][place]
        key = (block.components, block.islands, devices)
        return get_or_compute(self._loads, key, lambda: self._busy(block, devices))

    def _busy(self, block: PartitionBlock, devices: int) -> Sequence[float] | None:
        fit = self.bounds.fitting_candidates(block, devices)
        if fit is None:
            return None
        return stage_seconds(self.problem, fit)


def stage_seconds(problem: PlacementProblem, choices: Choices) -> list[float]:
    """Return the least seconds that a pool of some components is busy in each stage."""
    durations = {number: candidates.least_task_seconds for number, candidates in choices.items()}
    seconds = problem.job_seconds(durations, [0.0] * len(problem.sync_pairs))
    return [sum(seconds[job] for job in stage) for stage in problem.job_stages]


def arrival_seconds(bounds: Bounds, blocks: Blocks, choices: Choices) -> list[float]:
    """Return the least seconds of each stage until its new weights have arrived."""
    home = bounds.problem.make_colocation(blocks).pool_of_component
    waits = [
        bounds.fastest_sync_seconds(source, target, choices, home)[0] for source, target in bounds.problem.sync_pairs
    ]
    return [max((waits[job] for job in stage if job < len(waits)), default=0.0) for stage in bounds.problem.job_stages]


def _most(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the largest value of each column."""
    return [max(column) for column in zip(*rows, strict=True)]
