"""The two typefaces of the pictures: their files, and the widths of texts.

The files (cut down to Latin) ship with the package, because a bare machine has no fonts at all, and because a text fits
its box in no other font: pages and SVG files embed them.
"""

from __future__ import annotations

import unicodedata
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Literal

Face = Literal["sans", "bold", "mono", "strong"]
"""`bold` is the heavier sans, `strong` the heavier mono."""

FAMILY: dict[Face, str] = {
    "sans": "Inter, system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif",
    "bold": "Inter, system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif",
    "mono": "'JetBrains Mono', ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace",
    "strong": "'JetBrains Mono', ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace",
}
WEIGHT: dict[Face, int] = {"sans": 400, "bold": 600, "mono": 400, "strong": 600}

_MONO = 600
# Advances of Inter SemiBold for the characters 32 to 126, in thousandths; the regular is narrower.
_INTER = (
    252,
    321,
    523,
    644,
    650,
    1004,
    663,
    326,
    373,
    373,
    540,
    673,
    319,
    465,
    319,
    379,
    660,
    423,
    623,
    636,
    666,
    612,
    640,
    576,
    640,
    640,
    319,
    329,
    673,
    673,
    673,
    543,
    999,
    728,
    659,
    737,
    722,
    605,
    588,
    749,
    746,
    277,
    580,
    703,
    565,
    922,
    759,
    769,
    645,
    773,
    652,
    650,
    660,
    736,
    728,
    1020,
    720,
    713,
    652,
    373,
    379,
    373,
    481,
    469,
    351,
    574,
    624,
    583,
    624,
    591,
    389,
    625,
    612,
    262,
    262,
    569,
    262,
    900,
    612,
    609,
    624,
    624,
    397,
    549,
    353,
    612,
    587,
    839,
    569,
    588,
    566,
    455,
    359,
    455,
    673,
)


def font_files() -> list[str]:
    """Return the paths of the font files."""
    return sorted(str(path) for path in (Path(__file__).parent / "fonts").glob("*.ttf"))


@cache
def font_style_sheet() -> str:
    """Return a style sheet that embeds both typefaces, for a picture that a browser shows."""
    faces = (("Inter", "Inter"), ("JetBrains Mono", "JetBrainsMono"))
    return "\n".join(
        f"@font-face {{ font-family: '{family}'; font-weight: {weight}; "
        f"src: url(data:font/ttf;base64,{_encoded(f'{file}-{name}.ttf')}); }}"
        for family, file in faces
        for weight, name in ((400, "Regular"), (600, "SemiBold"))
    )


def _encoded(name: str) -> str:
    return b64encode((Path(__file__).parent / "fonts" / name).read_bytes()).decode()


def text_width_bound(text: str, face: Face, size: float) -> float:
    """Return an upper bound of a text's width in pixels."""
    mono = face in ("mono", "strong")
    return sum(_advance(char, mono) for char in text) * size / 1000


def _advance(char: str, mono: bool) -> int:
    codepoint = ord(char)
    if 32 <= codepoint < 127:
        return _MONO if mono else _INTER[codepoint - 32]
    if unicodedata.combining(char):
        return 0
    return 1050 if unicodedata.east_asian_width(char) in "WF" else _MONO + (0 if mono else 80)
