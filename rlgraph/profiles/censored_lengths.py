"""Estimates the distribution of lengths some of which are only known to be longer: answers that were cut at a limit.

Observed lengths are used as they are, by the estimator of Kaplan and Meier (1958), which is the plain distribution if
nothing was cut. Beyond the longest limit nothing was observed: there it is a log-normal distribution, fitted by maximum
likelihood, where a row that was cut counts as one that is longer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import NormalDist

from rlgraph.passes.cost.lengths import LONGEST, STEPS, Lengths

ROUNDS = 1000
"""The most rounds of the fit, which needs more the more rows were cut."""
PIECES = 1024
"""The number of equal shares of the rows that were cut at the longest limit."""


@dataclass(frozen=True)
class CensoredLengths:
    """The lengths of rows of one kind, of which there is at least one."""

    ended: Sequence[int]
    """The number of tokens of each row that came to its end."""
    cut: Sequence[int] = ()
    """The number of tokens of each row that was cut: it would have been longer."""

    @property
    def row_count(self) -> int:
        """Return the number of rows."""
        return len(self.ended) + len(self.cut)

    @property
    def longest(self) -> int:
        """Return the longest length that was seen, in tokens."""
        return max([*self.ended, *self.cut])

    @cached_property
    def log_length_distribution(self) -> NormalDist | None:
        """Return the distribution of the logarithm; None for fewer than two lengths that ended, which have no
        spread."""
        if len(set(self.ended)) < 2:
            return None
        logarithms = [math.log(max(length, 1)) for length in self.ended]
        first, second = sum(logarithms), sum(value * value for value in logarithms)
        limits = [(math.log(max(length, 1)), count) for length, count in Counter(self.cut).items()]
        mean = first / len(logarithms)
        normal = NormalDist(mean, math.sqrt(max(second / len(logarithms) - mean * mean, 1e-12)))
        for _ in range(ROUNDS if limits else 0):
            # Expectation-maximization: each row that was cut has the moments of a normal that lies above its limit.
            total, squares = first, second
            for limit, count in limits:
                step = (limit - normal.mean) / normal.stdev
                hazard = _hazard(step)
                middle = normal.mean + normal.stdev * hazard
                total += count * middle
                squares += count * (normal.stdev**2 * (1 + step * hazard - hazard * hazard) + middle * middle)
            mean = total / self.row_count
            better = NormalDist(mean, math.sqrt(max(squares / self.row_count - mean * mean, 1e-12)))
            if abs(better.mean - normal.mean) + abs(better.stdev - normal.stdev) < 1e-9:
                break
            normal = better
        return normal

    @cached_property
    def fit_distance(self) -> float:
        """Return the largest difference between both distributions, as shares of rows (Kolmogorov and Smirnov's); 0
        without a fit."""
        fit, below, most = self.log_length_distribution, 0.0, 0.0
        if fit is None:
            return most
        for length, mass in self._seen():
            # A whole number represents the interval of half a token around it.
            most = max(most, abs(below - fit.cdf(math.log(max(length - 0.5, 0.5)))))
            below += mass
            most = max(most, abs(below - fit.cdf(math.log(length + 0.5))))
        return most

    def estimated_lengths(self) -> Lengths:
        """Return the estimated distribution of the lengths."""
        if not self.cut:
            return Lengths.from_lengths(self.ended)
        return Lengths.from_lengths(_quantiles([*self._seen(), *self._beyond()]))

    def _seen(self) -> Iterator[tuple[int, float]]:
        """Yield each length that ended, ascending, with its share of the rows."""
        cut, left, risk = Counter(self.cut), 1.0, self.row_count
        for length, equal in groupby(sorted([*self.ended, *cut])):
            ended = sum(1 for _ in equal) - (length in cut)
            if ended:
                yield length, left * ended / risk
                left *= 1 - ended / risk
            risk -= ended + cut[length]

    def _beyond(self) -> Iterator[tuple[float, float]]:
        """Yield the lengths and shares of the rows that are longer than anything that was seen."""
        left = 1 - sum(mass for _, mass in self._seen())
        if left < 1e-12:
            return
        limit, fit = max(self.cut), self.log_length_distribution
        over = 0.0 if fit is None else 1 - fit.cdf(math.log(max(limit, 1)))
        for piece in range(PIECES):
            # Without a fit only the limit is known.
            longer = float(limit)
            if fit is not None and over > 1e-12:
                longer = math.exp(min(fit.inv_cdf(1 - over * (1 - (piece + 0.5) / PIECES)), math.log(LONGEST)))
            yield max(limit, longer), left / PIECES


def _hazard(step: float) -> float:
    """Return the normal density divided by the mass above; far out, where both are 0, its bound."""
    normal = NormalDist()
    above = normal.cdf(-step)
    return normal.pdf(step) / above if above > 1e-300 else step + 1 / step


def _quantiles(atoms: Sequence[tuple[float, float]]) -> Iterator[float]:
    """Yield the means of equal shares of atoms (value, share of all rows), ascending."""
    parts = iter(atoms)
    length, mass = next(parts)
    scale = STEPS / sum(mass for _, mass in atoms)
    mass *= scale
    for _ in range(STEPS):
        share, total = 1.0, 0.0
        while share > 0:
            part = min(share, mass)
            total, share, mass = total + part * length, share - part, mass - part
            if mass <= 1e-12 and share > 0:
                following = next(parts, None)
                if following is None:
                    # This was the last piece, but for the rounding of sums.
                    total, share = total + share * length, 0.0
                else:
                    length, mass = following[0], following[1] * scale
        yield total
