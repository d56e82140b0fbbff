"""Computes when each task of a step starts and ends, and a lower bound of the time of a step.

A task requests its pools when all tasks that it waits for are done, and pools serve requests in order, as the executor
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush

Pools = Sequence[tuple[int, ...]]
"""For each task, the pools that it occupies while it runs."""


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """Which tasks wait for which, computed once for all timetables of a step."""

    after: tuple[tuple[int, ...], ...]
    """For each task, the tasks that it waits for."""
    before: tuple[tuple[int, ...], ...]
    """For each task, the tasks that wait for it."""
    above: tuple[tuple[int, ...], ...]
    """For each task, all tasks before it, at any distance."""
    sequence: tuple[int, ...]
    """All tasks, each after the tasks that it waits for."""
    late: frozenset[int] = frozenset()
    """Tasks that request their pools after all others that do so at the same time."""

    @classmethod
    def from_dependencies(cls, after: Sequence[Sequence[int]], late: frozenset[int] = frozenset()) -> TaskOrder:
        """Return the order of tasks that wait for the given others."""
        before: list[list[int]] = [[] for _ in after]
        for number, inputs in enumerate(after):
            for earlier in inputs:
                before[earlier].append(number)
        sequence = tuple(TopologicalSorter(dict(enumerate(after))).static_order())
        above: list[set[int]] = [set() for _ in after]
        for number in sequence:
            above[number] = set(after[number]).union(*(above[earlier] for earlier in after[number]))
        return cls(
            tuple(map(tuple, after)),
            tuple(map(tuple, before)),
            tuple(tuple(sorted(numbers)) for numbers in above),
            sequence,
            late,
        )

    def with_pool_order(self, pools: Pools, lasting: Sequence[bool]) -> TaskOrder:
        """Return the order with what follows from pools that serve requests in order: however long tasks take, of two
        tasks on one pool the one whose inputs end first runs first.

        pools: empty for a task whose pools are unknown. lasting: for each task whether it takes any time.
        """
        after = [set(inputs) for inputs in self.after]
        while True:
            order = TaskOrder.from_dependencies([sorted(inputs) for inputs in after])
            more = [
                (number, earlier)
                for number, pools_of in enumerate(pools)
                for earlier, pools_before in enumerate(pools)
                if earlier != number
                and not {*pools_of}.isdisjoint(pools_before)
                and earlier not in order.above[number]
                and self._requests_first(earlier, number, order, lasting)
            ]
            if not more:
                return order
            for number, earlier in more:
                after[number].add(earlier)

    def _requests_first(self, task: int, later: int, order: TaskOrder, lasting: Sequence[bool]) -> bool:
        """Return whether a task requests its pools before a later one does; of two at the same time the one with the
        smaller number is first."""
        needed = {*self.after[task]}
        for last in self.after[later]:
            if lasting[last] and needed.issubset(order.above[last]):
                return True
        ended = {*self.after[later]}.union(*(order.above[last] for last in self.after[later]))
        return (task in self.late, task) < (later in self.late, later) and needed.issubset(ended)


def start_times(order: TaskOrder, seconds: Sequence[float], pools: Pools) -> list[float]:
    """Return when each task starts."""
    waiting = [len(inputs) for inputs in order.after]
    ready = [(0.0, number in order.late, number) for number, count in enumerate(waiting) if not count]
    heapify(ready)
    asked = [0.0] * len(seconds)
    free: dict[int, float] = {}
    begins = [0.0] * len(seconds)
    while ready:
        at, _, number = heappop(ready)
        for pool in pools[number]:
            at = max(at, free.get(pool, 0.0))
        begins[number] = at
        end = at + seconds[number]
        for pool in pools[number]:
            free[pool] = end
        for later in order.before[number]:
            waiting[later] -= 1
            asked[later] = max(asked[later], end)
            if not waiting[later]:
                heappush(ready, (asked[later], later in order.late, later))
    return begins


def makespan(order: TaskOrder, seconds: Sequence[float], pools: Pools) -> float:
    """Return the seconds of the step."""
    begins = start_times(order, seconds, pools)
    return max((start + length for start, length in zip(begins, seconds, strict=True)), default=0.0)


Chains = tuple[tuple[tuple[int, ...], ...], ...]
"""For each task, and at the end for the end of the step, the earlier tasks that share a pool, pool by pool."""


def pool_task_chains(order: TaskOrder, pools: Pools, count: int) -> Chains:
    """Return the tasks of each pool that run one after the other before a task can start; `count` is the number of
    pools."""
    by_task = []
    for above in (*order.above, tuple(range(len(pools)))):
        shared = [tuple(number for number in above if pool in pools[number]) for pool in range(count)]
        by_task.append(tuple(chain for chain in shared if len(chain) > 1))
    return tuple(by_task)


def step_seconds_lower_bound(order: TaskOrder, seconds: Sequence[float], chained: Chains) -> float:
    """Return a lower bound of the time for any order of the tasks: on a pool, all tasks that come before a task run
    one after the other. The bound does not fall when a task takes longer."""
    earliest = [0.0] * len(seconds)
    ends = [0.0] * len(seconds)
    for number in order.sequence:
        at = 0.0
        for earlier in order.after[number]:
            if ends[earlier] > at:
                at = ends[earlier]
        at = _loaded(at, chained[number], earliest, seconds)
        earliest[number] = at
        ends[number] = at + seconds[number]
    end = _loaded(max(ends, default=0.0), chained[-1], earliest, seconds)
    return _followed(end, order, chained[-1], earliest, seconds)


def _loaded(at: float, chained: Sequence[Sequence[int]], earliest: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the earliest time when each pool can be done with its tasks, or `at` if that is later. Tasks that cannot
    start before some time run after it, one after the other."""
    for chain in chained:
        total = 0.0
        for number in sorted(chain, key=earliest.__getitem__, reverse=True):
            total += seconds[number]
            if earliest[number] + total > at:
                at = earliest[number] + total
    return at


def _followed(
    end: float, order: TaskOrder, chained: Sequence[Sequence[int]], earliest: Sequence[float], seconds: Sequence[float]
) -> float:
    """Return this bound for the whole step: after the last of some tasks of a pool comes at least the shortest tail of
    them (the bound of one machine with heads and tails, Carlier 1982)."""
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
                    if earliest[number] + total + least > end:
                        end = earliest[number] + total + least
    return end
