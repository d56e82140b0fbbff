"""This module decides which rows of a request begin first, and on which replica of the model, where it is known how
long they are expected to be."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace


def longest_first(expected: Sequence[float]) -> list[int]:
    """Return the places of rows in the order in which they begin: the longest first, among equals the earlier one."""
    return sorted(range(len(expected)), key=lambda place: (-expected[place], place))


def balance_rows(expected: Sequence[float], copies: int) -> list[list[int]]:
    """Return for each replica the places of its rows, in the order in which they begin: the next longest goes to the
    replica that has the least to do (longest processing time first, Graham 1969), among these to one that has the
    fewest rows."""
    shards: list[list[int]] = [[] for _ in range(copies)]
    loads = [(0.0, 0, copy) for copy in range(copies)]
    heapify(loads)
    for place in longest_first(expected):
        load, rows, copy = loads[0]
        shards[copy].append(place)
        heapreplace(loads, (load + expected[place], rows + 1, copy))
    return shards


def expected_length_per_block(expected: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Return the sums of what is expected of the first `sizes[0]` rows, of the next `sizes[1]`, and so on."""
    sums, first = [], 0
    for size in sizes:
        sums.append(sum(expected[first : first + size]))
        first += size
    return sums


def blocks_by_replica(expected: Sequence[float] | None, sizes: Sequence[int], copies: int) -> list[list[int]]:
    """Return for each replica its blocks, of so many rows: in turn, or as `balance_rows` by what is expected of their
    rows."""
    if expected is None:
        return [list(range(copy, len(sizes), copies)) for copy in range(copies)]
    return [sorted(shard) for shard in balance_rows(expected_length_per_block(expected, sizes), copies)]
