"""The sizes that a generating engine's cache can have: at most what is left by everything else, and what its rows can
fill."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlgraph.passes.placement.search.option import Strategy

STEP = 2 ** (1 / 64)
"""The ratio of each size that is tried to the one before."""


class Caches:
    """The caches of one split by number: 0 is the smallest, which the longest row fills."""

    def __init__(self, smallest: Strategy, made: Callable[[int, int], Strategy]) -> None:
        """made: returns the split with the cache of a number and a size in bytes."""
        self.smallest, self.made = smallest.deployment.kv_bytes, made
        self._strategies = {0: smallest}

    def size(self, number: int) -> int:
        """Return the bytes of the cache of a number."""
        return int(self.smallest * STEP**number)

    def below(self, size: float) -> int:
        """Return the number of the largest cache of at most `size` bytes; 0 if there is none."""
        return max(0, int(math.log(max(1.0, size / self.smallest), STEP) + 1e-6))

    def over(self, size: float) -> Strategy:
        """Return the split with the smallest cache of at least `size` bytes."""
        return self.strategy(max(0, math.ceil(math.log(max(1.0, size / self.smallest), STEP) - 1e-6)))

    def strategy(self, number: int) -> Strategy:
        """Return the split with the cache of a number, computed once."""
        if number not in self._strategies:
            self._strategies[number] = self.made(number, self.size(number))
        return self._strategies[number]
