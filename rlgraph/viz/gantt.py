"""Draws Gantt charts as SVG: charts one below the other, each with lanes, bars in them, and a scale of its own.

A bar is a plain rectangle that takes its paint from the group around it, because charts have thousands of bars.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10

from rlgraph.viz import svg_elements
from rlgraph.viz.escape import escape
from rlgraph.viz.fonts import FAMILY, WEIGHT
from rlgraph.viz.legend import LegendEntry, pack_entries
from rlgraph.viz.measure import text_width
from rlgraph.viz.theme import CODE, HEAD, INK, LABEL, MUTED, NAME, NOTE, SECTION, SMALL, Paint, Style

MARGIN, ROOM = 24.0, 960.0
"""Pixels around the picture, and the width of the lanes."""
CUT = 44.0
"""The gap between two spans when what is between them is left out, in pixels."""
LEAST = 0.7
"""The width of the narrowest bar, in pixels."""


@dataclass(frozen=True, slots=True)
class BarStyle:
    """The appearance of bars that look alike."""

    words: str
    """Its text in the legend."""
    paint: Paint
    name: str = ""
    """CSS classes, for a page's style sheet."""
    strong: float = 1.0
    """The opacity of the inside."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar from `start` to `end` in a lane."""

    lane: str
    name: str
    look: BarStyle
    start: float
    """In seconds, as `end`."""
    end: float
    shown: tuple[str, ...] = ()
    """Texts to write on it: the first one that fits is used."""
    critical: bool = False
    """Whether it is on the critical path."""


@dataclass(frozen=True, slots=True)
class GanttLane:
    """A row of bars, with the texts before it."""

    name: str
    note: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of a time that begins at 0."""

    lanes: Sequence[GanttLane]
    bars: Sequence[Bar]
    seconds: float
    looks: Sequence[BarStyle]
    """In the order of the legend, which shows those that occur."""
    title: str = ""
    notes: Sequence[str] = ()
    """Lines below the title; a long one is wrapped."""
    spans: Sequence[tuple[float, float]] = ()
    """Parts of the time that are drawn; if empty, all of it."""
    tall: float = 34.0
    """The height of a lane. From 30 on its note is below its name, else behind it."""
    gap: float = 14.0
    """The gap between two lanes."""
    style: Style = CODE
    """The style of the texts on bars."""


def gantt_svg(title: str, note: str, charts: Sequence[Chart], id: str = "") -> str:
    """Return the picture of charts. id: that of the picture."""
    return _Pen(charts).draw_picture(title, note, id)


class _Pen(svg_elements.Pen):
    """Draws charts."""

    anchor = "start"

    def __init__(self, charts: Sequence[Chart]) -> None:
        super().__init__()
        self.charts = charts
        name_widths = [_name_width(chart, lane) for chart in charts for lane in chart.lanes]
        self.left = MARGIN + 16 + max(name_widths, default=0)

    def draw_picture(self, title: str, note: str, id: str) -> str:
        width = round(max(self.left + ROOM, MARGIN + text_width(title, HEAD) + 12 + text_width(note, NOTE)) + MARGIN)
        self.write_text(title, MARGIN, MARGIN + HEAD.size, HEAD, INK, "head")
        self.write_text(note, MARGIN + text_width(title, HEAD) + 12, MARGIN + HEAD.size, NOTE, MUTED, "note")
        y = MARGIN + HEAD.height + 30
        for chart in self.charts:
            y = self.draw_chart(chart, y, width - 2 * MARGIN) + 24
        return self.picture_svg(svg_elements.picture_head(title, width, round(y + MARGIN - 24), id))

    def write_text(
        self, words: str, x: float, y: float, style: Style, fill: str, name: str = "", anchor: str = ""
    ) -> None:
        """Write a line of text, if there is any."""
        if words:
            super().write_text(words, x, y, style, fill, name, anchor)

    def draw_chart(self, chart: Chart, y: float, room: float) -> float:
        """Draw a chart from y on, and return where it ends."""
        if chart.title:
            self.write_text(chart.title, MARGIN, y, SECTION, INK, "head")
            y += 6
        for note in chart.notes:
            for line in wrapped_lines(note, room, NOTE):
                y += NOTE.height
                self.write_text(line, MARGIN, y, NOTE, MUTED, "note")
        y += 22 if chart.title or chart.notes else 0
        scale = _Scale.scale_of_chart(chart, self.left)
        bottom = y + len(chart.lanes) * (chart.tall + chart.gap)
        if chart.lanes:
            self.draw_scale(chart, scale, y - 8, bottom)
        for index, lane in enumerate(chart.lanes):
            self.draw_lane(chart, scale, lane, y + index * (chart.tall + chart.gap))
        return self.draw_legend(chart, bottom + 30, room) if chart.lanes else bottom

    def draw_scale(self, chart: Chart, scale: _Scale, top: float, bottom: float) -> None:
        """Draw thin lines at round times."""
        step, text_end = tick_seconds(scale.shown_seconds), 0.0
        for start, end in scale.spans:
            for number in range(ceil(start / step - 1e-9), floor(end / step + 1e-9) + 1):
                x, words = scale.x_of(number * step, (start, end)), f"{number * step:.10g} s"
                self.out.append(
                    f'<path class="tick" d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="#e4e7ec" stroke-width="1"/>'
                )
                half = text_width(words, LABEL) / 2
                if x - half > text_end + 8:
                    self.write_text(words, x, bottom + 14, LABEL, MUTED, "note", "middle")
                    text_end = x + half
        for before, after in pairwise(scale.spans):
            end, start = before[1], after[0]
            x = scale.x_of(end, before) + CUT / 2
            self.out.append(
                f'<g class="cut"><title>{start - end:.4g} s are left out</title><path class="tick" '
                f'd="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="#b9c1ce" stroke-width="2" stroke-dasharray="2 5"/></g>'
            )

    def draw_lane(self, chart: Chart, scale: _Scale, lane: GanttLane, y: float) -> None:
        if chart.tall < 30:
            self.write_text(lane.name, MARGIN, y + chart.tall / 2 + 4, NAME, INK, "name")
            x = self.left - 16 - text_width(lane.note, NOTE)
            self.write_text(lane.note, x, y + chart.tall / 2 + 4, NOTE, MUTED, "note")
        else:
            self.write_text(lane.name, MARGIN, y + 14, NAME, INK, "name")
            self.write_text(lane.note, MARGIN, y + 29, NOTE, MUTED, "note")
        for span in scale.spans:
            x, end = (scale.x_of(time, span) for time in span)
            self.out.append(
                f'<rect class="lane" x="{x:.1f}" y="{y:.1f}" width="{end - x:.1f}" height="{chart.tall:.1f}" rx="4" '
                f'fill="#f9fafb" stroke="#eaecf0"/>'
            )
        bars = [bar for bar in sorted(chart.bars, key=lambda bar: bar.critical) if bar.lane == lane.name]
        style, critical, written = chart.style, list[str](), list[str]()
        for look in dict.fromkeys(bar.look for bar in bars):
            paint, words = look.paint, list[str]()
            inside = f' fill-opacity="{look.strong:g}"' if look.strong < 1 else ""
            self.out.append(
                f'<g class="bar {look.name}" transform="translate(0 {y + _inset(chart):.1f})" '
                f'fill="{paint.fill}"{inside} stroke="{paint.edge}">'
            )
            for bar in bars:
                for x, length in scale.visible_pieces(bar) if bar.look == look else ():
                    self.out.append(_rectangle(chart, bar, x, length))
                    if bar.critical:
                        critical.append(f"M{x:.1f} 0h{length:.2f}")
                    margin = 10 if chart.tall >= 30 else 3
                    if fitting := next((text for text in bar.shown if text_width(text, style) + margin <= length), ""):
                        words.append(f'<text x="{x + length / 2:.1f}">{escape(fitting)}</text>')
            self.out.append("</g>")
            if words:
                written.append(f'<g fill="{paint.text}">{"".join(words)}</g>')
        if critical:
            line = y + chart.tall - 3.5
            self.out.append(
                f'<path class="critical" transform="translate(0 {line:.1f})" d="{"".join(critical)}" stroke="{INK}" '
                'stroke-width="3"/>'
            )
        if written:
            line = y + (19 if chart.tall >= 30 else chart.tall / 2 + style.size * 0.36)
            self.out.append(
                f'<g class="written" transform="translate(0 {line:.1f})" font-family="{FAMILY[style.face]}" '
                f'font-size="{style.size:g}" font-weight="{WEIGHT[style.face]}" text-anchor="middle">'
                f"{''.join(written)}</g>"
            )

    def draw_legend(self, chart: Chart, y: float, room: float) -> float:
        used = {bar.look for bar in chart.bars}
        looks = [look for look in chart.looks if look in used]
        entries = [LegendEntry("look", look.words, look.paint, name=look.name) for look in looks]
        strong = [look.strong for look in looks]
        if any(bar.critical for bar in chart.bars):
            entries.append(LegendEntry("critical", "critical path", Paint("", "", "", "")))
        placed, tall, _ = pack_entries(entries, room - self.left + MARGIN)
        for entry, opaque in zip(placed, [*strong, 1.0], strict=False):
            x, top = self.left + entry.x, y + entry.y
            if entry.kind == "critical":
                self.out.append(
                    f'<path class="critical" d="M{x:.1f} {top + 6.5:.1f}h20" stroke="{INK}" stroke-width="3"/>'
                )
            else:
                inside = f' fill-opacity="{opaque:g}"' if opaque < 1 else ""
                self.out.append(
                    f'<g class="bar {entry.name}"><rect x="{x:.1f}" y="{top:.1f}" width="20" height="12" rx="4" '
                    f'fill="{entry.paint.fill}"{inside} stroke="{entry.paint.edge}"/></g>'
                )
            self.write_text(entry.words, x + 27, top + 10, SMALL, MUTED, "legend")
        return y + tall


@dataclass(frozen=True, slots=True)
class _Scale:
    """The places of seconds: the spans that are drawn follow one another, all at one scale."""

    spans: tuple[tuple[float, float], ...]
    left: float
    pixels: float
    """The pixels of a second."""

    @classmethod
    def scale_of_chart(cls, chart: Chart, left: float) -> _Scale:
        spans = tuple(chart.spans) or ((0.0, chart.seconds),)
        seconds = sum(end - start for start, end in spans)
        return cls(spans, left, (ROOM - CUT * (len(spans) - 1)) / seconds if seconds else 0.0)

    @property
    def shown_seconds(self) -> float:
        """The seconds that are drawn."""
        return sum(end - start for start, end in self.spans)

    def x_of(self, at: float, span: tuple[float, float]) -> float:
        """Return the place of a time in a span."""
        index = self.spans.index(span)
        before = sum(end - start for start, end in self.spans[:index])
        return self.left + index * CUT + self.pixels * (before + at - span[0])

    def visible_pieces(self, bar: Bar) -> Iterator[tuple[float, float]]:
        """Yield the left side and the width of the visible part of a bar in each span."""
        for span in self.spans:
            start, end = max(bar.start, span[0]), min(bar.end, span[1])
            if start < end or (start == end == bar.start == bar.end):
                x = self.x_of(start, span)
                yield x, max(LEAST, self.x_of(end, span) - x)


def _inset(chart: Chart) -> float:
    """Return the gap between the upper edges of a lane and its bars."""
    return 3.0 if chart.tall >= 30 else 1.5


def _rectangle(chart: Chart, bar: Bar, x: float, length: float) -> str:
    stroke_width = min(1.0, length / 6)
    thin = f' stroke-width="{stroke_width:.2f}"' if stroke_width < 1 else ""
    tall, round_ = (chart.tall - 10, f' rx="{min(4.0, length / 3):.2g}"') if chart.tall >= 30 else (chart.tall - 3, "")
    return (
        f'<rect x="{x:.2f}" width="{length:.2f}" height="{tall:g}"{round_}{thin}>'
        f"<title>{escape(bar.name)}: {bar.start:.4g} s to {bar.end:.4g} s</title></rect>"
    )


def _name_width(chart: Chart, lane: GanttLane) -> float:
    """Return the width of the texts before a lane."""
    name, note = text_width(lane.name, NAME), text_width(lane.note, NOTE)
    return max(name, note) if chart.tall >= 30 else name + 12 + note


def wrapped_lines(words: str, room: float, style: Style) -> list[str]:
    """Return lines of at most that width, broken at spaces."""
    lines = [""]
    for word in words.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and text_width(longer, style) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def tick_seconds(seconds: float) -> float:
    """Return a round time that fits 5 to 12 times into the whole: 1, 2 or 5 times a power of ten."""
    if seconds <= 0:
        return 1.0
    power = 10.0 ** floor(log10(seconds / 5))
    return max(digit * power for digit in (1.0, 2.0, 5.0) if seconds / (digit * power) >= 5 - 1e-9)
