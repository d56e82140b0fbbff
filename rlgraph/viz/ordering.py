"""Orders items within their rows so that few lines cross."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Protocol

SWEEPS = 24
MANY = 1500


class Placeable(Protocol):
    """An item of a row."""

    width: float
    first: bool


class RowSegment(Protocol):
    """A line between two neighbouring rows."""

    upper: int
    lower: int
    start: float
    end: float


def order_rows(items: Sequence[Placeable], segments: Sequence[RowSegment], rows: list[list[int]]) -> list[list[int]]:
    """Return the rows in a better order: by the neighbours' average places, then swaps; the best order is returned."""
    above: dict[int, list[RowSegment]] = {}
    below: dict[int, list[RowSegment]] = {}
    for segment in segments:
        above.setdefault(segment.lower, []).append(segment)
        below.setdefault(segment.upper, []).append(segment)
    between: list[list[RowSegment]] = [[] for _ in rows]
    rank_of = {index: rank for rank, row in enumerate(rows) for index in row}
    for segment in segments:
        between[rank_of[segment.lower]].append(segment)
    rows = [_titles_first(items, row) for row in rows]
    best, least = rows, _crossings(items, rows, between)
    for sweep in range(SWEEPS if len(items) < MANY else 6):
        if not least:
            break
        rows = [list(row) for row in rows]
        down = sweep % 2 == 0
        for rank in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            rows[rank] = _by_average(items, rows[rank], rows[rank - 1 if down else rank + 1], above if down else below)
        if sweep > 3 and len(items) < MANY:
            _swap(items, rows, between)
        crossings = _crossings(items, rows, between)
        if crossings < least:
            best, least = rows, crossings
    return best


def _titles_first(items: Sequence[Placeable], row: list[int]) -> list[int]:
    return sorted(row, key=lambda index: not items[index].first)


def _places(items: Sequence[Placeable], row: Sequence[int]) -> dict[int, float]:
    return {index: float(place) for place, index in enumerate(row)}


def _by_average(
    items: Sequence[Placeable], row: list[int], fixed: list[int], joined: dict[int, list[RowSegment]]
) -> list[int]:
    """Sort a row by the average place of the neighbours in the fixed row; items without neighbours stay where they
    are."""
    place = _places(items, fixed)
    keys: dict[int, float] = {}
    for index in row:
        ends = []
        for segment in joined.get(index, ()):
            other, offset = (segment.upper, segment.start) if segment.lower == index else (segment.lower, segment.end)
            ends.append(place[other] + offset / max(1.0, items[other].width))
        if ends:
            keys[index] = sum(ends) / len(ends)
    moving = iter(sorted((index for index in row if index in keys), key=lambda index: keys[index]))
    return _titles_first(items, [next(moving) if index in keys else index for index in row])


def _ends(
    items: Sequence[Placeable], rows: list[list[int]], rank: int, joined: list[RowSegment]
) -> list[tuple[float, float]]:
    up, low = _places(items, rows[rank - 1]), _places(items, rows[rank])
    return [
        (
            up[s.upper] + s.start / max(1.0, items[s.upper].width) / 1.01,
            low[s.lower] + s.end / max(1.0, items[s.lower].width) / 1.01,
        )
        for s in joined
    ]


def _crossings(items: Sequence[Placeable], rows: list[list[int]], between: list[list[RowSegment]]) -> int:
    return sum(_crossed(_ends(items, rows, rank, between[rank])) for rank in range(1, len(rows)))


def _crossed(ends: list[tuple[float, float]]) -> int:
    """Return how many pairs of lines cross; lines that share an end do not."""
    count = 0
    seen: list[float] = []
    waiting: list[float] = []
    last: float | None = None
    for start, end in sorted(ends):
        if start != last:
            for value in waiting:
                insort(seen, value)
            waiting, last = [], start
        count += len(seen) - bisect_right(seen, end)
        waiting.append(end)
    return count


def _swap(items: Sequence[Placeable], rows: list[list[int]], between: list[list[RowSegment]]) -> None:
    """Swap neighbours wherever that makes fewer lines cross."""
    for rank, row in enumerate(rows):
        near = [r for r in (rank, rank + 1) if 0 < r < len(rows)]
        for place in range(len(row) - 1):
            if items[row[place]].first:
                continue
            pair = {row[place], row[place + 1]}
            touching = {r: [s for s in between[r] if s.upper in pair or s.lower in pair] for r in near}
            crossings = sum(_crossed(_ends(items, rows, r, touching[r])) for r in near)
            if not crossings:
                continue
            row[place], row[place + 1] = row[place + 1], row[place]
            if sum(_crossed(_ends(items, rows, r, touching[r])) for r in near) >= crossings:
                row[place], row[place + 1] = row[place + 1], row[place]
