"""Lays out lanes: each box and line with its position.

Work stands in a grid: a column for each lane, and rows so that nothing is above what it needs. Lines run where no box
can be: across in the gaps between rows, down in channels at the sides of a lane. What travels is written in the gutters
between lanes, each label on a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rlgraph.viz.fonts import text_width_bound
from rlgraph.viz.lanes import LaneEdge, Lanes, LaneWork, PoolLane
from rlgraph.viz.measure import text_width
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
class EdgePath:
    """The line of a way."""

    way: LaneEdge
    points: tuple[tuple[float, float], ...]
    """Its corners."""
    label: tuple[float, float] | None
    """The middle of its label's upper edge."""


@dataclass
class LanesDrawing:
    """A picture with the positions of all that it shows."""

    picture: Lanes
    width: float = 0.0
    height: float = 0.0
    top: float = 0.0
    """The upper edge of the lanes."""
    head: float = 0.0
    """The lower edge of their heads."""
    lanes: list[Place] = field(default_factory=list)
    works: list[tuple[LaneWork, Place]] = field(default_factory=list)
    paths: list[EdgePath] = field(default_factory=list)
    headings: list[tuple[str, str, float]] = field(default_factory=list)
    """The title, the note and the upper edge of each phase."""


def edge_label(way: LaneEdge) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines of a label: names, and their sizes."""
    lines: list[str] = []
    for name in way.names:
        if lines and len(lines[-1]) + len(name) < 22:
            lines[-1] += f", {name}"
        else:
            lines.append(name)
    return tuple(lines), way.sizes


def memory_bars(lane: PoolLane) -> list[tuple[float, tuple[str, ...]]]:
    """Return the bars of a lane's memory, each with the lines below it; 0 for lines without a bar."""
    bars = [(lane.full, lane.memory), (lane.measured_full, lane.measured_memory)]
    return [(full, lines) for full, lines in bars if lines]


def lane_head_size(lane: PoolLane) -> tuple[float, float]:
    """Return the width and the height of the head of a lane."""
    width_needed = text_width(lane.name, TITLE) + 16 + text_width(lane.note, NOTE)
    width_needed = max([width_needed, *(text_width(line, SMALL) for line in (*lane.memory, *lane.measured_memory))])
    for model in lane.deployed:
        width_needed = max(width_needed, SWATCH + text_width(model.title, NAME) + 16 + text_width(model.seconds, NOTE))
        width_needed = max([width_needed, *(SWATCH + text_width(line, SMALL) for line in model.how)])
    height_needed = PAD + TITLE.height
    for full, lines in memory_bars(lane):
        height_needed += (BAR + 8 if full else 0) + len(lines) * SMALL.height
    height_needed += sum(8 + NAME.height + len(model.how) * SMALL.height for model in lane.deployed)
    return width_needed, height_needed + PAD - 4


def work_box_size(work: LaneWork) -> tuple[float, float]:
    """Return the width and the height of a box."""
    lines = work_lines(work)
    styles = (NAME, *[NOTE] * len(lines))
    width_needed = max(
        text_width(left, style) + (16 + text_width(right, NOTE) if right else 0)
        for (left, right), style in zip(lines, styles, strict=False)
    )
    shares = work.share or work.measured_share
    height_needed = 14 + NAME.height + (len(lines) - 1) * NOTE.height + (7 if shares else 0)
    return max(width_needed, 60) + 24, height_needed


def work_lines(work: LaneWork) -> list[tuple[str, str]]:
    """Return the lines of a box, each with what stands at its left and at its right: what was measured stands first,
    and what was predicted below it, by name."""
    lines = [(work.title, work.measured or work.seconds)]
    predicted = f"predicted {work.seconds}" if work.measured and work.seconds else ""
    if work.note or predicted:
        lines.append((work.note, predicted))
    return [*lines, (work.measured_note, "")] if work.measured_note else lines


def lay_out_lanes(picture: Lanes) -> LanesDrawing:
    """Return a picture with positions."""
    return _Placer(picture).place_all()


@dataclass
class _Run:
    """A piece of a line across a gap between rows."""

    way: int
    gap: int
    """The row above the gap."""
    label: bool
    y: float = 0.0


class _Placer:
    """Works out positions: first rows, then columns, then the lines in gaps and channels."""

    def __init__(self, picture: Lanes) -> None:
        self.picture = picture
        self.ways: list[LaneEdge] = []
        self.spots: dict[str, tuple[int, int]] = {}
        """Row and lane of each work; the heads of lanes are row 0."""
        self.starts: dict[int, tuple[str, str]] = {}
        """The phases that begin with a row."""
        self.rows = 1
        self.assign_works_to_rows()
        self.at = {spot: name for name, spot in self.spots.items()}
        self.work_of = {work.id: work for work in picture.all_works()}
        self.sides = [self.arrival_side(way) for way in self.ways]
        self.channels = self.channel_tracks()

    # Rows

    def assign_works_to_rows(self) -> None:
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

    def edge_ends(self, way: LaneEdge) -> tuple[tuple[int, int], tuple[int, int]]:
        return self.spots.get(way.source, (0, way.lane)), self.spots[way.target]

    # Ways: across below the row where they begin, down in the lane where they end

    def arrival_side(self, way: LaneEdge) -> Side:
        """Return the side of the box at which a way arrives."""
        (row, lane), (target_row, target_lane) = self.edge_ends(way)
        if lane == target_lane:
            return "left" if self.is_blocked(way) else "middle"
        return "left" if lane < target_lane else "right"

    def is_blocked(self, way: LaneEdge) -> bool:
        """Return whether boxes stand above the one where a way ends."""
        (row, _), (target_row, target_lane) = self.edge_ends(way)
        return any((between, target_lane) in self.at for between in range(row + 1, target_row))

    def channel_tracks(self) -> dict[int, int]:
        """Return, for each way that has to pass boxes, its track in the channel at the side of the lane."""
        track_of: dict[int, int] = {}
        taken: dict[tuple[int, Side], list[list[tuple[int, int]]]] = {}
        for index, way in enumerate(self.ways):
            if not self.is_blocked(way):
                continue
            (row, _), (target_row, target_lane) = self.edge_ends(way)
            tracks = taken.setdefault((target_lane, self.sides[index]), [])
            free = (t for t, spans in enumerate(tracks) if all(target_row <= low or high <= row for low, high in spans))
            track = next(free, len(tracks))
            if track == len(tracks):
                tracks.append([])
            tracks[track].append((row, target_row))
            track_of[index] = track
        self.taken = {key: len(tracks) for key, tracks in taken.items()}
        return track_of

    def channel_width(self, lane: int, side: Side) -> float:
        """Return the width of a channel."""
        tracks = self.taken.get((lane, side), 0)
        return tracks * TRACK + 4 if tracks else 0.0

    # Columns

    def place_columns(self) -> None:
        count = len(self.picture.lanes)
        gutters = [GUTTER] * (count + 1)
        for number, way in enumerate(self.ways):
            if way.names:
                names, weights = edge_label(way)
                room = max(text_width(line, LABEL) for line in (*names, *weights)) + 20
                gutter = self.gutter_of_edge(number)
                gutters[gutter] = max(gutters[gutter], room)
        self.inner: list[tuple[float, float]] = []
        """Left edge and width of each lane's boxes."""
        self.lanes: list[tuple[float, float]] = []
        self.middles = [0.0] * (count + 1)
        """The middles of the gutters."""
        x = MARGIN
        for number, lane in enumerate(self.picture.lanes):
            if number:
                self.middles[number] = x + gutters[number] / 2
                x += gutters[number]
            boxes = [
                work_box_size(self.work_of[name])[0]
                for name, (_, work_lane) in self.spots.items()
                if work_lane == number
            ]
            left, right = self.channel_width(number, "left"), self.channel_width(number, "right")
            wide = max([lane_head_size(lane)[0] - left - right, *boxes])
            self.inner.append((x + PAD + left, wide))
            self.lanes.append((x, wide + left + right + 2 * PAD))
            x += self.lanes[-1][1]
        self.right = x

    def gutter_of_edge(self, number: int) -> int:
        """Return the gutter beside the lane where a way ends, by the lane on its right."""
        lane, other = self.ways[number].lane, self.spots[self.ways[number].target][1]
        return other if lane < other else other + 1

    def place_ports(self) -> None:
        """Work out where each way leaves its box, and where it arrives."""
        leaving: dict[tuple[tuple[int, int], Side], list[int]] = {}
        arriving: dict[tuple[tuple[int, int], Side], list[int]] = {}
        for index, way in enumerate(self.ways):
            source, target = self.edge_ends(way)
            side = self.sides[index]
            opposite: Side = "right" if side == "left" else "left" if side == "right" else "middle"
            leaving.setdefault((source, side if source[1] == target[1] else opposite), []).append(index)
            arriving.setdefault((target, side), []).append(index)
        # To avoid crossings, what leaves to the left and is labelled first leaves leftmost.
        self.out: dict[int, float] = {}
        for (spot, side), indices in leaving.items():
            # A head is wider than the boxes below it, and nothing stands beside it.
            self.out |= self.spread_ports(spot[1], side, indices if side == "left" else indices[::-1])
        self.into: dict[int, float] = {}
        for (spot, side), indices in arriving.items():
            by_row = sorted(indices, key=lambda index: self.edge_ends(self.ways[index])[0][0])
            self.into |= self.spread_ports(spot[1], side, by_row[::-1] if side == "left" else by_row)

    def spread_ports(self, lane: int, side: Side, indices: Sequence[int]) -> dict[int, float]:
        """Return the places of ways along the edge of a box."""
        left, wide = self.inner[lane]
        low, high = {"left": (0.06, 0.42), "middle": (0.5, 0.5), "right": (0.58, 0.94)}[side]
        step = (high - low) / (len(indices) + 1)
        return {index: left + wide * (low + step * (position + 1)) for position, index in enumerate(indices)}

    # Gaps

    def place_crossings(self) -> None:
        """Place the pieces that lie in gaps, each at a height of its own where others are over or under it."""
        self.runs: dict[int, list[_Run]] = {}
        for index, way in enumerate(self.ways):
            (row, lane), (target_row, target_lane) = self.edge_ends(way)
            if lane == target_lane and index not in self.channels:
                continue
            self.runs.setdefault(index, []).append(_Run(index, row, bool(way.names) and lane != target_lane))
            if index in self.channels:
                self.runs[index].append(_Run(index, target_row - 1, False))
        self.gaps = [GAP] * self.rows
        by_gap: dict[int, list[_Run]] = {}
        for way_runs in self.runs.values():
            for run in way_runs:
                by_gap.setdefault(run.gap, []).append(run)
        for gap, runs in by_gap.items():
            placed: list[tuple[float, float, float]] = []
            # Ways that begin here come above those that end here.
            for run in sorted(runs, key=lambda run: (self.edge_ends(self.ways[run.way])[0][0] != gap, run.way)):
                low, high = self.edge_segment_extent(run)
                names, weights = edge_label(self.ways[run.way]) if run.label else ((), ())
                tall = (len(names) + len(weights)) * LABEL.height + 2
                upper = max([8.0, *(bottom for x, end, bottom in placed if x < high + 8 and low < end + 8)])
                run.y = upper + tall
                placed.append((low, high, run.y + 6))
            self.gaps[gap] = max(GAP, max(bottom for _, _, bottom in placed) + 12)

    def edge_segment_extent(self, run: _Run) -> tuple[float, float]:
        """Return the left and the right end of a piece."""
        way = self.ways[run.way]
        first = run is self.runs[run.way][0]
        start = self.out[run.way] if first else self.descent_x(run.way)
        end = self.descent_x(run.way) if first else self.into[run.way]
        if run.label:
            names, weights = edge_label(way)
            half = max(text_width(line, LABEL) for line in (*names, *weights)) / 2
            middle = self.middles[self.gutter_of_edge(run.way)]
            return min(start, end, middle - half), max(start, end, middle + half)
        return min(start, end), max(start, end)

    def descent_x(self, index: int) -> float:
        """Return where a way goes down."""
        if index not in self.channels:
            return self.into[index]
        lane = self.spots[self.ways[index].target][1]
        left, wide = self.inner[lane]
        track = (self.channels[index] + 0.5) * TRACK + 4
        return left - track if self.sides[index] == "left" else left + wide + track

    # All of it

    def place_all(self) -> LanesDrawing:
        self.place_columns()
        self.place_ports()
        self.place_crossings()
        placed = LanesDrawing(self.picture)
        placed.top = MARGIN + HEAD.height + len(self.picture.notes) * NOTE.height + 14
        heights = [0.0] * self.rows
        heights[0] = max((lane_head_size(lane)[1] for lane in self.picture.lanes), default=0.0)
        for name, (row, _) in self.spots.items():
            heights[row] = max(heights[row], work_box_size(self.work_of[name])[1])
        tops, y = [], placed.top
        for row in range(self.rows):
            if row in self.starts:
                title, note = self.starts[row]
                placed.headings.append((title, note, y))
                y += SECTION.height + 8
            tops.append(y)
            y += heights[row] + self.gaps[row]
        placed.head = placed.top + heights[0]
        placed.lanes = [(x, placed.top, wide, y - placed.top) for x, wide in self.lanes]
        for name, (row, lane) in self.spots.items():
            left, wide = self.inner[lane]
            work = self.work_of[name]
            placed.works.append((work, (left, tops[row], wide, work_box_size(work)[1])))
        edges = {work.id: box_place[1] + box_place[3] for work, box_place in placed.works}
        for index, way in enumerate(self.ways):
            placed.paths.append(self.edge_path(index, way, edges.get(way.source, placed.head), tops, heights))
        wide = max(
            [
                text_width_bound(self.picture.title, HEAD.face, HEAD.size),
                *(text_width(note, NOTE) for note in self.picture.notes),
            ]
        )
        placed.width, placed.height = max(self.right, MARGIN + wide) + MARGIN, y + 12
        return placed

    def edge_path(
        self, index: int, way: LaneEdge, start: float, tops: Sequence[float], tall: Sequence[float]
    ) -> EdgePath:
        end = tops[self.spots[way.target][0]]
        points = [(self.out[index], start)]
        label = None
        for run in self.runs.get(index, []):
            y = tops[run.gap] + tall[run.gap] + run.y
            goal = self.descent_x(index) if run is self.runs[index][0] else self.into[index]
            points += [(points[-1][0], y), (goal, y)]
            if run.label:
                names, weights = edge_label(way)
                over = (len(names) + len(weights)) * LABEL.height
                label = (self.middles[self.gutter_of_edge(index)], y - over - 2)
        return EdgePath(way, (*points, (self.into[index], end)), label)
