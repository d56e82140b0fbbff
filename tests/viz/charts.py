"""Reads a chart's SVG: which bars there are, and where."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Drawn:
    told: str
    """What its tip says."""
    x: float
    y: float
    width: float
    height: float
    fill: tuple[str | None, str | None]
    """Colour, and how much of it."""

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def seconds(self) -> tuple[float, float]:
        """From when to when, as the tip says."""
        found = re.search(r": (\S+) s to (\S+) s$", self.told)
        assert found
        return float(found[1]), float(found[2])


def bars_of(svg: str) -> list[Drawn]:
    """From the top to the bottom, those of one look together."""
    found = []
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        shift = re.fullmatch(r"translate\(0 ([\d.]+)\)", group.get("transform", ""))
        for rect in group.findall(f"{SVG}rect"):
            title = rect.find(f"{SVG}title")
            if title is not None and shift:
                x, wide, tall = (float(rect.get(name, "nan")) for name in ("x", "width", "height"))
                fill = group.get("fill"), group.get("fill-opacity")
                found.append(Drawn(title.text or "", x, float(shift[1]), wide, tall, fill))
    return found
