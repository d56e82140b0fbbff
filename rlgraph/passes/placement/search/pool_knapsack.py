"""The least seconds for which a pool is busy, with options of its components that have room in its memory together.

That is a knapsack problem with a choice in each class. It is bounded by its linear relaxation, and, for any part of the
options, by what a byte is worth there (Kellerer, Pferschy and Pisinger, Knapsack Problems, 2004, chapter 11). The most
that a component needs in addition while it works is cut into ranges, each with a relaxation of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from rlgraph.passes.placement.search.candidates import Candidates, Choices

MOST_RANGES = 12

ROUNDING = 1 - 1e-12
"""Keeps bounds below what they bound."""

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of each option the seconds that count, the bytes that stay, and the most that it needs in addition."""


class _Relaxation(NamedTuple):
    """The relaxation for the choices in which the most that is needed in addition is in a range."""

    seconds: float
    low: float
    high: float
    price: float
    """Seconds for a byte."""


class PoolKnapsack:
    """The choice of an option for each component of a pool."""

    def __init__(
        self, classes: Mapping[int, Candidates], counted: Mapping[int, Sequence[float]], room: float, enough: float
    ) -> None:
        """counted: for each component the share of each of its tasks' seconds that counts. room: bytes of a device.
        enough: seconds that need not be told from more."""
        self.counted, self.room = counted, room
        columns = [self._columns(number, candidates) for number, candidates in classes.items()]
        additional = np.unique(np.concatenate([extra for _, _, extra in columns]))
        # No choice has less than the least that some component needs.
        additional = additional[additional >= max(extra.min() for _, _, extra in columns)]
        ranges = [_relaxed(columns, room, additional[0], additional[-1])]
        while len(ranges) < MOST_RANGES and (first := min(ranges)).seconds < enough:
            inside = additional[(additional >= first.low) & (additional <= first.high)]
            if len(inside) == 1:
                break
            middle = len(inside) // 2
            ranges.remove(first)
            ranges.append(_relaxed(columns, room, inside[0], inside[middle - 1]))
            ranges.append(_relaxed(columns, room, inside[middle], inside[-1]))
        self.relaxations = 2 * len(ranges) - 1
        """How many were solved."""
        self.seconds = ROUNDING * float(min(ranges).seconds)
        """No choice takes less."""
        ranges = [one for one in ranges if one.seconds < inf]
        self._high = np.array([one.high for one in ranges])
        self._price = np.array([one.price for one in ranges])
        self._paid = np.array([one.price * (room - one.low) for one in ranges])

    def least_seconds(self, choices: Choices) -> float:
        """Return seconds that no choice among these takes less than."""
        costs = [self._costs(number, choices[number]).min(axis=0) for number in self.counted]
        return ROUNDING * float((sum(costs) - self._paid).min(initial=inf))

    def least_seconds_with(self, number: int, choices: Choices) -> np.ndarray:
        """Return such seconds for each option of one component."""
        others = [self._costs(other, choices[other]).min(axis=0) for other in self.counted if other != number]
        least: np.ndarray = (self._costs(number, choices[number]) + sum(others) - self._paid).min(axis=1, initial=inf)
        return ROUNDING * least

    def _columns(self, number: int, candidates: Candidates) -> Columns:
        seconds, resident, additional = candidates.columns
        return seconds @ self.counted[number], resident, additional

    def _costs(self, number: int, candidates: Candidates) -> np.ndarray:
        """Return the seconds of each option, and what its bytes are worth: [options, ranges]."""
        if self not in candidates.costs:
            seconds, resident, additional = self._columns(number, candidates)
            costs = seconds[:, None] + resident[:, None] * self._price
            costs[additional[:, None] > self._high] = inf
            candidates.costs[self] = costs
        return candidates.costs[self]


def _relaxed(classes: Sequence[Columns], room: float, low: float, high: float) -> _Relaxation:
    """Return the relaxation for a range: from what keeps the fewest bytes on, each byte goes where it saves most."""
    seconds, left, savings = 0.0, room - low, list[tuple[float, float]]()
    for counted, resident, additional in classes:
        fit = additional <= high
        hull = _hull(counted[fit], resident[fit])
        seconds, left = seconds + hull[0][0], left - hull[0][1]
        savings += [((slow - fast) / (more - less), more - less) for (slow, less), (fast, more) in pairwise(hull)]
    if left < 0:
        return _Relaxation(inf, low, high, 0.0)
    for price, size in sorted(savings, reverse=True):
        if size > left:
            return _Relaxation(seconds - price * left, low, high, price)
        seconds, left = seconds - price * size, left - size
    return _Relaxation(seconds, low, high, 0.0)


def _hull(seconds: np.ndarray, resident: np.ndarray) -> list[tuple[float, float]]:
    """Return the seconds and bytes on the lower convex hull, the fewest bytes first, as far as seconds fall."""
    hull: list[tuple[float, float]] = []
    order = np.lexsort((seconds, resident))
    for taken, held in zip(seconds[order].tolist(), resident[order].tolist(), strict=True):
        if hull and taken >= hull[-1][0]:
            continue
        while len(hull) > 1 and _is_above(hull[-2], hull[-1], (taken, held)):
            hull.pop()
        hull.append((taken, held))
    return hull


def _is_above(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Return whether the middle one of three points is not below the line between the others."""
    return (first[0] - middle[0]) * (last[1] - first[1]) <= (first[0] - last[0]) * (middle[1] - first[1])
