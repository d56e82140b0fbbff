"""Into how many parts the layers of a stage are divided: as many as are fastest.

More parts wait less and send more. With m micro-batches on p stages of v parts, t seconds of one on a stage and e that
each further part adds to it, work takes (m + (p - 1) / v) (t + (v - 1) e) seconds (`LatencyModel`), which is convex in
v: a number of parts is the best one if its neighbours are no better. Memory only grows: interleaved lists have at least
as many micro-batches in flight as 1F1B has, on each stage (`pipelines.published.in_flight`). So parts with which
nothing is faster than in one are beaten by that, and are not looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import inf
from operator import lt, neg

from rlgraph.passes.placement.search.option import Strategy

PAYS = 0.01
"""Share of the seconds in one part by which several have to take fewer: they keep more, which is room that caches and
other models do not have."""


class Parted(Strategy):
    """A split whose stages have several parts of the layers: for each number of copies as many as are fastest."""

    __slots__ = ("_best", "_divide", "_divided", "_loads", "_numbers", "_records", "plain", "sizes", "times")

    def __init__(
        self, plain: Strategy, sizes: Sequence[int], times: Sequence[float], divide: Callable[[int], Strategy]
    ) -> None:
        """plain: in one part. sizes: numbers of parts that there can be, the least first. times: how often each of the
        tasks is done in a step. divide: makes the strategy of so many parts."""
        super().__init__(plain.deployment, plain.tasks, plain.memory, plain.idle, plain.process, plain)
        self.plain, self.sizes, self.times, self._divide = plain, sizes, times, divide
        self._divided: dict[int, Strategy] = {}
        self._best: dict[int, tuple[float, tuple[float, ...], int]] = {}
        """By the copies."""
        self._records: list[int] | None = None
        self._numbers: dict[int, list[int]] = {}
        """`numbers`, by the first of them."""
        self._loads: dict[int, list[float]] = {}

    def at(self, copies: int) -> Strategy:
        """In the parts with which so many copies do all tasks of a step in the fewest seconds; the fewest of these."""
        _, _, place = self.fastest(copies)
        parts = self.sizes[place]
        if parts not in self._divided:
            self._divided[parts] = self._divide(parts)
        return self._divided[parts]

    def numbers(self, copies: Sequence[int], most: int) -> list[int]:
        """Of `records` the fastest with at most so many copies, and those which that does not beat: more devices have
        all that fewer have, or what beats it. copies: all numbers that there can be, most first."""
        records = self.records(copies)
        place = bisect_left(records, -most, key=neg)
        if place == len(records):
            return []
        first, *others = records[place:]
        if first not in self._numbers:
            (_, seconds, _), load = self.fastest(first), self._load(first)
            self._numbers[first] = [first] + [
                each
                for each in others
                if any(map(lt, self.fastest(each)[1], seconds))
                or any(map(lt, self._load(each), load))
                or self.held(each) < self.held(first)
            ]
        return self._numbers[first]

    def records(self, copies: Sequence[int]) -> list[int]:
        """Numbers of copies that are faster than all smaller ones, and by `PAYS` than one part, most first."""
        if self._records is None:
            self._records = [each for each in self._faster(copies) if each > self.beyond]
        return self._records

    def _faster(self, copies: Sequence[int]) -> Iterator[int]:
        found, least = [], inf
        for each in reversed(copies):
            total, _, _ = self.fastest(each)
            if total < least:
                least = total
                if total < (1 - PAYS) * self._total(self.plain.seconds(each)):
                    found.append(each)
        return reversed(found)

    def _load(self, copies: int) -> list[float]:
        if copies not in self._loads:
            parts = self.sizes[self.fastest(copies)[2]]
            self._loads[copies] = [*chain.from_iterable(each.load(copies, parts) for each in self.memory)]
        return self._loads[copies]

    def fastest(self, copies: int) -> tuple[float, tuple[float, ...], int]:
        """Seconds of all tasks of a step, and of each once, and the place among `sizes` of the parts."""
        if copies not in self._best:
            place = next(reversed(self._best.values()))[2] if self._best else 0
            least, seconds = self._taken(copies, place)
            for way in (1, -1):
                while 0 <= place + way < len(self.sizes):
                    total, taken = self._taken(copies, place + way)
                    if total > least or total == least and way > 0:
                        break
                    place, least, seconds = place + way, total, taken
            self._best[copies] = least, seconds, place
        return self._best[copies]

    def _taken(self, copies: int, place: int) -> tuple[float, tuple[float, ...]]:
        seconds = tuple([task.in_parts(copies, self.sizes[place]) for task in self.tasks])
        return self._total(seconds), seconds

    def _total(self, seconds: Sequence[float]) -> float:
        return sum([each * often for each, often in zip(seconds, self.times, strict=True)])
