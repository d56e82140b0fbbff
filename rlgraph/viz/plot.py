"""Draws small plots as SVG: stacked horizontal bars with a legend, and lines over a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

from rlgraph.viz import svg_elements
from rlgraph.viz.escape import escape
from rlgraph.viz.gantt import tick_seconds
from rlgraph.viz.measure import text_width
from rlgraph.viz.theme import BARRIER_TEXT, HEAD, INK, KINDS, LABEL, MUTED, NAME, NOTE, PAPER, ROLES, SMALL, Paint

MARGIN = 24.0
ROOM = 560.0
"""The width of the longest bar."""
TALL, GAP = 30.0, 16.0
"""The height of a bar, and the gap between two."""
PANEL, HIGH, BETWEEN = 380.0, 230.0, 86.0
"""The width and height of a panel with a line, and the gap between two."""
GRID = "#e4e7ec"

PAINTS: dict[str, Paint] = {
    "generation": ROLES["policy"],
    "reading": ROLES["reward"],
    "training": ROLES["critic"],
    "weights": KINDS["state"],
    "transitions": KINDS["call"],
    "host": KINDS["data"],
}
"""The colours of parts of bars, by what they stand for."""


@dataclass(frozen=True, slots=True)
class BarRow:
    """A bar with its name."""

    name: str
    note: str
    parts: tuple[tuple[str, float], ...]
    """Keys of `PAINTS` with the length of each part; empty for no bar."""
    total: str = ""
    """The text behind the bar."""
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A line over the axis."""

    title: str
    values: tuple[float | None, ...]
    """One for each place of the axis; None for no point."""


@dataclass(frozen=True, slots=True)
class PanelAxis:
    """The parameter that panels have in common."""

    name: str
    labels: tuple[str, ...]
    places: tuple[float, ...] = ()
    """The labels as numbers; empty to place them side by side."""
    logarithmic: bool = False


def bars_svg(title: str, note: str, rows: Sequence[BarRow], unit: str) -> str:
    """Return a picture with a bar for each row, its parts one behind the other."""
    return _Bars(title, note, rows, unit).draw_picture()


def lines_svg(title: str, note: str, axis: PanelAxis, panels: Sequence[Panel]) -> str:
    """Return a picture with a panel for each line, side by side; all begin at 0."""
    return _Lines(title, note, axis, panels).draw_picture()


class _Pen(svg_elements.Pen):
    """Draws a picture with a title and a note."""

    anchor = "start"

    def __init__(self, title: str, note: str) -> None:
        super().__init__()
        self.title, self.note = title, note

    def titled_svg(self, width: float, height: float) -> str:
        """Return what was drawn, on paper with its title."""
        least = MARGIN * 2 + text_width(self.title, HEAD) + 12 + text_width(self.note, NOTE)
        page_width, page_height = round(max(width, least)), round(height)
        drawn, self.out = self.out, []
        self.write_text(self.title, MARGIN, MARGIN + HEAD.size, HEAD, INK)
        self.write_text(self.note, MARGIN + text_width(self.title, HEAD) + 12, MARGIN + HEAD.size, NOTE, MUTED)
        self.out += drawn
        return self.picture_svg(svg_elements.picture_head(self.title, page_width, page_height))

    def draw_rule(self, x: float, y: float, to_x: float, to_y: float) -> None:
        self.out.append(f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" stroke="{GRID}" stroke-width="1"/>')


class _Bars(_Pen):
    """A picture of bars."""

    def __init__(self, title: str, note: str, rows: Sequence[BarRow], unit: str) -> None:
        super().__init__(title, note)
        self.rows, self.unit = rows, unit
        self.most = max((sum(length for _, length in row.parts) for row in rows), default=0.0)
        self.left = MARGIN + 16 + max((text_width(row.name, NAME) for row in rows), default=0.0)
        self.top = MARGIN + HEAD.height + 14

    def draw_picture(self) -> str:
        bottom = self.top + len(self.rows) * (TALL + NOTE.height + GAP)
        self.draw_scale(bottom)
        right = self.left + ROOM
        y = self.top
        for row in self.rows:
            right = max(right, self.draw_row(row, y))
            y += TALL + NOTE.height + GAP
        self.draw_legend(bottom + 30)
        return self.titled_svg(right + MARGIN, bottom + 42 + MARGIN)

    def draw_scale(self, bottom: float) -> None:
        step = tick_seconds(self.most)
        for number in range(floor(self.most / step + 1e-9) + 1 if self.most else 0):
            x = self.left + ROOM * number * step / self.most
            self.draw_rule(x, self.top - 6, x, bottom - 4)
            self.write_text(f"{number * step:.10g} {self.unit}", x, bottom + 10, LABEL, MUTED, anchor="middle")

    def draw_row(self, row: BarRow, y: float) -> float:
        """Draw a row, and return where it ends."""
        self.write_text(row.name, MARGIN, y + 19, NAME, INK)
        x = self.left
        for kind, length in row.parts:
            paint, long = PAINTS[kind], ROOM * length / self.most if self.most else 0.0
            self.out.append(
                f'<g class="bar k-{kind}"><title>{escape(row.name)}, {kind}: {length:.4g} {self.unit}</title>'
                f'<rect x="{x:.2f}" y="{y:.1f}" width="{long:.2f}" height="{TALL:.1f}" fill="{paint.fill}" '
                f'stroke="{paint.edge}" stroke-width="{min(1.0, long / 6):.2f}"/></g>'
            )
            x += long
        if row.marked:
            long = x - self.left
            self.out.append(
                f'<rect x="{self.left:.1f}" y="{y + TALL - 3:.1f}" width="{long:.2f}" height="3" fill="{INK}"/>'
            )
        end = x + 8 + text_width(row.total, NAME)
        self.write_text(row.total, x + 8, y + 19, NAME, INK)
        # Without a bar, the note says why.
        self.write_text(
            row.note, self.left, y + TALL + 13 if row.parts else y + 19, NOTE, MUTED if row.parts else BARRIER_TEXT
        )
        return max(end, self.left + text_width(row.note, NOTE))

    def draw_legend(self, y: float) -> None:
        x = self.left
        kinds = {kind for row in self.rows for kind, _ in row.parts}
        for kind in (kind for kind in PAINTS if kind in kinds):
            paint = PAINTS[kind]
            self.out.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="20" height="12" rx="4" fill="{paint.fill}" '
                f'stroke="{paint.edge}"/>'
            )
            self.write_text(kind, x + 27, y + 10, SMALL, MUTED)
            x += 27 + text_width(kind, SMALL) + 22
        if any(row.marked for row in self.rows):
            self.out.append(f'<rect x="{x:.1f}" y="{y + 5:.1f}" width="20" height="3" fill="{INK}"/>')
            self.write_text("chosen", x + 27, y + 10, SMALL, MUTED)


class _Lines(_Pen):
    """A picture of lines."""

    def __init__(self, title: str, note: str, axis: PanelAxis, panels: Sequence[Panel]) -> None:
        super().__init__(title, note)
        self.axis, self.panels = axis, panels
        self.top = MARGIN + HEAD.height + 40
        self.bottom = self.top + HIGH

    def draw_picture(self) -> str:
        left = MARGIN + 50
        for panel in self.panels:
            self.draw_panel(panel, left)
            left += PANEL + BETWEEN
        return self.titled_svg(left - BETWEEN + 40 + MARGIN, self.bottom + 48 + MARGIN)

    def label_position_fractions(self) -> list[float]:
        """Return where each label stands, as fractions of a panel's width."""
        count = len(self.axis.labels)
        places = [log10(place) if self.axis.logarithmic else place for place in self.axis.places] or list(
            map(float, range(count))
        )
        low, high = min(places, default=0.0), max(places, default=0.0)
        return [0.06 + 0.88 * ((place - low) / (high - low) if high > low else 0.5) for place in places]

    def draw_panel(self, panel: Panel, left: float) -> None:
        most = max((value for value in panel.values if value is not None), default=0.0)
        step = tick_seconds(most)
        self.write_text(panel.title, left, self.top - 18, NAME, INK)
        for number in range(floor(most / step + 1e-9) + 1):
            y = self.bottom - HIGH * (number * step / most if most else 0.0)
            self.draw_rule(left, y, left + PANEL, y)
            self.write_text(f"{number * step:.10g}", left - 8, y + 3.5, LABEL, MUTED, anchor="end")
        free = left - 1e9
        for label, share in sorted(
            zip(self.axis.labels, self.label_position_fractions(), strict=True), key=lambda pair: pair[1]
        ):
            x = left + PANEL * share
            if x - text_width(label, LABEL) / 2 > free:
                self.write_text(label, x, self.bottom + 16, LABEL, MUTED, anchor="middle")
                free = x + text_width(label, LABEL) / 2 + 6
        self.write_text(self.axis.name, left + PANEL / 2, self.bottom + 36, NOTE, MUTED, anchor="middle")
        self.draw_line(panel, left, most)

    def draw_line(self, panel: Panel, left: float, most: float) -> None:
        """Draw a line through the points that exist; a missing one is a cross at the bottom."""
        paint, path, pen = ROLES["policy"], "", "M"
        points = []
        values = zip(self.axis.labels, self.label_position_fractions(), panel.values, strict=True)
        for label, share, value in sorted(values, key=lambda value_at: value_at[1]):
            x = left + PANEL * share
            if value is None:
                pen = "M"
                self.out.append(
                    f'<g class="none"><title>{escape(label)}: does not fit</title><path d="M{x - 4:.1f} '
                    f"{self.bottom - 8:.1f}"
                    f'l8 8m0 -8l-8 8" stroke="{BARRIER_TEXT}" stroke-width="1.6" fill="none"/></g>'
                )
                continue
            y = self.bottom - HIGH * (value / most if most else 0.0)
            path, pen = f"{path}{pen}{x:.1f} {y:.1f}", "L"
            points.append((label, value, x, y))
        if path and self.axis.places:
            self.out.append(f'<path class="line" d="{path}" fill="none" stroke="{paint.edge}" stroke-width="2"/>')
        for label, value, x, y in points:
            self.out.append(
                f'<g class="point"><title>{escape(label)}: {value:.4g}</title>'
                f'<circle cx="{x:.2f}" cy="{y:.2f}" r="4" fill="{PAPER}" stroke="{paint.edge}" stroke-width="2"/></g>'
            )
