"""The sizes that a generating engine's cache can have: at most what is left by everything else, and what its rows can
fill."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from rlgraph.passes.memo import get_or_compute

STEP = 2 ** (1 / 64)
"""The ratio of each size that is tried to the one before."""

Strategy = TypeVar("Strategy")


class KVCacheSizes(Generic[Strategy]):
    """The caches of one split by number: 0 is the smallest, which the longest row fills."""

    def __init__(self, smallest: int, strategy: Strategy, made: Callable[[int, int], Strategy]) -> None:
        """smallest: bytes of the smallest cache. strategy: the split with it. made: returns the split with the cache of
        a number and a size in bytes."""
        self.smallest, self.make_strategy = smallest, made
        self._strategies = {0: strategy}

    def size_bytes(self, number: int) -> int:
        """Return the bytes of the cache of a number."""
        return int(self.smallest * STEP**number)

    def largest_number_within(self, size: float) -> int:
        """Return the number of the largest cache of at most `size` bytes; 0 if there is none."""
        return max(0, int(math.log(max(1.0, size / self.smallest), STEP) + 1e-6))

    def strategy_with_cache_at_least(self, size: float) -> Strategy:
        """Return the split with the smallest cache of at least `size` bytes."""
        return self.strategy_with_cache(max(0, math.ceil(math.log(max(1.0, size / self.smallest), STEP) - 1e-6)))

    def strategy_with_cache(self, number: int) -> Strategy:
        """Return the split with the cache of a number, computed once."""
        return get_or_compute(self._strategies, number, lambda: self.make_strategy(number, self.size_bytes(number)))
