"""Places boxes in rows, and lines between them: each box stands below those whose values it uses.

The usual four steps (Sugiyama, Tagawa, Toda 1981): rows, order within the rows, horizontal places, vertical places. All
targets of one value share one line that branches as late as it can. The gaps between rows hold only lines, and a long
line has its own place in every row it passes, so that no line ever crosses a box.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rlgraph.viz.ordering import order_rows
from rlgraph.viz.placing import place_items

GAP_MIN, GAP_MAX, GAP_SLOPE = 26.0, 64.0, 0.10


@dataclass
class PlacedItem:
    """Something with a place: a box, a port of the frame, or (made here) a long line's place in a row."""

    width: float
    height: float
    ins: dict[str, float] = field(default_factory=dict)
    """Where lines enter, from the left edge; missing ones are spread when all places are known."""
    outs: dict[str, float] = field(default_factory=dict)
    left: float = 0.0
    """How far the labels below a box stand out on its left; no line enters there."""
    right: float = 0.0
    pin: int = 0
    """-1 for the first row, 1 for the last one."""
    first: bool = False
    """Whether it is leftmost in its row: a frame's title."""
    margin: float = 12.0
    """Half of the least distance to its neighbours."""
    rank: int = 0
    x: float = 0.0
    y: float = 0.0
    line: bool = False
    """Whether it is a long line's place in a row."""


@dataclass
class ValueNet:
    """One value: from an item's output to all items that use it."""

    source: int
    out: str
    targets: list[tuple[int, str]]
    weight: float = 1.0


@dataclass
class NetSegment:
    """A piece of a net between two neighbouring rows."""

    net: int
    upper: int
    lower: int
    into: str
    """The input of a target; empty if the line goes on."""
    start: float = 0.0
    """The place from the left edge of the upper item; `end` is from that of the lower one."""
    end: float = 0.0
    free: bool = False
    """Whether its end can move along the target's upper edge."""


@dataclass
class Arrangement:
    """The result: items with places (the given ones first), the pieces of the lines, and the size of all."""

    items: list[PlacedItem]
    segments: list[NetSegment]
    rows: list[list[int]]
    width: float = 0.0
    height: float = 0.0

    def row_extents(self) -> list[tuple[float, float]]:
        """Return the top and the bottom of each row."""
        return [
            (
                min(self.items[index].y for index in row),
                max(self.items[index].y + self.items[index].height for index in row),
            )
            for row in self.rows
        ]


def arrange_items(given: Sequence[PlacedItem], nets: Sequence[ValueNet], gap: float = GAP_MIN) -> Arrangement:
    """Give every item a place; nets must not form cycles."""
    items = list(given)
    if not items:
        return Arrangement(items, [], [])
    _ranks(items, nets)
    segments = list(_segments(items, nets))
    rows: list[list[int]] = [[] for _ in range(max(item.rank for item in items) + 1)]
    for index, item in enumerate(items):
        rows[item.rank].append(index)
    rows = order_rows(items, segments, rows)
    place_items(items, segments, rows, [net.weight for net in nets])
    plan = Arrangement(items, segments, rows)
    _spread(plan)
    _stack(plan, gap)
    return plan


# Rows


def _ranks(items: Sequence[PlacedItem], nets: Sequence[ValueNet]) -> None:
    """Set the rows: as few as possible, then small moves as long as they make lines shorter."""
    ins: list[list[int]] = [[] for _ in items]
    outs: list[list[int]] = [[] for _ in items]
    for index, net in enumerate(nets):
        outs[net.source].append(index)
        for target in dict.fromkeys(target for target, _ in net.targets):
            ins[target].append(index)
    top = 1 if any(item.pin < 0 for item in items) else 0
    sequence = _sorted(items, nets, ins, outs)
    for index in sequence:
        item = items[index]
        item.rank = 0 if item.pin < 0 else max([top, *(items[nets[net].source].rank + 1 for net in ins[index])])
    for _ in range(12):
        if not sum(_move(index, items, nets, ins[index], outs[index], top) for index in reversed(sequence)):
            break
    last = max((item.rank for item in items if item.pin <= 0), default=0) + 1
    for item in items:
        if item.pin > 0:
            item.rank = last
    used = {rank: index for index, rank in enumerate(sorted({item.rank for item in items}))}
    for item in items:
        item.rank = used[item.rank]


def _sorted(
    items: Sequence[PlacedItem], nets: Sequence[ValueNet], ins: list[list[int]], outs: list[list[int]]
) -> list[int]:
    """Return every item after those whose values it uses."""
    waiting = [len(nets_in) for nets_in in ins]
    ready = [index for index in range(len(items)) if not waiting[index]]
    done: list[int] = []
    while ready:
        index = ready.pop(0)
        done.append(index)
        for net in outs[index]:
            for target in dict.fromkeys(target for target, _ in nets[net].targets):
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)
    assert len(done) == len(items), "boxes wait for each other"
    return done


def _move(
    at: int, items: Sequence[PlacedItem], nets: Sequence[ValueNet], ins: list[int], outs: list[int], top: int
) -> bool:
    """Move an item down to those that use it if that makes the lines shorter in sum."""
    item = items[at]
    below = [items[target].rank for net in outs for target, _ in nets[net].targets if items[target].pin <= 0]
    if item.pin or not below or min(below) - 1 <= item.rank:
        return False
    goal = min(below) - 1
    # A line that others need as well costs the same, so boxes that use one value stay in one row.
    if ins and sum(nets[net].weight >= 1 for net in ins) >= sum(nets[net].weight >= 1 for net in outs):
        return False
    item.rank = goal
    return True


# Lines


def _segments(items: list[PlacedItem], nets: Sequence[ValueNet]) -> Iterator[NetSegment]:
    """Yield the pieces of every net; adds an item wherever a line passes a row."""
    for net_index, net in enumerate(nets):
        if not net.targets:
            continue
        upper, start = net.source, items[net.source].outs.get(net.out, items[net.source].width / 2)
        goals = sorted(net.targets, key=lambda target: items[target[0]].rank)
        for rank in range(items[net.source].rank + 1, items[goals[-1][0]].rank + 1):
            for target, into in goals:
                if items[target].rank == rank:
                    fixed = items[target].ins.get(into)
                    end = (items[target].left + items[target].width - items[target].right) / 2
                    end = end if fixed is None else fixed
                    yield NetSegment(net_index, upper, target, into, start, end, fixed is None)
            if rank < items[goals[-1][0]].rank:
                items.append(PlacedItem(0, 0, margin=8.0, rank=rank, line=True))
                yield NetSegment(net_index, upper, len(items) - 1, "", start, 0.0)
                upper, start = len(items) - 1, 0.0


def _spread(plan: Arrangement) -> None:
    """Let lines enter a box as straight from above as they can, apart from each other."""
    entering: dict[int, list[NetSegment]] = {}
    for segment in plan.segments:
        if segment.free:
            entering.setdefault(segment.lower, []).append(segment)
    for index, segments in entering.items():
        item = plan.items[index]
        segments.sort(key=lambda s: plan.items[s.upper].x + s.start)
        free_width = item.width - item.left - item.right
        room = min(14.0, free_width / 2)
        apart = min(18.0, (free_width - 2 * room) / max(1, len(segments) - 1))
        start = item.x + item.left
        wanted = [
            min(max(plan.items[s.upper].x + s.start - start, room), free_width - room) - apart * i
            for i, s in enumerate(segments)
        ]
        # With the equal distances subtracted the places are a rising sequence, nearest to the wanted ones.
        for i, (segment, place_) in enumerate(zip(segments, _rising(wanted), strict=True)):
            low, high = room + apart * i, free_width - room - apart * (len(segments) - 1 - i)
            segment.end = item.left + min(max(place_ + apart * i, low), max(low, high))
        for segment in segments:
            item.ins[segment.into] = segment.end


def _rising(wanted: list[float]) -> list[float]:
    """Return the rising sequence nearest to the wanted one (isotonic regression): falling neighbours are averaged."""
    blocks: list[tuple[float, int]] = []
    for value in wanted:
        total, count = value, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            total, count = total + blocks[-1][0], count + blocks[-1][1]
            blocks.pop()
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]


def _stack(plan: Arrangement, gap: float) -> None:
    """Put the rows below each other: a gap is wider where its lines go far to the side."""
    farthest = [0.0] * len(plan.rows)
    for segment in plan.segments:
        upper, lower = plan.items[segment.upper], plan.items[segment.lower]
        aside = abs(upper.x + segment.start - lower.x - segment.end)
        farthest[lower.rank] = max(farthest[lower.rank], aside)
    y = 0.0
    for rank, row in enumerate(plan.rows):
        if rank:
            y += min(GAP_MAX, gap + GAP_SLOPE * farthest[rank])
        for index in row:
            plan.items[index].y = y
        y += max(plan.items[index].height for index in row)
    plan.height = y
    plan.width = max(item.x + item.width for item in plan.items)
