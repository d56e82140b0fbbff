"""Horizontal places of items whose order is known: near to what they are joined with, with long lines straight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

SWEEPS = 30
MANY = 1500
STRAIGHT = 1.5
"""The weight, relative to other lines, with which a line between two of its own places is kept straight."""


class Placeable(Protocol):
    """An item of a row."""

    width: float
    margin: float
    first: bool
    line: bool
    x: float


class RowSegment(Protocol):
    """A line between two neighbouring rows."""

    net: int
    upper: int
    lower: int
    start: float
    end: float


def place_items(
    items: Sequence[Placeable], segments: Sequence[RowSegment], rows: list[list[int]], weights: list[float]
) -> None:
    """Set `x` of every item; the leftmost is at 0."""
    joined: list[list[tuple[int, float, float]]] = [[] for _ in items]
    up: list[list[tuple[int, float, float]]] = [[] for _ in items]
    for segment in segments:
        weight = weights[segment.net] * STRAIGHT ** (items[segment.upper].line + items[segment.lower].line)
        joined[segment.lower].append((segment.upper, segment.start - segment.end, weight))
        joined[segment.upper].append((segment.lower, segment.end - segment.start, weight))
        up[segment.lower].append((segment.upper, segment.start - segment.end, weight))
    for row in rows:
        x = 0.0
        for index in row:
            items[index].x = x + items[index].margin
            x = items[index].x + items[index].width + items[index].margin
    for sweep in range(SWEEPS if len(items) < MANY else 8):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            _settle(items, row, up if sweep < 2 else joined)
    runs = _runs(items, segments)
    ends = _ends(segments)
    lines = frozenset(index for index, item in enumerate(items) if item.line)
    neighbours = _neighbours(rows)
    for sweep in range(8 if len(items) < MANY else 2):
        for net, run in runs:
            _straighten(items, run, ends[net], neighbours)
        for row in reversed(rows) if sweep % 2 else rows:
            _settle(items, row, joined, lines)
    for net, run in runs:
        _straighten(items, run, ends[net], neighbours)
    # An item with a single line stands straight above or below its other end.
    fixed = lines | {index for index, partners in enumerate(joined) if len(partners) != 1}
    for row in rows:
        _settle(items, row, joined, fixed)
    left = min(item.x for item in items)
    for item in items:
        item.x -= left


def _settle(
    items: Sequence[Placeable],
    row: list[int],
    joined: Sequence[list[tuple[int, float, float]]],
    still: frozenset[int] = frozenset(),
) -> None:
    """Move a row's items as near as possible to where each should be; those that are `still` stay."""
    shift = 0.0
    blocks: list[tuple[float, float, int]] = []  # weighted sum of wished places, weight, number of items
    shifts: list[float] = []
    for position, index in enumerate(row):
        item = items[index]
        if position:
            before = items[row[position - 1]]
            shift += before.width + before.margin + item.margin
        shifts.append(shift)
        wish, weight = _wish(items, index, joined[index])
        if item.first:
            wish, weight = item.x, 0.01
        if index in still:
            wish, weight = item.x, 1e6
        total, count = (wish - shift) * weight, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / weight:
            total, weight, count = total + blocks[-1][0], weight + blocks[-1][1], count + blocks[-1][2]
            blocks.pop()
        blocks.append((total, weight, count))
    index = 0
    for total, weight, count in blocks:
        for _ in range(count):
            items[row[index]].x = total / weight + shifts[index]
            index += 1


def _wish(items: Sequence[Placeable], index: int, joined: list[tuple[int, float, float]]) -> tuple[float, float]:
    if not joined:
        return items[index].x, 0.01
    weight = sum(w for _, _, w in joined)
    return sum((items[other].x + offset) * w for other, offset, w in joined) / weight, weight


# Straight lines


def _runs(items: Sequence[Placeable], segments: Sequence[RowSegment]) -> list[tuple[int, list[int]]]:
    """Return the places of each long line from top to bottom, the longest line first."""
    runs: dict[int, list[int]] = {}
    for segment in segments:
        if items[segment.lower].line:
            runs.setdefault(segment.net, []).append(segment.lower)
    return sorted(runs.items(), key=lambda run: len(run[1]), reverse=True)


def _ends(segments: Sequence[RowSegment]) -> dict[int, tuple[RowSegment, RowSegment]]:
    """Return the first and the last piece of each line."""
    ends: dict[int, tuple[RowSegment, RowSegment]] = {}
    for segment in segments:
        ends[segment.net] = (ends.get(segment.net, (segment, segment))[0], segment)
    return ends


def _neighbours(rows: list[list[int]]) -> dict[int, tuple[int | None, int | None]]:
    neighbours: dict[int, tuple[int | None, int | None]] = {}
    for row in rows:
        for position, index in enumerate(row):
            neighbours[index] = (
                row[position - 1] if position else None,
                row[position + 1] if position + 1 < len(row) else None,
            )
    return neighbours


def _straighten(
    items: Sequence[Placeable],
    run: list[int],
    ends: tuple[RowSegment, RowSegment],
    neighbours: dict[int, tuple[int | None, int | None]],
) -> None:
    """Make a line vertical through as many rows as there is room for, then again from there.

    It stands below its source or above its last target if it can.
    """
    start, goal = items[ends[0].upper].x + ends[0].start, items[ends[1].lower].x + ends[1].end
    begin = 0
    while begin < len(run):
        low, high = _room(items, run[begin], neighbours)
        end = begin + 1
        while end < len(run):
            lower, higher = _room(items, run[end], neighbours)
            if max(low, lower) > min(high, higher):
                break
            low, high, end = max(low, lower), min(high, higher), end + 1
        wishes = [start] if begin == 0 else []
        wishes += [goal] if end == len(run) else []
        wishes.append(sum(items[i].x for i in run[begin:end]) / (end - begin))
        x = next((wish for wish in wishes if low <= wish <= high), min(max(wishes[-1], low), high))
        for i in run[begin:end]:
            items[i].x = x
        begin = end


def _room(
    items: Sequence[Placeable], index: int, neighbours: dict[int, tuple[int | None, int | None]]
) -> tuple[float, float]:
    """Return the free range of an item between its neighbours, as they are placed now."""
    left, right = neighbours[index]
    item = items[index]
    low = items[left].x + items[left].width + items[left].margin + item.margin if left is not None else float("-inf")
    high = items[right].x - items[right].margin - item.margin - item.width if right is not None else float("inf")
    return low, high
