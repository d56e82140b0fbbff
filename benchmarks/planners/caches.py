"""Options of one cache each: an option to generate stands for a range of them, which our search halves; those who try
one option after the other try some sizes of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlgraph.passes.placement.search.option import Option

SIZES = 8
"""Of a range, from its smallest to its largest, each as many times as large as the one before."""


def settled(options: Iterable[Option]) -> Iterator[Option]:
    for option in options:
        low, high = option.strategy.cache, option.high.cache
        for number in sorted({low + (high - low) * part // (SIZES - 1) for part in range(SIZES)}):
            yield option if option.has_fixed_cache else option.with_cache_range(number, number)
