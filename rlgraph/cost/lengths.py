"""How long rows are: a distribution of lengths in tokens, by its quantiles."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

STEPS = 256
"""Quantiles that stand for a distribution."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Quantiles in the middle of equal shares, ascending: one value for a constant length."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, lengths: Iterable[float]) -> Lengths:
        """Of rows that are there. Of more than `STEPS` rows the quantiles are kept."""
        found = sorted(lengths) or [0.0]
        if len(found) > STEPS:
            found = [_mean(found, share / STEPS, (share + 1) / STEPS) for share in range(STEPS)]
        return cls(tuple(found))

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def square(self) -> float:
        """Mean of the squares."""
        return sum(value * value for value in self.values) / len(self.values)

    @property
    def longest(self) -> float:
        return self.values[-1]

    def at(self, share: float) -> float:
        """The length that this share of the rows does not exceed, linear between quantiles."""
        place = share * len(self.values) - 0.5
        low = max(0, min(len(self.values) - 1, int(place)))
        high = min(len(self.values) - 1, low + 1)
        part = max(0.0, min(1.0, place - low))
        return self.values[low] + (self.values[high] - self.values[low]) * part

    def capped(self, limit: float) -> Lengths:
        """What is longer ends at the limit."""
        return Lengths(tuple(min(value, limit) for value in self.values))

    def over(self, length: float) -> float:
        """The share of rows that are longer."""
        return 1 - bisect_right(self.values, length) / len(self.values)


def _mean(ordered: list[float], start: float, stop: float) -> float:
    """Mean of the rows between two shares."""
    part = ordered[round(start * len(ordered)) : max(round(stop * len(ordered)), round(start * len(ordered)) + 1)]
    return sum(part) / len(part)
