"""The sizes that a generating engine's cache can have: what is left beside all else, at most what its rows can fill."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlgraph.passes.placement.search.option import Strategy

STEP = 2 ** (1 / 64)
"""How many times as large as the one before a size is that is tried."""


class Caches:
    """Of one split, by their numbers: 0 is the smallest, which the longest row fills."""

    def __init__(self, smallest: Strategy, made: Callable[[int, int], Strategy]) -> None:
        """made: the split with the cache of a number and so many bytes."""
        self.smallest, self.made = smallest.deployment.kv_bytes, made
        self._strategies = {0: smallest}

    def size(self, number: int) -> int:
        """Bytes."""
        return int(self.smallest * STEP**number)

    def below(self, size: float) -> int:
        """The number of the largest that has so many bytes at most; 0 has no more."""
        return max(0, int(math.log(max(1.0, size / self.smallest), STEP) + 1e-6))

    def over(self, size: float) -> Strategy:
        """The split with the smallest cache that has so many bytes at least."""
        return self.strategy(max(0, math.ceil(math.log(max(1.0, size / self.smallest), STEP) - 1e-6)))

    def strategy(self, number: int) -> Strategy:
        """The split with the cache of a number, worked out once."""
        if number not in self._strategies:
            self._strategies[number] = self.made(number, self.size(number))
        return self._strategies[number]
