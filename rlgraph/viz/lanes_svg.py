"""Draws lanes as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.passes.cost.peak_memory import TIGHT
from rlgraph.viz import svg_elements
from rlgraph.viz.escape import escape
from rlgraph.viz.lanes import Lanes, LaneWork, PoolLane
from rlgraph.viz.lanes_layout import (
    BAR,
    MARGIN,
    PAD,
    SWATCH,
    EdgePath,
    LanesDrawing,
    Place,
    edge_label,
    lay_out_lanes,
    memory_bars,
    work_lines,
)
from rlgraph.viz.legend import MODELS, LegendEntry, pack_entries
from rlgraph.viz.theme import (
    BARRIER,
    HEAD,
    INK,
    KINDS,
    LABEL,
    LINE,
    MUTED,
    NAME,
    NOTE,
    PAPER,
    ROLES,
    SECTION,
    SMALL,
    TITLE,
    Paint,
)

LANE, HEADED = Paint("#fbfbfd", "#d0d5dd", "", ""), Paint("#f2f4f7", "none", "", "")
ROOM = "#dfe3ea"
"""The colour of the empty part of a bar."""
BEND = 6.0
"""The radius of a line's corners."""


def to_svg(picture: Lanes, prefix: str = "", *, embed: bool = True) -> str:
    """Return the SVG. prefix: that of all ids. embed: includes the fonts."""
    svg = _Pen(prefix).draw_picture(lay_out_lanes(picture))
    return svg_elements.with_fonts(svg) if embed else svg


class _Pen(svg_elements.Pen):
    """Draws lanes."""

    def draw_picture(self, placed: LanesDrawing) -> str:
        picture = placed.picture
        legend, tall, wide = pack_entries(_legend(picture), max(placed.width, 640.0) - 2 * MARGIN)
        wide, tall = round(max(placed.width, wide + 2 * MARGIN)), round(placed.height + tall + MARGIN)
        self.write_text(picture.title, MARGIN, MARGIN + HEAD.size, HEAD, INK, "head")
        for line, note in enumerate(picture.notes):
            self.write_text(note, MARGIN, MARGIN + HEAD.height + 10 + line * NOTE.height, NOTE, MUTED, "note")
        for lane, box_place in zip(picture.lanes, placed.lanes, strict=True):
            self.draw_lane(lane, box_place, placed.head)
        for title, note, y in placed.headings:
            self.out += svg_elements.heading_elements(title, note, MARGIN + PAD, y + SECTION.size, SECTION)
        for path in placed.paths:
            self.draw_path(path)
        for work, box_place in placed.works:
            self.draw_work(work, box_place)
        for path in placed.paths:
            self.draw_label(path)
        for entry in legend:
            self.draw_entry(entry, MARGIN, placed.height)
        return self.picture_svg(svg_elements.picture_head(picture.title, wide, tall, f"{self.prefix}svg"))

    # Lanes

    def draw_lane(self, lane: PoolLane, where: Place, head: float) -> None:
        x, y, wide, tall = where
        r = 10
        self.draw_rect(x, y, wide, tall, r, LANE, "lane")
        self.out.append(
            f'<path class="lane-head" d="M{x + 0.5:.1f} {head:.1f}V{y + r:.1f}a{r} {r} 0 0 1 {r} {-r + 0.5}'
            f'h{wide - 2 * r - 1:.1f}a{r} {r} 0 0 1 {r} {r - 0.5}V{head:.1f}z" fill="{HEADED.fill}"/>'
        )
        left, right = x + PAD, x + wide - PAD
        y += PAD + TITLE.size
        self.write_text(lane.name, left, y, TITLE, INK, "title")
        self.write_text(lane.note, right, y, NOTE, MUTED, "note", "end")
        y += TITLE.height - TITLE.size
        for full, lines in memory_bars(lane):
            if full:
                self.draw_bar(left, y + 4, right - left, BAR, full, BARRIER if full > TIGHT else "#667085")
                y += BAR + 8
            for line in lines:
                y += SMALL.height
                self.write_text(line, left, y - 3, SMALL, MUTED, "note")
        for model in lane.deployed:
            y += 8
            self.out.append(
                f'<g class="{svg_elements.role_css_classes(model.role)}">'
                + svg_elements.rectangle(left, y + 3, 10, 10, 3, ROLES[model.role], "container swatch")
                + "</g>"
            )
            self.write_text(model.title, left + SWATCH, y + NAME.size, NAME, INK, "name")
            self.write_text(model.seconds, right, y + NAME.size, NOTE, INK, "name", "end")
            y += NAME.height
            for line in model.how:
                y += SMALL.height
                self.write_text(line, left + SWATCH, y - 4, SMALL, MUTED, "note")

    def draw_bar(self, x: float, y: float, wide: float, tall: float, share: float, fill: str) -> None:
        room = Paint(ROOM, "none", "", "")
        self.draw_rect(x, y, wide, tall, tall / 2, room, "room")
        length = max(tall, wide * min(share, 1.0))
        self.draw_rect(x, y, length, tall, tall / 2, Paint(fill, "none", "", ""), "filled")

    # Work

    def draw_work(self, work: LaneWork, where: Place) -> None:
        x, y, wide, tall = where
        named = f"node k-{work.kind} {svg_elements.role_css_classes(work.role)}".rstrip()
        self.out.append(f'<g class="{named}" id="{escape(self.prefix + work.id)}">')
        self.out.append(f"<title>{escape(work.text or work.title)}</title>")
        paint = ROLES[work.role] if work.role else KINDS[work.kind]
        broken = ' stroke-dasharray="4 3"' if work.kind == "next" else ""
        name = "container" if work.role and work.kind != "next" else "box"
        fill = Paint(PAPER, paint.edge, "", "") if work.kind == "next" else paint
        self.draw_rect(x, y, wide, tall, 7, fill, name, broken)
        y += 7 + NAME.size
        (title, seconds), *notes = work_lines(work)
        self.write_text(title, x + 12, y, NAME, paint.text, "name")
        if seconds:
            self.write_text(seconds, x + wide - 12, y, NAME if work.measured else NOTE, paint.text, "name", "end")
        for left, right in notes:
            y += NOTE.height
            self.write_text(left, x + 12, y, NOTE, MUTED, "note")
            if right:
                self.write_text(right, x + wide - 12, y, NOTE, MUTED, "note", "end")
        if work.share or work.measured_share:
            long = wide - 24
            self.draw_bar(x + 12, y + 8, long, 3, work.measured_share if work.measured else work.share, paint.edge)
            if work.measured and work.share:
                # Where the bar would end if the prediction were right.
                mark = Paint(MUTED, "none", "", "")
                self.draw_rect(x + 12 + long * min(work.share, 1.0) - 1, y + 5.5, 2, 8, 0, mark, "predicted-share")
        self.out.append("</g>")

    # Ways

    def draw_path(self, path: EdgePath) -> None:
        way = path.way
        colour = ROLES[way.role].edge if way.role else LINE
        broken = ' stroke-dasharray="5 4"' if way.line != "data" else ""
        thin = "" if way.names or way.line != "data" else ' opacity="0.6"'
        x, y = path.points[-1]
        tooltip = ", ".join((*way.names, *way.sizes))
        self.out.append(
            f'<g class="line l-{way.line}" data-value="{escape(" ".join(way.names) or way.source + way.target)}">'
            f"<title>{escape(tooltip)}</title>"
            f'<path d="{_bent(path.points, y - 6)}" fill="none" stroke="{colour}" stroke-width="1.3"{broken}{thin}/>'
            f"{svg_elements.arrow_heads([(x, y)], colour)}</g>"
        )

    def draw_label(self, path: EdgePath) -> None:
        if path.label is None:
            return
        x, y = path.label
        names, sizes = edge_label(path.way)
        for lines, fill, name in ((names, "#344054", "label"), (sizes, MUTED, "type")):
            for line in lines:
                y += LABEL.height
                self.write_text(line, x, y - 3, LABEL, fill, name, "middle")

    def draw_entry(self, entry: LegendEntry, x: float, y: float) -> None:
        x, y = x + entry.x, y + entry.y
        self.out.append(f'<g class="legend {entry.name}">')
        if entry.kind == "weights":
            self.out.append(svg_elements.weights_legend_line(x, y))
        elif entry.kind == "share":
            self.draw_bar(x, y + 4, 20, 4, 0.6, ROLES["policy"].edge)
        else:
            self.draw_rect(x, y, 20, 12, 4, entry.paint, f"swatch {entry.kind}")
        self.write_text(entry.words, x + 27, y + 10, SMALL, MUTED, "legend")
        self.out.append("</g>")


def _bent(points: Sequence[tuple[float, float]], end: float) -> str:
    """Return a line with round corners; it stops short of its arrow."""
    (x, y), *rest = points
    commands = [f"M{x:.1f} {y:.1f}"]
    for index, (to_x, to_y) in enumerate(rest):
        if index + 1 == len(rest):
            commands.append(f"L{to_x:.1f} {end:.1f}")
            break
        next_x, next_y = rest[index + 1]
        r = min(BEND, (abs(to_x - x) + abs(to_y - y)) / 2, (abs(next_x - to_x) + abs(next_y - to_y)) / 2)
        before = to_x - _sign(to_x - x) * r, to_y - _sign(to_y - y) * r
        after = to_x + _sign(next_x - to_x) * r, to_y + _sign(next_y - to_y) * r
        commands.append(f"L{before[0]:.1f} {before[1]:.1f}Q{to_x:.1f} {to_y:.1f} {after[0]:.1f} {after[1]:.1f}")
        x, y = to_x, to_y
    return "".join(commands)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _legend(picture: Lanes) -> list[LegendEntry]:
    """Return the entries for what the picture contains."""
    works = list(picture.all_works())
    roles = {work.role for work in works} | {model.role for lane in picture.lanes for model in lane.deployed}
    plain = Paint("", "", "", "")
    entries = [
        LegendEntry("container", text, ROLES[role], name=svg_elements.role_css_classes(role))
        for role, text in MODELS.items()
        if role in roles
    ]
    if any(work.kind == "call" for work in works):
        entries.append(LegendEntry("box", "Python function", KINDS["call"], name="k-call"))
    if any(way.line == "weights" for stage in picture.stages for way in stage.ways):
        entries.append(LegendEntry("weights", "weights", plain))
    if any(work.share or work.measured_share for work in works):
        predicted = any(work.share for work in works if work.measured)
        text = "share of the step; the mark: as predicted" if predicted else "share of the step"
        entries.append(LegendEntry("share", text, plain))
    return entries
