"""In which order the sources of a mixture take turns.

Weights 0.8 and 0.2 give turns 0 0 1 0 0, again and again: after any number of rows each source has had its share,
less than a row more or less. So how many rows of each have been read follows from how many have been read, and a run
that is resumed goes on with the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm


@dataclass(frozen=True, slots=True)
class Mixture:
    """The sources in a data source that has the rows of several, one source behind the other."""

    ends: Sequence[int]
    """For each source the number of the row behind its last one."""
    weights: Sequence[Fraction]
    """For each source its share of the rows that are read; together 1."""
    shuffled: Sequence[bool]
    """For each source whether its rows are read in another order each time."""

    def rows_by_source(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return these numbers of rows by source."""
        starts = [0, *self.ends[:-1]]
        return [[n for n in numbers if start <= n < end] for start, end in zip(starts, self.ends, strict=True)]


@dataclass(slots=True)
class Turns:
    """The turns of the sources. They repeat after as many rows as the weights have for a common denominator; so far
    they are known only for the rows that somebody has asked for.

    At each turn every source is owed its weight, and the one that is owed most has it (smooth weighted round robin).
    """

    weights: Sequence[Fraction]
    _shares: list[int] = field(init=False)
    _period: int = field(init=False)
    _owed: list[int] = field(init=False)
    _turns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._period = lcm(*(weight.denominator for weight in self.weights))
        self._shares = [int(weight * self._period) for weight in self.weights]
        self._owed = [0] * len(self.weights)

    def source_at(self, place: int) -> int:
        """Return the number of the source that the row at this place of the mixture is of."""
        return self._known(place % self._period + 1)[place % self._period]

    def counts_before(self, place: int) -> list[int]:
        """Return how many rows of each source come before this place."""
        whole, rest = divmod(place, self._period)
        begun = self._known(rest)[:rest]
        return [whole * share + begun.count(source) for source, share in enumerate(self._shares)]

    def _known(self, count: int) -> list[int]:
        """Return at least the first `count` turns."""
        owed, turns = self._owed, self._turns
        while len(turns) < count:
            for source, share in enumerate(self._shares):
                owed[source] += share
            chosen = owed.index(max(owed))
            owed[chosen] -= self._period
            turns.append(chosen)
        return turns
