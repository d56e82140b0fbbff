"""When each task of a step starts and ends, and the least time that a step can take.

A task asks for its pools when all that it waits for is done, and pools serve in the order of asking: as the executor
does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush

Pools = Sequence[tuple[int, ...]]
"""For each task the pools that it has while it runs."""


@dataclass(frozen=True, slots=True)
class Order:
    """Which tasks wait for which, worked out once for all timetables of a step."""

    after: tuple[tuple[int, ...], ...]
    """For each task those that it waits for."""
    before: tuple[tuple[int, ...], ...]
    """For each task those that wait for it."""
    above: tuple[tuple[int, ...], ...]
    """For each task all that come before it, at any distance."""
    sequence: tuple[int, ...]
    """All tasks, each after those that it waits for."""
    late: frozenset[int] = frozenset()
    """Tasks that ask for their pools after all others that do so at the same time."""

    @classmethod
    def of(cls, after: Sequence[Sequence[int]], late: frozenset[int] = frozenset()) -> Order:
        before: list[list[int]] = [[] for _ in after]
        for number, others in enumerate(after):
            for other in others:
                before[other].append(number)
        sequence = tuple(TopologicalSorter(dict(enumerate(after))).static_order())
        above: list[set[int]] = [set() for _ in after]
        for number in sequence:
            above[number] = set(after[number]).union(*(above[other] for other in after[number]))
        return cls(
            tuple(map(tuple, after)),
            tuple(map(tuple, before)),
            tuple(tuple(sorted(each)) for each in above),
            sequence,
            late,
        )

    def served(self, pools: Pools, lasting: Sequence[bool]) -> Order:
        """With what follows from pools that serve in the order of asking: whatever the tasks take, of two on one pool
        the one whose predecessors end first is done first.

        pools: none where they are not known. lasting: for each task whether it takes any time.
        """
        after = [set(others) for others in self.after]
        while True:
            known = Order.of([sorted(others) for others in after])
            more = [
                (number, other)
                for number, own in enumerate(pools)
                for other, others in enumerate(pools)
                if other != number
                and not {*own}.isdisjoint(others)
                and other not in known.above[number]
                and self._asks_first(other, number, known, lasting)
            ]
            if not more:
                return known
            for number, other in more:
                after[number].add(other)

    def _asks_first(self, task: int, later: int, known: Order, lasting: Sequence[bool]) -> bool:
        """Whether a task asks for its pools before another one does; of two at the same time the one with the smaller
        number is first."""
        needed = {*self.after[task]}
        for last in self.after[later]:
            if lasting[last] and needed.issubset(known.above[last]):
                return True
        ended = {*self.after[later]}.union(*(known.above[last] for last in self.after[later]))
        return task < later and needed.issubset(ended)


def starts(order: Order, seconds: Sequence[float], pools: Pools) -> list[float]:
    """When each task starts."""
    waiting = [len(others) for others in order.after]
    ready = [(0.0, number in order.late, number) for number, count in enumerate(waiting) if not count]
    heapify(ready)
    asked = [0.0] * len(seconds)
    free: dict[int, float] = {}
    found = [0.0] * len(seconds)
    while ready:
        at, _, number = heappop(ready)
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
                heappush(ready, (asked[later], later in order.late, later))
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
    earliest = [0.0] * len(seconds)
    ends = [0.0] * len(seconds)
    for number in order.sequence:
        at = 0.0
        for other in order.after[number]:
            if ends[other] > at:
                at = ends[other]
        at = _loaded(at, chained[number], earliest, seconds)
        earliest[number] = at
        ends[number] = at + seconds[number]
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
    for number in reversed(order.sequence):
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
