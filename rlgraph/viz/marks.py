"""Elements of SVG that several pictures are made of. Classes let a page's style sheet repaint them."""

from __future__ import annotations

from html import escape

from rlgraph.viz.fonts import FAMILY, WEIGHT
from rlgraph.viz.theme import Paint, Style


def words(text: str, x: float, y: float, style: Style, fill: str, name: str, anchor: str = "start") -> str:
    """A line of text; y is its base line."""
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return (
        f'<text class="t-{name}" x="{x:.1f}" y="{y:.1f}"{at} font-family="{FAMILY[style.face]}" '
        f'font-size="{style.size:g}" font-weight="{WEIGHT[style.face]}" fill="{fill}" '
        f'xml:space="preserve">{escape(text)}</text>'
    )


def rectangle(x: float, y: float, w: float, h: float, r: float, paint: Paint, name: str, extra: str = "") -> str:
    """A rectangle with round corners."""
    return (
        f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{r:g}" '
        f'fill="{paint.fill}" stroke="{paint.edge}"{extra}/>'
    )
