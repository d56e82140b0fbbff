"""Lower bounds that count the memory that the components of a pool share: not all of them can have their fastest
options at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np

from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.bounds import Bounds
from rlgraph.passes.placement.search.candidates import Candidates, Choices
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.job_stage_bounds import arrival_seconds, stage_seconds
from rlgraph.passes.placement.search.pool_knapsack import PoolKnapsack

RELAXED = 0.25
"""How many bounds that do not count memory can be computed in the time of one relaxation."""


class MemoryBounds:
    """The bounds of some allocations: one for each pool whose fastest options have no room together.

    A step takes at least what is done between its stages, and for each stage what one of the pools is busy. Of one pool
    those stages count in which it may be the busiest one; of the other stages that counts what others are busy.
    """

    def __init__(
        self, bounds: Bounds, blocks: Blocks, devices: Sequence[int], choices: Choices, rooms: Sequence[float]
    ) -> None:
        """devices: the fewest of each pool. choices: all options that there may be. rooms: for each pool the bytes of a
        device."""
        self.bounds, problem = bounds, bounds.problem
        self.value_of_second = problem.objective_value(1.0, blocks, devices)
        self.value = 0.0
        """No plan has a smaller one."""
        self.pools: list[tuple[PoolKnapsack, float]] = []
        """For each of these pools its bound, and the seconds of a step that are counted besides."""
        members = [{number: choices[number] for number in block.components} for block in blocks]
        full = [
            pool
            for pool, (member, room) in enumerate(zip(members, rooms, strict=True))
            if not _have_room([*member.values()], room)
        ]
        if not full:
            return
        arrivals, loads = arrival_seconds(bounds, blocks, choices), [stage_seconds(problem, some) for some in members]
        for pool in full:
            others = list(map(max, zip(arrivals, *loads[:pool], *loads[pool + 1 :], strict=True)))
            # Where steps overlap, a pool does one stage while others do the next.
            overlap = bool(problem.staleness_steps)
            counted = [overlap or load >= other for load, other in zip(loads[pool], others, strict=True)]
            besides = 0.0 if overlap else problem.host_seconds_between_stages
            besides += sum(other for other, own in zip(others, counted, strict=True) if not own)
            self.add_pool(members[pool], counted, rooms[pool], besides)

    def add_pool(self, members: Choices, counted: Sequence[bool], room: float, besides: float) -> None:
        """Add the bound of a pool. counted: whether each stage of its work counts."""
        problem = self.bounds.problem
        shares = {job: float(own) for own, stage in zip(counted, problem.job_stages, strict=True) for job in stage}
        count = len(problem.sync_pairs)
        counted_tasks = {
            number: [shares[count + task] for task in problem.components[number].tasks] for number in members
        }
        key = (*members.items(), *counted, room)
        knapsack = get_or_compute(
            self.bounds.knapsacks, key, lambda: self.make_knapsack(members, counted_tasks, room, besides)
        )
        self.pools.append((knapsack, besides))
        self.value = max(self.value, self.value_of_second * (knapsack.seconds + besides))

    def make_knapsack(
        self, members: Choices, counted: Mapping[int, Sequence[float]], room: float, besides: float
    ) -> PoolKnapsack:
        """Return the bound of a pool's seconds, and count the work."""
        enough = self.bounds.incumbent.good_enough_bound() / self.value_of_second - besides
        knapsack = PoolKnapsack(members, counted, room, enough)
        self.bounds.problem.options.bounds_computed += RELAXED * knapsack.relaxations
        return knapsack

    def narrowed(self, choices: Choices, last: int) -> MemoryBounds:
        """Return the bounds of choices among these, with prices of its own for the pool of the component `last`."""
        result = copy(self)
        result.pools = []
        for knapsack, besides in self.pools:
            if last in knapsack.counted:
                members = {number: choices[number] for number in knapsack.counted}
                knapsack = self.make_knapsack(members, knapsack.counted, knapsack.room, besides)
                result.value = max(self.value, self.value_of_second * (knapsack.seconds + besides))
            result.pools.append((knapsack, besides))
        return result

    def least_value(self, choices: Choices) -> float:
        """Return a bound of choices among these, which is quick to compute."""
        seconds = [knapsack.least_seconds(choices) + besides for knapsack, besides in self.pools]
        return self.value_of_second * max(seconds, default=0.0)

    def least_values_with(self, number: int, choices: Choices) -> np.ndarray | None:
        """Return such a bound for each option of a component; None where there is none."""
        for knapsack, besides in self.pools:
            if number in knapsack.counted:
                return self.value_of_second * (knapsack.least_seconds_with(number, choices) + besides)
        return None


def _have_room(members: Sequence[Candidates], room: float) -> bool:
    """Return whether the fastest options have room together."""
    resident, additional = 0.0, 0.0
    for candidates in members:
        seconds, kept, extra = candidates.columns
        fastest = seconds.sum(axis=1).argmin()
        resident, additional = resident + kept[fastest], max(additional, extra[fastest])
    return len(members) < 2 or resident + additional <= room
