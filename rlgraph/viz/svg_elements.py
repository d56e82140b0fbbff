"""SVG elements that several pictures use. Classes let a page's style sheet repaint them."""

from __future__ import annotations

from collections.abc import Iterable

from rlgraph.viz import fonts
from rlgraph.viz.boxes import Role
from rlgraph.viz.escape import escape
from rlgraph.viz.fonts import FAMILY, WEIGHT, text_width_bound
from rlgraph.viz.theme import INK, MUTED, NOTE, PAPER, ROLES, Paint, Style

NAMESPACE = "http://www.w3.org/2000/svg"


def picture_head(title: str, wide: int, tall: int, id: str = "") -> list[str]:
    """Return the lines with which a picture begins: its size, its title, its paper."""
    named = f' id="{escape(id)}"' if id else ""
    return [
        f'<svg xmlns="{NAMESPACE}" class="rlgraph"{named} width="{wide}" height="{tall}" '
        f'viewBox="0 0 {wide} {tall}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect class="paper" width="{wide}" height="{tall}" fill="{PAPER}"/>',
    ]


def with_fonts(svg: str) -> str:
    """Return the same picture with its fonts, for a browser: only in these a text fits its box."""
    first, end, rest = svg.partition(">\n")
    return f"{first}{end}<style>\n{fonts.font_style_sheet()}\n</style>\n{rest}"


def role_css_classes(role: Role) -> str:
    """Return the classes of what belongs to a model: `r-policy r-frozen`."""
    return f"r-{role.replace(' ', ' r-')}" if role else ""


def text_element(text: str, x: float, y: float, style: Style, fill: str, name: str = "", anchor: str = "") -> str:
    """Return a line of text; y is its base line."""
    named = f' class="t-{name}"' if name else ""
    at = f' text-anchor="{anchor}"' if anchor else ""
    return (
        f'<text{named} x="{x:.1f}" y="{y:.1f}"{at} font-family="{FAMILY[style.face]}" '
        f'font-size="{style.size:g}" font-weight="{WEIGHT[style.face]}" fill="{fill}" '
        f'xml:space="preserve">{escape(text)}</text>'
    )


def rectangle(x: float, y: float, w: float, h: float, r: float, paint: Paint, name: str, extra: str = "") -> str:
    """Return a rectangle with round corners."""
    return (
        f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{r:g}" '
        f'fill="{paint.fill}" stroke="{paint.edge}"{extra}/>'
    )


def heading_elements(text: str, note: str, x: float, y: float, style: Style) -> list[str]:
    """Return a title and the note beside it; y is their base line."""
    elements = [text_element(text, x, y, style, INK, "head")]
    if note:
        elements.append(
            text_element(note, x + text_width_bound(text, style.face, style.size) + 12, y, NOTE, MUTED, "note")
        )
    return elements


def arrow_heads(ends: Iterable[tuple[float, float]], fill: str) -> str:
    """Return the heads of a line that points down to each of its ends."""
    heads = "".join(f"M{x - 3.6:.1f} {y - 7:.1f}h7.2l-3.6 7z" for x, y in ends)
    return f'<path class="arrow" d="{heads}" fill="{fill}"/>' if heads else ""


def weights_legend_line(x: float, y: float) -> str:
    """Return the line of weights for a legend."""
    return (
        f'<path d="M{x:.1f} {y + 6:.1f}h20" stroke="{ROLES["policy"].edge}" stroke-width="1.3" '
        'stroke-dasharray="5 4" fill="none"/>'
    )


class Pen:
    """Collects the SVG elements of a picture; classes let a page's style sheet repaint them."""

    anchor = ""
    """Where texts stand by their place, if nothing else is said."""

    def __init__(self, prefix: str = "") -> None:
        """prefix: that of all ids."""
        self.prefix = prefix
        self.out: list[str] = []

    def write_text(
        self, words: str, x: float, y: float, style: Style, fill: str, name: str = "", anchor: str = ""
    ) -> None:
        """Write a line of text; y is its base line."""
        self.out.append(text_element(words, x, y, style, fill, name, anchor or self.anchor))

    def draw_rect(
        self, x: float, y: float, w: float, h: float, r: float, paint: Paint, name: str, extra: str = ""
    ) -> None:
        """Draw a rectangle with round corners."""
        self.out.append(rectangle(x, y, w, h, r, paint, name, extra))

    def picture_svg(self, head: list[str]) -> str:
        """Return the picture: what was drawn, after its head."""
        return "\n".join([*head, *self.out, "</svg>"]) + "\n"
