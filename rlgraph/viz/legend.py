"""The legend of a picture: the meaning of the colours and edges that it uses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlgraph.viz.boxes import Box, Role
from rlgraph.viz.layout import Drawing
from rlgraph.viz.measure import text_width
from rlgraph.viz.svg_elements import role_css_classes
from rlgraph.viz.theme import KINDS, ROLES, SMALL, Paint

ROW = 20.0

MODELS: dict[Role, str] = {
    "policy": "model, trained",
    "policy frozen": "model, frozen",
    "critic": "value model",
    "critic frozen": "value model, frozen",
    "reward": "reward model, trained",
    "reward frozen": "reward model, frozen",
}


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """An entry of a legend, with its place."""

    kind: str
    words: str
    paint: Paint
    broken: bool = False
    name: str = ""
    """CSS classes, for a page's style sheet: those of what is explained."""
    x: float = 0.0
    y: float = 0.0


def legend_entries(drawing: Drawing, room: float) -> tuple[list[LegendEntry], float, float]:
    """Return the entries in rows of at most that width, with the height and width of all."""
    boxes = [shape.box for shape in drawing.shapes]
    return pack_entries(_used(boxes, any(stroke.link.line == "weights" for stroke in drawing.strokes)), room)


def pack_entries(entries: list[LegendEntry], room: float) -> tuple[list[LegendEntry], float, float]:
    """Do the same for given entries."""
    placed: list[LegendEntry] = []
    x = y = widest = 0.0
    for entry in entries:
        entry_width = 27 + text_width(entry.words, SMALL) + 22
        if x and x + entry_width > room:
            x, y = 0.0, y + ROW
        placed.append(replace(entry, x=x, y=y))
        x += entry_width
        widest = max(widest, x)
    return placed, y + ROW if placed else 0.0, widest


def _used(boxes: list[Box], weights: bool) -> list[LegendEntry]:
    roles = {box.role for box in boxes if box.kind in ("model", "train")}
    kinds = {box.kind for box in boxes}
    no_paint = Paint("", "", "", "")
    entries_used = [
        LegendEntry("container", words, ROLES[role], "frozen" in role, role_css_classes(role))
        for role, words in MODELS.items()
        if role in roles
    ]
    named = (("loop", "loop"), ("call", "Python function"), ("tensor", "tensor maths"), ("state", "state"))
    entries_used += [
        LegendEntry("frame" if kind == "loop" else "box", words, KINDS[kind], name=f"k-{kind}")
        for kind, words in named
        if kind in kinds
    ]
    if weights:
        entries_used.append(LegendEntry("weights", "weights", no_paint))
    if any(box.waits for box in boxes):
        entries_used.append(LegendEntry("barrier", "waits for its group or the batch", no_paint))
    return entries_used
