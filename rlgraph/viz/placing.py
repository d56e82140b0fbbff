"""Horizontal places of items whose order is known: near to what they are joined with, long lines straight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

SWEEPS = 30
MANY = 1500
STRAIGHT = 1.5
"""The weight, over that of other lines, with which a line between two of its own places is kept straight."""


class Placeable(Protocol):
    width: float
    margin: float
    first: bool
    line: bool
    x: float


class Joined(Protocol):
    net: int
    upper: int
    lower: int
    start: float
    end: float


def place(items: Sequence[Placeable], segments: Sequence[Joined], rows: list[list[int]], weights: list[float]) -> None:
    """Sets `x` of every item; the leftmost is at 0."""
    joined: list[list[tuple[int, float, float]]] = [[] for _ in items]
    up: list[list[tuple[int, float, float]]] = [[] for _ in items]
    for s in segments:
        weight = weights[s.net] * STRAIGHT ** (items[s.upper].line + items[s.lower].line)
        joined[s.lower].append((s.upper, s.start - s.end, weight))
        joined[s.upper].append((s.lower, s.end - s.start, weight))
        up[s.lower].append((s.upper, s.start - s.end, weight))
    for row in rows:
        x = 0.0
        for at in row:
            items[at].x = x + items[at].margin
            x = items[at].x + items[at].width + items[at].margin
    for sweep in range(SWEEPS if len(items) < MANY else 8):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            _settle(items, row, up if sweep < 2 else joined)
    runs = _runs(items, segments)
    ends = _ends(segments)
    lines = frozenset(at for at, item in enumerate(items) if item.line)
    neighbours = _neighbours(rows)
    for sweep in range(8 if len(items) < MANY else 2):
        for net, run in runs:
            _straighten(items, run, ends[net], neighbours)
        for row in reversed(rows) if sweep % 2 else rows:
            _settle(items, row, joined, lines)
    for net, run in runs:
        _straighten(items, run, ends[net], neighbours)
    # What hangs on a single line stands straight above or below its other end.
    held = lines | {at for at, found in enumerate(joined) if len(found) != 1}
    for row in rows:
        _settle(items, row, joined, held)
    left = min(item.x for item in items)
    for item in items:
        item.x -= left


def _settle(
    items: Sequence[Placeable],
    row: list[int],
    joined: Sequence[list[tuple[int, float, float]]],
    still: frozenset[int] = frozenset(),
) -> None:
    """Moves a row's items as near as they get to where each would like to be; those that are `still` stay."""
    shift = 0.0
    blocks: list[tuple[float, float, int]] = []  # weighted sum of wished places, weight, number of items
    shifts: list[float] = []
    for place_, at in enumerate(row):
        item = items[at]
        if place_:
            before = items[row[place_ - 1]]
            shift += before.width + before.margin + item.margin
        shifts.append(shift)
        wish, weight = _wish(items, at, joined[at])
        if item.first:
            wish, weight = item.x, 0.01
        if at in still:
            wish, weight = item.x, 1e6
        total, count = (wish - shift) * weight, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / weight:
            total, weight, count = total + blocks[-1][0], weight + blocks[-1][1], count + blocks[-1][2]
            blocks.pop()
        blocks.append((total, weight, count))
    at = 0
    for total, weight, count in blocks:
        for _ in range(count):
            items[row[at]].x = total / weight + shifts[at]
            at += 1


def _wish(items: Sequence[Placeable], at: int, joined: list[tuple[int, float, float]]) -> tuple[float, float]:
    if not joined:
        return items[at].x, 0.01
    weight = sum(w for _, _, w in joined)
    return sum((items[other].x + offset) * w for other, offset, w in joined) / weight, weight


# Straight lines


def _runs(items: Sequence[Placeable], segments: Sequence[Joined]) -> list[tuple[int, list[int]]]:
    """The places of each long line from top to bottom, the longest line first."""
    runs: dict[int, list[int]] = {}
    for segment in segments:
        if items[segment.lower].line:
            runs.setdefault(segment.net, []).append(segment.lower)
    return sorted(runs.items(), key=lambda run: len(run[1]), reverse=True)


def _ends(segments: Sequence[Joined]) -> dict[int, tuple[Joined, Joined]]:
    """The first and the last piece of each line."""
    found: dict[int, tuple[Joined, Joined]] = {}
    for segment in segments:
        found[segment.net] = (found.get(segment.net, (segment, segment))[0], segment)
    return found


def _neighbours(rows: list[list[int]]) -> dict[int, tuple[int | None, int | None]]:
    found: dict[int, tuple[int | None, int | None]] = {}
    for row in rows:
        for place_, at in enumerate(row):
            found[at] = (
                row[place_ - 1] if place_ else None,
                row[place_ + 1] if place_ + 1 < len(row) else None,
            )
    return found


def _straighten(
    items: Sequence[Placeable],
    run: list[int],
    ends: tuple[Joined, Joined],
    neighbours: dict[int, tuple[int | None, int | None]],
) -> None:
    """Makes a line vertical through as many rows as there is room for, then again from there.

    It stands below its source or above its last target where it can.
    """
    start, goal = items[ends[0].upper].x + ends[0].start, items[ends[1].lower].x + ends[1].end
    at = 0
    while at < len(run):
        low, high = _room(items, run[at], neighbours)
        end = at + 1
        while end < len(run):
            lower, higher = _room(items, run[end], neighbours)
            if max(low, lower) > min(high, higher):
                break
            low, high, end = max(low, lower), min(high, higher), end + 1
        wishes = [start] if at == 0 else []
        wishes += [goal] if end == len(run) else []
        wishes.append(sum(items[i].x for i in run[at:end]) / (end - at))
        x = next((wish for wish in wishes if low <= wish <= high), min(max(wishes[-1], low), high))
        for i in run[at:end]:
            items[i].x = x
        at = end


def _room(
    items: Sequence[Placeable], at: int, neighbours: dict[int, tuple[int | None, int | None]]
) -> tuple[float, float]:
    """Between its neighbours, as they are placed now."""
    left, right = neighbours[at]
    item = items[at]
    low = items[left].x + items[left].width + items[left].margin + item.margin if left is not None else float("-inf")
    high = items[right].x - items[right].margin - item.margin - item.width if right is not None else float("inf")
    return low, high
