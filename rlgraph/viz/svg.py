"""Draws a program's graph as SVG."""

from __future__ import annotations

from rlgraph.ir.graph import Program
from rlgraph.viz import svg_elements
from rlgraph.viz.boxes import Box
from rlgraph.viz.escape import escape
from rlgraph.viz.layout import MARGIN, Drawing, EntryTab, PlacedBox, ValueLabel, ValueLine, lay_out_scene
from rlgraph.viz.legend import LegendEntry, legend_entries
from rlgraph.viz.measure import has_badge, label_lines, model_caption_lines, pill_text
from rlgraph.viz.scene import to_scene
from rlgraph.viz.theme import (
    BARRIER,
    BARRIER_TEXT,
    CODE,
    FAINT,
    HEAD,
    KINDS,
    LABEL,
    LINE,
    MUTED,
    NAME,
    NOTE,
    ROLES,
    SECTION,
    SMALL,
    TITLE,
    Paint,
)


def to_svg(program: Program, prefix: str = "", *, embed: bool = True) -> str:
    """Return the picture; all ids begin with the prefix, so that several pictures can stand in one page. embed:
    includes the fonts, which a page that has them already does not need."""
    svg = drawing_to_svg(lay_out_scene(to_scene(program)), prefix)
    return svg_elements.with_fonts(svg) if embed else svg


def drawing_to_svg(drawing: Drawing, prefix: str = "") -> str:
    """Return a drawing as SVG text."""
    return _Pen(prefix).draw_picture(drawing)


class _Pen(svg_elements.Pen):
    """Draws a program's graph."""

    def draw_picture(self, drawing: Drawing) -> str:
        legend, tall, wide = legend_entries(drawing, max(drawing.width, 640.0) - 2 * MARGIN)
        wide, tall = round(max(drawing.width, wide + 2 * MARGIN)), round(drawing.height + tall + MARGIN)
        for heading in drawing.headings:
            style = HEAD if heading.large else SECTION
            self.out += svg_elements.heading_elements(
                heading.text, heading.note, heading.x, heading.y + style.size, style
            )
        for shape in drawing.shapes:
            if shape.box.body is not None:
                self.draw_shape(shape)
        for stroke in drawing.strokes:
            self.draw_stroke(stroke)
        for tab in drawing.tabs:
            self.draw_tab(tab)
        for shape in drawing.shapes:
            if shape.box.body is None:
                self.draw_shape(shape)
        for label in drawing.labels:
            self.draw_label(label)
        for entry in legend:
            self.draw_legend_entry(entry, MARGIN, drawing.height)
        return self.picture_svg(svg_elements.picture_head(drawing.title, wide, tall, f"{self.prefix}svg"))

    def escaped_id(self, name: str) -> str:
        return escape(f"{self.prefix}{name}")

    # Pieces

    def draw_shape(self, s: PlacedBox) -> None:
        box = s.box
        named = " ".join(
            filter(None, (f"node k-{box.kind}", svg_elements.role_css_classes(box.role), "waits" if box.waits else ""))
        )
        self.out.append(f'<g class="{named}" id="{self.escaped_id(box.id)}" data-node="{box.id}">')
        self.out.append(f"<title>{escape(box.tooltip)}</title>")
        if box.kind in ("model", "train"):
            self.draw_container(s)
        elif box.kind == "loop":
            self.draw_loop(s)
        elif box.kind in ("column", "minimize", "next", "report"):
            self.draw_pill(s)
        else:
            self.draw_box(s)
        self.out.append("</g>")

    def draw_barrier(self, s: PlacedBox, inset: float = 0.0) -> None:
        """Draw the thick edge of a box that waits."""
        if s.box.waits:
            self.out.append(
                f'<path class="barrier" d="M{s.x:.1f} {s.y + inset:.1f}V{s.y + s.height - inset:.1f}" '
                f'stroke="{BARRIER}" stroke-width="4" stroke-linecap="round" fill="none"/>'
            )

    def draw_badge(self, words: str, x: float, y: float) -> None:
        """Draw an hourglass and what is waited for; y is the text's base line."""
        self.out.append(
            f'<path class="glass" fill="{BARRIER}" d="M{x:.1f} {y - 8.5:.1f}h7l-2.7 4.5l2.7 4.5h-7l2.7-4.5z"/>'
        )
        self.write_text(words, x + 12, y, SMALL, BARRIER_TEXT, "badge")

    def draw_container(self, s: PlacedBox) -> None:
        box, paint = s.box, ROLES[s.box.role]
        broken = ' stroke-width="1.5" stroke-dasharray="5 3"' if "frozen" in box.role else ' stroke-width="1.5"'
        self.draw_rect(s.x, s.y, s.width, s.height, 10, paint, "container", broken)
        self.draw_barrier(s, 8)
        x, y = s.x + 14, s.y + 22
        self.write_text(box.title, x, y, TITLE, paint.text, "title")
        if box.kind == "train":
            self.draw_note(box, x, y)
            return
        for line in model_caption_lines(box):
            y += SMALL.height
            self.write_text(line, x, y, SMALL, paint.text, "side")

    def draw_loop(self, s: PlacedBox) -> None:
        paint = KINDS["loop"]
        self.draw_rect(s.x, s.y, s.width, s.height, 12, paint, "frame", ' stroke-width="1.5"')
        self.draw_barrier(s, 10)
        x, y = s.x + 14, s.y + 22
        self.out.append(
            f'<path class="round" d="M{x + 11:.1f} {y - 6.5:.1f}a5 5 0 1 1 -2.2 -2.6m.4 -3.2v3.4h-3.4" '
            f'fill="none" stroke="{paint.text}" stroke-width="1.6" stroke-linecap="round"/>'
        )
        self.write_text(s.box.title, x + 20, y, TITLE, paint.text, "title")
        self.draw_note(s.box, x, y)

    def draw_note(self, box: Box, x: float, y: float) -> None:
        if box.note:
            y += NOTE.height + 1
            self.write_text(box.note, x, y, NOTE, MUTED, "note")

    def draw_pill(self, s: PlacedBox) -> None:
        box = s.box
        middle, base = s.x + s.width / 2, s.y + s.height / 2 + 3.8
        if box.kind == "minimize":
            role = ROLES[box.role]
            self.draw_rect(s.x, s.y, s.width, s.height, 12, Paint(role.edge, role.edge, "", ""), "pill")
            self.write_text(pill_text(box), middle, base, CODE, "#ffffff", "white", "middle")
            return
        paint = ROLES[box.role] if box.role else KINDS[box.kind]
        broken = ' stroke-dasharray="4 3"' if box.kind == "next" else ""
        self.draw_rect(s.x, s.y, s.width, s.height, 6 if box.kind == "report" else 12, paint, "pill", broken)
        if box.kind == "report":
            # A small bar chart.
            x, y = s.x + 10, s.y + s.height / 2 + 5
            self.out.append(
                f'<path class="bars" d="M{x:.1f} {y:.1f}v-4m4 4v-10m4 10v-7" stroke="{FAINT}" stroke-width="2.4"/>'
            )
            self.write_text(pill_text(box), s.x + 26, base, LABEL, paint.text, "pill")
            return
        self.write_text(
            pill_text(box), middle, base, SMALL if box.kind == "next" else CODE, paint.text, "pill", "middle"
        )

    def draw_box(self, s: PlacedBox) -> None:
        box = s.box
        role = ROLES[box.role]
        paint = Paint(role.chip, role.edge, role.text, "") if box.kind == "op" else KINDS[box.kind]
        y = s.y + 7 + NAME.size
        if box.kind == "data":
            self.draw_cylinder(s, paint)
            y += 6
        else:
            self.draw_rect(
                s.x,
                s.y,
                s.width,
                s.height,
                7,
                paint,
                "box",
                ' stroke-dasharray="4 3"' if box.kind == "state" else "",
            )
        self.draw_barrier(s, 5)
        x = s.x + 12
        self.write_text(box.title, x, y, NAME, paint.text, "name")
        if box.note:
            y += NOTE.height
            self.write_text(box.note, x, y, NOTE, MUTED, "note")
        for line in box.lines:
            y += CODE.height
            self.write_text(line, x, y, CODE, "#475467", "code")
        if has_badge(box):
            self.draw_badge(box.waits, x, y + SMALL.height + 3)

    def draw_cylinder(self, s: PlacedBox, paint: Paint) -> None:
        w, h, r = s.width, s.height, 6
        self.out.append(
            f'<path class="box" d="M{s.x:.1f} {s.y + r:.1f}a{w / 2:.1f} {r} 0 0 1 {w:.1f} 0v{h - 2 * r:.1f}'
            f'a{w / 2:.1f} {r} 0 0 1 {-w:.1f} 0z" fill="{paint.fill}" stroke="{paint.edge}"/>'
            f'<path class="rim" d="M{s.x:.1f} {s.y + r:.1f}a{w / 2:.1f} {r} 0 0 0 {w:.1f} 0" fill="none" '
            f'stroke="{paint.edge}"/>'
        )

    # Lines and what is written on them

    def draw_stroke(self, s: ValueLine) -> None:
        colour = ROLES[s.link.role].edge if s.link.role else LINE
        broken = ' stroke-dasharray="5 4" opacity="0.75"' if s.link.line != "data" else ""
        parts = []
        for x, y, end_x, end_y in s.pieces:
            if abs(x - end_x) < 0.5:
                parts.append(f"M{x:.1f} {y:.1f}V{end_y:.1f}")
            else:
                bend = (end_y - y) * 0.55
                parts.append(
                    f"M{x:.1f} {y:.1f}C{x:.1f} {y + bend:.1f} {end_x:.1f} {end_y - bend:.1f} {end_x:.1f} {end_y:.1f}"
                )
        named = f"line l-{s.link.line} {svg_elements.role_css_classes(s.link.role)}".rstrip()
        self.out.append(
            f'<g class="{named}" data-value="{escape(s.link.out)}">'
            f"<title>{escape(s.link.out)}</title>"
            f'<path d="{"".join(parts)}" fill="none" stroke="{colour}" stroke-width="1.3"{broken}/>'
            f"{svg_elements.arrow_heads(s.arrows, colour)}</g>"
        )

    def draw_label(self, label: ValueLabel) -> None:
        weights = label.port.line != "data"
        y = label.y + LABEL.size - 1
        for index, line in enumerate(label_lines(label.port)):
            name = weights or (index == 0 and len(label_lines(label.port)) > 1)
            fill = ROLES[label.port.role].text if label.port.role else "#475467" if name else MUTED
            self.write_text(line, label.x, y, LABEL, fill, "label" if name else "type", "middle")
            y += LABEL.height

    def draw_tab(self, tab: EntryTab) -> None:
        paint = ROLES[tab.port.role] if tab.port.role else Paint("#eceff4", "#c4cad4", "#344054", "")
        x, y, w, h, r = tab.x, tab.y, tab.width, tab.height, 7
        self.out.append(
            f'<path class="tab" d="M{x:.1f} {y:.1f}v{h - r:.1f}q0 {r} {r} {r}h{w - 2 * r:.1f}'
            f'q{r} 0 {r} {-r}v{r - h:.1f}z" fill="{paint.fill}" stroke="{paint.edge}"/>'
        )
        self.write_text(tab.port.label, x + w / 2, y + h / 2 + 3.8, CODE, paint.text, "tab", "middle")

    # Legend

    def draw_legend_entry(self, entry: LegendEntry, x: float, y: float) -> None:
        x, y = x + entry.x, y + entry.y
        self.out.append(f'<g class="legend {entry.name}">')
        if entry.kind == "barrier":
            self.out.append(
                f'<path d="M{x + 4:.1f} {y:.1f}v12" stroke="{BARRIER}" stroke-width="4" stroke-linecap="round"/>'
            )
        elif entry.kind == "weights":
            self.out.append(svg_elements.weights_legend_line(x, y))
        else:
            paint = entry.paint
            self.draw_rect(
                x,
                y,
                20,
                12,
                4,
                paint,
                f"swatch {entry.kind}",
                ' stroke-dasharray="4 2"' if entry.broken else "",
            )
        self.write_text(entry.words, x + (14 if entry.kind == "barrier" else 27), y + 10, SMALL, MUTED, "legend")
        self.out.append("</g>")
