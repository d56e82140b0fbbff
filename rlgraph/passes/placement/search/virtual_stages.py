"""Chooses into how many parts (virtual stages) the layers of a pipeline stage are divided: as many as are fastest.

More parts wait less and send more. With m micro-batches on p stages of v parts, t seconds of one on a stage and e that
each further part adds to it, work takes (m + (p - 1) / v) (t + (v - 1) e) seconds (`LatencyModel`), which is convex in
v: a number of parts is the best one if its neighbours are no better. Memory only grows: interleaved lists have at least
as many micro-batches in flight as 1F1B has, on each stage (`pipelines.published.in_flight`). So a number of parts with
which nothing is faster than with one is dominated by one part, and is not looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import inf
from operator import lt, neg

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.strategy import Strategy

LATE = 1.5
"""How many times as long as with fewer replicas work may take if still more are looked at: too many exchange more than
they save."""

PAYS = 0.01
"""The share of the seconds in one part that several parts have to save: they keep more memory, which caches and other
models then do not have."""


class ChunkedStrategy(Strategy):
    """A strategy whose stages have several parts of the layers: for each number of replicas as many as are fastest."""

    __slots__ = ("_best", "_divide", "_divided", "_loads", "_numbers", "_records", "plain", "sizes", "times")

    def __init__(
        self, plain: Strategy, sizes: Sequence[int], times: Sequence[float], divide: Callable[[int], Strategy]
    ) -> None:
        """plain: the strategy in one part. sizes: the numbers of parts that there can be, the least first. times: how
        often each of the tasks is done in a step. divide: returns the strategy with so many parts."""
        super().__init__(plain.deployment, plain.tasks, plain.memory, plain.idle, plain.process, plain)
        self.plain, self.sizes, self.times, self._divide = plain, sizes, times, divide
        self._divided: dict[int, Strategy] = {}
        self._best: dict[int, tuple[float, tuple[float, ...], int]] = {}
        """By the number of replicas."""
        self._records: list[int] | None = None
        self._numbers: dict[int, list[int]] = {}
        """The results of `numbers`, by the first of them."""
        self._loads: dict[int, list[float]] = {}

    @property
    def stages_wait(self) -> bool:
        return False

    def on_like_nodes(self, island: NodeGroup, alike: Strategy | None = None) -> Strategy:
        result = super().on_like_nodes(island, alike)
        assert isinstance(result, ChunkedStrategy)
        result._divide = lambda parts: self._with_parts(parts).on_like_nodes(island)
        result._divided, result._records, result._numbers = {}, None, {}
        return result

    def for_replicas(self, copies: int) -> Strategy:
        """Return the strategy with the fewest parts with which so many replicas do all tasks of a step in the fewest
        seconds."""
        _, _, place = self.fastest_division(copies)
        return self._with_parts(self.sizes[place])

    def _with_parts(self, parts: int) -> Strategy:
        return get_or_compute(self._divided, parts, lambda: self._divide(parts))

    def undominated_replica_counts(self, copies: Sequence[int], most: int) -> list[int]:
        """Return, of `records`, the fastest with at most `most` replicas, and those which that does not dominate: more
        devices have all that fewer have, or what dominates it. copies: all numbers that there can be, most first."""
        records = self.improving_replica_counts(copies)
        place = bisect_left(records, -most, key=neg)
        if place == len(records):
            return []
        first, *others = records[place:]
        if first not in self._numbers:
            (_, seconds, _), load = self.fastest_division(first), self._load(first)
            self._numbers[first] = [first] + [
                number
                for number in others
                if any(map(lt, self.fastest_division(number)[1], seconds))
                or any(map(lt, self._load(number), load))
                or self.non_tensor_bytes(number) < self.non_tensor_bytes(first)
            ]
        return self._numbers[first]

    def improving_replica_counts(self, copies: Sequence[int]) -> list[int]:
        """Return the numbers of replicas that are faster than all smaller ones, and by `PAYS` than one part, most
        first."""
        if self._records is None:
            self._records = [number for number in self._faster(copies) if number > self.beyond]
        return self._records

    def _faster(self, copies: Sequence[int]) -> Iterator[int]:
        numbers, least = [], inf
        for number in reversed(copies):
            total, _, _ = self.fastest_division(number)
            if total > LATE * least:
                break
            if total < least:
                least = total
                if total < (1 - PAYS) * self._total(self.plain.task_seconds(number)):
                    numbers.append(number)
        return reversed(numbers)

    def _load(self, copies: int) -> list[float]:
        def compute_load() -> list[float]:
            parts = self.sizes[self.fastest_division(copies)[2]]
            return [*chain.from_iterable(model.replica_load(copies, parts) for model in self.memory)]

        return get_or_compute(self._loads, copies, compute_load)

    def fastest_division(self, copies: int) -> tuple[float, tuple[float, ...], int]:
        """Return the seconds of all tasks of a step, and of each once, and the place among `sizes` of the parts."""
        if copies not in self._best:
            place = next(reversed(self._best.values()))[2] if self._best else 0
            least, seconds = self._taken(copies, place)
            for direction in (1, -1):
                while 0 <= place + direction < len(self.sizes):
                    total, task_seconds = self._taken(copies, place + direction)
                    if total > least or total == least and direction > 0:
                        break
                    place, least, seconds = place + direction, total, task_seconds
            self._best[copies] = least, seconds, place
        return self._best[copies]

    def _taken(self, copies: int, place: int) -> tuple[float, tuple[float, ...]]:
        seconds = tuple([task.seconds_with_chunks(copies, self.sizes[place]) for task in self.tasks])
        return self._total(seconds), seconds

    def _total(self, seconds: Sequence[float]) -> float:
        return sum([once * times for once, times in zip(seconds, self.times, strict=True)])
