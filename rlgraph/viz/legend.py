"""The legend of a picture: the meaning of the colours and edges that it uses, and no others."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlgraph.viz.boxes import Box, Role
from rlgraph.viz.layout import Drawing
from rlgraph.viz.marks import classes
from rlgraph.viz.measure import text
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
class Entry:
    kind: str
    words: str
    paint: Paint
    broken: bool = False
    name: str = ""
    """Classes, for a page's style sheet: those of what is explained."""
    x: float = 0.0
    y: float = 0.0


def entries(drawing: Drawing, room: float) -> tuple[list[Entry], float, float]:
    """The entries in rows of at most that width, with the height and width of all."""
    boxes = [shape.box for shape in drawing.shapes]
    return packed(_found(boxes, any(stroke.link.line == "weights" for stroke in drawing.strokes)), room)


def packed(entries: list[Entry], room: float) -> tuple[list[Entry], float, float]:
    """The same for entries that are known."""
    found: list[Entry] = []
    x = y = widest = 0.0
    for entry in entries:
        wide = 27 + text(entry.words, SMALL) + 22
        if x and x + wide > room:
            x, y = 0.0, y + ROW
        found.append(replace(entry, x=x, y=y))
        x += wide
        widest = max(widest, x)
    return found, y + ROW if found else 0.0, widest


def _found(boxes: list[Box], weights: bool) -> list[Entry]:
    roles = {box.role for box in boxes if box.kind in ("model", "train")}
    kinds = {box.kind for box in boxes}
    plain = Paint("", "", "", "")
    found = [
        Entry("container", words, ROLES[role], "frozen" in role, classes(role))
        for role, words in MODELS.items()
        if role in roles
    ]
    named = (("loop", "loop"), ("call", "Python function"), ("tensor", "tensor maths"), ("state", "state"))
    found += [
        Entry("frame" if kind == "loop" else "box", words, KINDS[kind], name=f"k-{kind}")
        for kind, words in named
        if kind in kinds
    ]
    if weights:
        found.append(Entry("weights", "weights", plain))
    if any(box.waits for box in boxes):
        found.append(Entry("barrier", "waits for its group or the batch", plain))
    return found
