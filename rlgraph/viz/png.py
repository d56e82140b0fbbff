"""Draws a program's graph as PNG, with the fonts that ship with the package."""

from __future__ import annotations

from pathlib import Path

from rlgraph.ir.graph import Program
from rlgraph.viz import fonts
from rlgraph.viz.svg import to_svg

SCALE = 2.0
MOST_PIXELS = 12_000
"""The most pixels of the longer side: a larger picture is scaled down."""


def to_png(program: Program, path: str | Path | None = None, scale: float = SCALE) -> bytes:
    """Return the picture of a program as `svg_to_png` does."""
    return svg_to_png(to_svg(program, embed=False), scale, path)


def svg_to_png(svg: str, scale: float = SCALE, path: str | Path | None = None) -> bytes:
    """Return SVG text as PNG, at `scale` pixels for each of the SVG's; it is also written to the path if one is
    given."""
    # Imported late, so that a broken wheel breaks only pictures and not the compiler.
    import resvg_py

    wide, tall = (float(svg.split(f' {side}="', 1)[1].split('"', 1)[0]) for side in ("width", "height"))
    zoom = min(scale, MOST_PIXELS / max(wide, tall))
    data = bytes(
        resvg_py.svg_to_bytes(
            svg_string=svg,
            zoom=zoom,
            font_files=fonts.font_files(),
            font_family="Inter",
            sans_serif_family="Inter",
            monospace_family="JetBrains Mono",
        )
    )
    if path is not None:
        Path(path).write_bytes(data)
    return data
