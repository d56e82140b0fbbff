"""When each task of a step starts and ends, and the least time that a step can take.

A task asks for its pools when all that it waits for is done, and pools serve in the order of asking: as the executor
does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True)
class Order:
    """Which tasks wait for which, worked out once for all timetables of a step."""

    after: tuple[tuple[int, ...], ...]
    """For each task those that it waits for, all with smaller numbers."""
    before: tuple[tuple[int, ...], ...]
    """For each task those that wait for it."""
    above: tuple[tuple[int, ...], ...]
    """For each task all that come before it, at any distance."""

    @classmethod
    def of(cls, after: Sequence[Sequence[int]]) -> Order:
        before: list[list[int]] = [[] for _ in after]
        above: list[set[int]] = []
        for number, others in enumerate(after):
            for other in others:
                before[other].append(number)
            above.append(set(others).union(*(above[other] for other in others)))
        return cls(tuple(map(tuple, after)), tuple(map(tuple, before)), tuple(tuple(sorted(each)) for each in above))


Pools = Sequence[tuple[int, ...]]
"""For each task the pools that it has while it runs."""


def starts(order: Order, seconds: Sequence[float], pools: Pools) -> list[float]:
    """When each task starts."""
    waiting = [len(others) for others in order.after]
    ready = [(0.0, number) for number, count in enumerate(waiting) if not count]
    heapify(ready)
    asked = [0.0] * len(seconds)
    free: dict[int, float] = {}
    found = [0.0] * len(seconds)
    while ready:
        at, number = heappop(ready)
        for pool in pools[number]:
            at = max(at, free.get(pool, 0.0))
        found[number] = at
        end = at + seconds[number]
        for pool in pools[number]:
            free[pool] = end
        for later in order.before[number]:
            waiting[later] -= 1
            asked[later] = max(asked[later], end)
            if not waiting[later]:
                heappush(ready, (asked[later], later))
    return found


def makespan(order: Order, seconds: Sequence[float], pools: Pools) -> float:
    """Seconds of the step."""
    found = starts(order, seconds, pools)
    return max((start + length for start, length in zip(found, seconds, strict=True)), default=0.0)


Chains = tuple[tuple[tuple[int, ...], ...], ...]
"""For each task, and after the last one for the end of the step, the tasks before it that share a pool, pool by
pool."""


def chains(order: Order, pools: Pools, count: int) -> Chains:
    """What is done one after the other before a task can start; `count`: of the pools."""
    found = []
    for above in (*order.above, tuple(range(len(pools)))):
        shared = [tuple(number for number in above if pool in pools[number]) for pool in range(count)]
        found.append(tuple(chain for chain in shared if len(chain) > 1))
    return tuple(found)


def bound(order: Order, seconds: Sequence[float], chained: Chains) -> float:
    """A time that no order of the tasks can beat: on a pool, all that come before a task are done one after the other.
    It does not fall when a task takes longer."""
    earliest: list[float] = []
    ends: list[float] = []
    for number, length in enumerate(seconds):
        at = 0.0
        for other in order.after[number]:
            if ends[other] > at:
                at = ends[other]
        at = _loaded(at, chained[number], earliest, seconds)
        earliest.append(at)
        ends.append(at + length)
    found = _loaded(max(ends, default=0.0), chained[-1], earliest, seconds)
    return _followed(found, order, chained[-1], earliest, seconds)


def _loaded(at: float, chained: Sequence[Sequence[int]], earliest: Sequence[float], seconds: Sequence[float]) -> float:
    """When a pool at the earliest is done with some tasks, or a time that is later. Those that cannot start before some
    time are done after it, one after the other."""
    for chain in chained:
        total = 0.0
        for number in sorted(chain, key=earliest.__getitem__, reverse=True):
            total += seconds[number]
            if earliest[number] + total > at:
                at = earliest[number] + total
    return at


def _followed(
    found: float, order: Order, chained: Sequence[Sequence[int]], earliest: Sequence[float], seconds: Sequence[float]
) -> float:
    """The same for the whole step: after the last of some tasks of a pool comes at least the least of what follows any
    of them (the bound of one machine with heads and tails, Carlier 1982)."""
    after = [0.0] * len(seconds)
    for number in range(len(seconds) - 1, -1, -1):
        for later in order.before[number]:
            if seconds[later] + after[later] > after[number]:
                after[number] = seconds[later] + after[later]
    for chain in chained:
        late = sorted(chain, key=earliest.__getitem__, reverse=True)
        for least in {after[number] for number in chain if after[number] > 0}:
            total = 0.0
            for number in late:
                if after[number] >= least:
                    total += seconds[number]
                    if earliest[number] + total + least > found:
                        found = earliest[number] + total + least
    return found
