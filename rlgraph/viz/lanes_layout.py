"""The layout of lanes: each box and line with its position.

Work stands in a grid: a column for each lane, and rows so that nothing is above what it needs. Lines run where no box
can be: across in the gaps between rows, down in channels at the sides of a lane. What travels is written in the gutters
between lanes, each label on a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rlgraph.viz.fonts import width
from rlgraph.viz.lanes import Lane, Lanes, Way, Work
from rlgraph.viz.measure import text
from rlgraph.viz.theme import HEAD, LABEL, NAME, NOTE, SECTION, SMALL, TITLE

MARGIN, PAD = 28.0, 14.0
"""The margin around the picture, and the padding inside lanes and boxes."""
TRACK, GAP, GUTTER = 10.0, 26.0, 34.0
"""The gap between lines, and the least gap between two rows and between two lanes."""
SWATCH = 18.0
BAR = 7.0
"""The height of a memory bar."""

Side = Literal["left", "middle", "right"]
Place = tuple[float, float, float, float]
"""x, y, width and height."""


@dataclass(frozen=True, slots=True)
class Path:
    way: Way
    points: tuple[tuple[float, float], ...]
    """Its corners."""
    label: tuple[float, float] | None
    """The middle of its label's upper edge."""


@dataclass
class Placed:
    picture: Lanes
    width: float = 0.0
    height: float = 0.0
    top: float = 0.0
    """Of the lanes."""
    head: float = 0.0
    """The lower edge of their heads."""
    lanes: list[Place] = field(default_factory=list)
    works: list[tuple[Work, Place]] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    headings: list[tuple[str, str, float]] = field(default_factory=list)
    """Of the phases, with the upper edge of each."""


def words(way: Way) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines of a label: names, and what they weigh."""
    lines: list[str] = []
    for name in way.names:
        if lines and len(lines[-1]) + len(name) < 22:
            lines[-1] += f", {name}"
        else:
            lines.append(name)
    return tuple(lines), way.sizes


def head_size(lane: Lane) -> tuple[float, float]:
    """Of what is written at the top of a lane."""
    wide = text(lane.name, TITLE) + 16 + text(lane.note, NOTE)
    wide = max([wide, *(text(line, SMALL) for line in lane.memory)])
    for each in lane.deployed:
        wide = max(wide, SWATCH + text(each.title, NAME) + 16 + text(each.seconds, NOTE))
        wide = max([wide, *(SWATCH + text(line, SMALL) for line in each.how)])
    tall = PAD + TITLE.height
    tall += BAR + 8 + len(lane.memory) * SMALL.height if lane.memory else 0
    tall += sum(8 + NAME.height + len(each.how) * SMALL.height for each in lane.deployed)
    return wide, tall + PAD - 4


def work_size(work: Work) -> tuple[float, float]:
    wide = max(text(work.title, NAME) + (16 + text(work.seconds, NOTE) if work.seconds else 0), text(work.note, NOTE))
    tall = 14 + NAME.height + (NOTE.height if work.note else 0) + (7 if work.share else 0)
    return max(wide, 60) + 24, tall


def place(picture: Lanes) -> Placed:
    return _Placer(picture).run()


@dataclass
class _Run:
    """A piece of a line across a gap."""

    way: int
    gap: int
    """Below which row."""
    label: bool
    y: float = 0.0


class _Placer:
    def __init__(self, picture: Lanes) -> None:
        self.picture = picture
        self.ways: list[Way] = []
        self.spots: dict[str, tuple[int, int]] = {}
        """Row and lane of each work; the heads of lanes are row 0."""
        self.starts: dict[int, tuple[str, str]] = {}
        """The phases that begin with a row."""
        self.rows = 1
        self.grid()
        self.at = {spot: name for name, spot in self.spots.items()}
        self.known = {work.id: work for work in picture.works()}
        self.sides = [self.side(way) for way in self.ways]
        self.channels = self.channelled()

    # Rows

    def grid(self) -> None:
        several = len(self.picture.stages) > 1
        for stage in self.picture.stages:
            first = self.rows
            if several or stage.note:
                self.starts[first] = (stage.title, stage.note)
            last = dict.fromkeys(range(len(self.picture.lanes)), first - 1)
            for work in stage.works:
                made = [self.spots[way.source][0] for way in stage.ways if way.target == work.id and way.source]
                row = max([first - 1, last[work.lane], *made]) + 1
                self.spots[work.id] = row, work.lane
                last[work.lane] = row
                self.rows = max(self.rows, row + 1)
            self.ways += stage.ways

    def ends(self, way: Way) -> tuple[tuple[int, int], tuple[int, int]]:
        return self.spots.get(way.source, (0, way.lane)), self.spots[way.target]

    # Ways: across below the row where they begin, down in the lane where they end

    def side(self, way: Way) -> Side:
        """Of the box at which it arrives."""
        (row, lane), (below, other) = self.ends(way)
        if lane == other:
            return "left" if self.blocked(way) else "middle"
        return "left" if lane < other else "right"

    def blocked(self, way: Way) -> bool:
        """Whether boxes stand above the one where it ends."""
        (row, _), (below, other) = self.ends(way)
        return any((between, other) in self.at for between in range(row + 1, below))

    def channelled(self) -> dict[int, int]:
        """For each way that has to pass boxes its track in the channel at the side of the lane."""
        found: dict[int, int] = {}
        taken: dict[tuple[int, Side], list[list[tuple[int, int]]]] = {}
        for number, way in enumerate(self.ways):
            if not self.blocked(way):
                continue
            (row, _), (below, other) = self.ends(way)
            tracks = taken.setdefault((other, self.sides[number]), [])
            free = (t for t, spans in enumerate(tracks) if all(below <= low or high <= row for low, high in spans))
            track = next(free, len(tracks))
            if track == len(tracks):
                tracks.append([])
            tracks[track].append((row, below))
            found[number] = track
        self.taken = {key: len(tracks) for key, tracks in taken.items()}
        return found

    def channel(self, lane: int, side: Side) -> float:
        """How wide it is."""
        tracks = self.taken.get((lane, side), 0)
        return tracks * TRACK + 4 if tracks else 0.0

    # Columns

    def columns(self) -> None:
        count = len(self.picture.lanes)
        gutters = [GUTTER] * (count + 1)
        for number, way in enumerate(self.ways):
            if way.names:
                names, weights = words(way)
                room = max(text(line, LABEL) for line in (*names, *weights)) + 20
                at = self.gutter(number)
                gutters[at] = max(gutters[at], room)
        self.inner: list[tuple[float, float]] = []
        """Left edge and width of each lane's boxes."""
        self.lanes: list[tuple[float, float]] = []
        self.middles = [0.0] * (count + 1)
        """Of the gutters."""
        x = MARGIN
        for number, lane in enumerate(self.picture.lanes):
            if number:
                self.middles[number] = x + gutters[number] / 2
                x += gutters[number]
            boxes = [work_size(self.known[name])[0] for name, (_, own) in self.spots.items() if own == number]
            left, right = self.channel(number, "left"), self.channel(number, "right")
            wide = max([head_size(lane)[0] - left - right, *boxes])
            self.inner.append((x + PAD + left, wide))
            self.lanes.append((x, wide + left + right + 2 * PAD))
            x += self.lanes[-1][1]
        self.right = x

    def gutter(self, number: int) -> int:
        """The one beside the lane where a way ends, by the lane on its right."""
        lane, other = self.ways[number].lane, self.spots[self.ways[number].target][1]
        return other if lane < other else other + 1

    def ports(self) -> None:
        """Where each way leaves its box, and where it arrives."""
        leaving: dict[tuple[tuple[int, int], Side], list[int]] = {}
        arriving: dict[tuple[tuple[int, int], Side], list[int]] = {}
        for number, way in enumerate(self.ways):
            source, target = self.ends(way)
            side = self.sides[number]
            opposite: Side = "right" if side == "left" else "left" if side == "right" else "middle"
            leaving.setdefault((source, side if source[1] == target[1] else opposite), []).append(number)
            arriving.setdefault((target, side), []).append(number)
        # Without crossings: what leaves to the left and is written first, leaves leftmost.
        self.out: dict[int, float] = {}
        for (spot, side), own in leaving.items():
            # A head is wider than boxes are, and nothing stands beside it.
            self.out |= self.spread(spot[1], side, own if side == "left" else own[::-1])
        self.into: dict[int, float] = {}
        for (spot, side), own in arriving.items():
            early = sorted(own, key=lambda number: self.ends(self.ways[number])[0][0])
            self.into |= self.spread(spot[1], side, early[::-1] if side == "left" else early)

    def spread(self, lane: int, side: Side, own: Sequence[int]) -> dict[int, float]:
        left, wide = self.inner[lane]
        low, high = {"left": (0.06, 0.42), "middle": (0.5, 0.5), "right": (0.58, 0.94)}[side]
        step = (high - low) / (len(own) + 1)
        return {number: left + wide * (low + step * (at + 1)) for at, number in enumerate(own)}

    # Gaps

    def across(self) -> None:
        """The pieces that lie in gaps, each on a height of its own where others are over or under it."""
        self.runs: dict[int, list[_Run]] = {}
        for number, way in enumerate(self.ways):
            (row, lane), (below, other) = self.ends(way)
            if lane == other and number not in self.channels:
                continue
            self.runs.setdefault(number, []).append(_Run(number, row, bool(way.names) and lane != other))
            if number in self.channels:
                self.runs[number].append(_Run(number, below - 1, False))
        self.gaps = [GAP] * self.rows
        by_gap: dict[int, list[_Run]] = {}
        for own in self.runs.values():
            for run in own:
                by_gap.setdefault(run.gap, []).append(run)
        for gap, runs in by_gap.items():
            placed: list[tuple[float, float, float]] = []
            # Above are those that begin here, and those that end here come below.
            for run in sorted(runs, key=lambda run: (self.ends(self.ways[run.way])[0][0] != gap, run.way)):
                low, high = self.span(run)
                names, weights = words(self.ways[run.way]) if run.label else ((), ())
                tall = (len(names) + len(weights)) * LABEL.height + 2
                upper = max([8.0, *(bottom for x, end, bottom in placed if x < high + 8 and low < end + 8)])
                run.y = upper + tall
                placed.append((low, high, run.y + 6))
            self.gaps[gap] = max(GAP, max(bottom for _, _, bottom in placed) + 12)

    def span(self, run: _Run) -> tuple[float, float]:
        """From where to where a piece lies."""
        way = self.ways[run.way]
        first = run is self.runs[run.way][0]
        start = self.out[run.way] if first else self.down(run.way)
        end = self.down(run.way) if first else self.into[run.way]
        if run.label:
            names, weights = words(way)
            half = max(text(line, LABEL) for line in (*names, *weights)) / 2
            middle = self.middles[self.gutter(run.way)]
            return min(start, end, middle - half), max(start, end, middle + half)
        return min(start, end), max(start, end)

    def down(self, number: int) -> float:
        """Where a way goes down."""
        if number not in self.channels:
            return self.into[number]
        lane = self.spots[self.ways[number].target][1]
        left, wide = self.inner[lane]
        track = (self.channels[number] + 0.5) * TRACK + 4
        return left - track if self.sides[number] == "left" else left + wide + track

    # All of it

    def run(self) -> Placed:
        self.columns()
        self.ports()
        self.across()
        found = Placed(self.picture)
        found.top = MARGIN + HEAD.height + len(self.picture.notes) * NOTE.height + 14
        tall = [0.0] * self.rows
        tall[0] = max((head_size(lane)[1] for lane in self.picture.lanes), default=0.0)
        for name, (row, _) in self.spots.items():
            tall[row] = max(tall[row], work_size(self.known[name])[1])
        tops, y = [], found.top
        for row in range(self.rows):
            if row in self.starts:
                title, note = self.starts[row]
                found.headings.append((title, note, y))
                y += SECTION.height + 8
            tops.append(y)
            y += tall[row] + self.gaps[row]
        found.head = found.top + tall[0]
        found.lanes = [(x, found.top, wide, y - found.top) for x, wide in self.lanes]
        for name, (row, lane) in self.spots.items():
            left, wide = self.inner[lane]
            work = self.known[name]
            found.works.append((work, (left, tops[row], wide, work_size(work)[1])))
        edges = {work.id: where[1] + where[3] for work, where in found.works}
        for number, way in enumerate(self.ways):
            found.paths.append(self.path(number, way, edges.get(way.source, found.head), tops, tall))
        wide = max(
            [width(self.picture.title, HEAD.face, HEAD.size), *(text(note, NOTE) for note in self.picture.notes)]
        )
        found.width, found.height = max(self.right, MARGIN + wide) + MARGIN, y + 12
        return found

    def path(self, number: int, way: Way, start: float, tops: Sequence[float], tall: Sequence[float]) -> Path:
        end = tops[self.spots[way.target][0]]
        points = [(self.out[number], start)]
        label = None
        for run in self.runs.get(number, []):
            y = tops[run.gap] + tall[run.gap] + run.y
            goal = self.down(number) if run is self.runs[number][0] else self.into[number]
            points += [(points[-1][0], y), (goal, y)]
            if run.label:
                names, weights = words(way)
                over = (len(names) + len(weights)) * LABEL.height
                label = (self.middles[self.gutter(number)], y - over - 2)
        return Path(way, (*points, (self.into[number], end)), label)
