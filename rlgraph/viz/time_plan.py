"""Draws the work of a step by time: a column for each pool, and boxes whose height is seconds on the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from rlgraph.viz import svg_elements
from rlgraph.viz.boxes import Role
from rlgraph.viz.captions import shorten_text
from rlgraph.viz.escape import escape
from rlgraph.viz.gantt import tick_seconds
from rlgraph.viz.measure import text_width
from rlgraph.viz.theme import HEAD, INK, KINDS, LABEL, MUTED, NAME, NOTE, ROLES, SMALL, TITLE, Paint

MARGIN, PAD, AXIS, BETWEEN = 28.0, 10.0, 56.0, 18.0
"""The margin of the picture, the padding of a column, the width of the axis, and the gap between columns."""
WIDE, NARROW = 230.0, 84.0
"""The width of a box, and the least that it has where works of a pool overlap."""
TALL, LEAST = 620.0, 1.5
"""The height of a step, and of the shortest box."""


@dataclass(frozen=True, slots=True)
class TimedWork:
    """A piece of work in a column."""

    id: str
    lane: int
    title: str
    start: float
    """In seconds from the beginning of the step, as `end`."""
    end: float
    role: Role = ""
    """Its colour; empty for work without a model."""
    seconds: str = ""
    critical: bool = False
    """Whether a shorter one would make the step shorter."""


@dataclass(frozen=True, slots=True)
class TimePlan:
    """A step to draw."""

    title: str
    notes: tuple[str, ...]
    lanes: tuple[tuple[str, str], ...]
    """The name of each pool, and its note."""
    works: tuple[TimedWork, ...]
    seconds: float


def to_svg(picture: TimePlan, prefix: str = "") -> str:
    """Return the SVG. prefix: that of all ids."""
    return _Pen(prefix).draw_picture(picture)


class _Pen(svg_elements.Pen):
    """Draws a step from top to bottom."""

    def draw_picture(self, picture: TimePlan) -> str:
        tracks = [_tracks([work for work in picture.works if work.lane == at]) for at in range(len(picture.lanes))]
        widths = [_width(lane, max(1, len(placed))) for lane, placed in zip(picture.lanes, tracks, strict=True)]
        top = MARGIN + HEAD.height + len(picture.notes) * NOTE.height + 14
        first = top + PAD + TITLE.height + NOTE.height + 8
        scale = TALL / picture.seconds if picture.seconds else 0.0
        bottom = first + TALL + PAD
        right = MARGIN + AXIS + sum(widths) + BETWEEN * (len(widths) - 1)
        notes = [text_width(note, NOTE) for note in picture.notes]
        wide = max([right, *(MARGIN + width for width in notes), MARGIN + text_width(picture.title, HEAD)]) + MARGIN
        self.write_text(picture.title, MARGIN, MARGIN + HEAD.size, HEAD, INK, "head")
        for line, note in enumerate(picture.notes):
            self.write_text(note, MARGIN, MARGIN + HEAD.height + 10 + line * NOTE.height, NOTE, MUTED, "note")
        x = MARGIN + AXIS
        for (name, note), width in zip(picture.lanes, widths, strict=True):
            self.draw_rect(x, top, width, bottom - top, 10, Paint("#fbfbfd", "#d0d5dd", "", ""), "lane")
            self.write_text(name, x + PAD, top + PAD + TITLE.size, TITLE, INK, "title")
            self.write_text(note, x + PAD, top + PAD + TITLE.height + NOTE.size, NOTE, MUTED, "note")
            x += width + BETWEEN
        self.draw_axis(picture.seconds, first, scale, right)
        x = MARGIN + AXIS
        for placed, width in zip(tracks, widths, strict=True):
            room = (width - 2 * PAD - 4 * (len(placed) - 1)) / max(1, len(placed))
            for track, works in enumerate(placed):
                for work in works:
                    height = max(LEAST, (work.end - work.start) * scale)
                    self.draw_work(work, x + PAD + track * (room + 4), first + work.start * scale, room, height)
            x += width + BETWEEN
        legend = "height is seconds on the clock; a strong edge: on the critical path"
        self.write_text(legend, MARGIN, bottom + 22, SMALL, MUTED, "legend")
        tall = round(bottom + 22 + MARGIN)
        return self.picture_svg(svg_elements.picture_head(picture.title, round(wide), tall, f"{self.prefix}svg"))

    def draw_axis(self, seconds: float, first: float, scale: float, right: float) -> None:
        """Draw thin lines at round times, below the boxes."""
        step = tick_seconds(seconds)
        for number in range(floor(seconds / step + 1e-9) + 1 if seconds else 0):
            y = first + number * step * scale
            self.out.append(
                f'<path class="tick" d="M{MARGIN + AXIS - 8:.1f} {y:.1f}H{right:.1f}" stroke="#e4e7ec" '
                'stroke-width="1"/>'
            )
            self.write_text(f"{number * step:.10g} s", MARGIN + AXIS - 14, y + 3.5, LABEL, MUTED, "note", "end")

    def draw_work(self, work: TimedWork, x: float, y: float, wide: float, tall: float) -> None:
        classes = f"node k-{'op' if work.role else 'data'} {svg_elements.role_css_classes(work.role)}".rstrip()
        paint = ROLES[work.role] if work.role else KINDS["data"]
        self.out.append(f'<g class="{classes}" id="{escape(self.prefix + work.id)}">')
        self.out.append(f"<title>{escape(f'{work.title}: {work.start:.4g} s to {work.end:.4g} s')}</title>")
        edge = Paint(paint.fill, INK if work.critical else paint.edge, "", "")
        name, extra = "container" if work.role else "box", ""
        if work.critical:
            name, extra = f"{name} critical-edge", ' stroke-width="1.6"'
        self.draw_rect(x, y, wide, tall, min(5.0, tall / 3), edge, name, extra)
        style = NAME if tall >= NAME.height else SMALL
        if tall >= SMALL.size:
            seconds = work.seconds if text_width(work.seconds, NOTE) + 60 < wide else ""
            room = wide - 16 - (text_width(seconds, NOTE) + 8 if seconds else 0)
            title, line = _fitting(work.title, room), y + min(tall / 2 + 0.275 * style.size, 8 + NAME.size)
            self.write_text(title, x + 8, line, style, paint.text, "name")
            if seconds:
                self.write_text(
                    seconds, x + wide - 8, line, NOTE if style is NAME else SMALL, paint.text, "name", "end"
                )
        self.out.append("</g>")


def _fitting(title: str, room: float) -> str:
    """Return a title in at most that width; `train actor` is `actor` where there is less room."""
    for text in (title, title.split()[-1]):
        if text_width(text, NAME) <= room:
            return text
    length = len(title)
    while length > 2 and text_width(shorten_text(title, length), NAME) > room:
        length -= 1
    return shorten_text(title, length) if length > 2 else ""


def _tracks(works: Sequence[TimedWork]) -> list[list[TimedWork]]:
    """Return works side by side where they overlap: each is in the first track that is free."""
    tracks: list[list[TimedWork]] = []
    for work in sorted(works, key=lambda work: (work.start, -work.end)):
        free = next((track for track in tracks if track[-1].end <= work.start + 1e-9), None)
        if free is None:
            tracks.append([work])
        else:
            free.append(work)
    return tracks


def _width(lane: tuple[str, str], tracks: int) -> float:
    """Return the width of a column."""
    texts = max(text_width(lane[0], TITLE), text_width(lane[1], NOTE))
    return max(texts, WIDE if tracks == 1 else tracks * NARROW + 4 * (tracks - 1)) + 2 * PAD
