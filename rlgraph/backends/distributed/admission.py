"""Which rows of an order begin first, and with which copy of the model, where it is known how long they are expected to
be."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace


def in_turn(expected: Sequence[float]) -> list[int]:
    """The places of rows in the order in which they begin: the longest first, and of equals the earlier."""
    return sorted(range(len(expected)), key=lambda place: (-expected[place], place))


def dealt(expected: Sequence[float], copies: int) -> list[list[int]]:
    """For each copy the places of its rows, in the order in which they begin: the next longest goes to the copy that
    has the least to do (longest processing time first, Graham 1969), and of these to one that has the fewest rows."""
    found: list[list[int]] = [[] for _ in range(copies)]
    loads = [(0.0, 0, copy) for copy in range(copies)]
    heapify(loads)
    for place in in_turn(expected):
        load, rows, copy = loads[0]
        found[copy].append(place)
        heapreplace(loads, (load + expected[place], rows + 1, copy))
    return found


def summed(expected: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Of the first so many rows, of the next ones, and so on, what all of each have together."""
    found, first = [], 0
    for size in sizes:
        found.append(sum(expected[first : first + size]))
        first += size
    return found


def blocks(expected: Sequence[float] | None, sizes: Sequence[int], copies: int) -> list[list[int]]:
    """For each copy its blocks, of so many rows: in turn, or as `dealt` by what is expected of their rows."""
    if expected is None:
        return [list(range(copy, len(sizes), copies)) for copy in range(copies)]
    return [sorted(mine) for mine in dealt(summed(expected, sizes), copies)]
