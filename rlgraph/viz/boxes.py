"""A program as nested boxes, ports and links: what there is to draw, without positions.

Every value has one source in a body: a box, or a port of the frame around it (the empty id). So a value enters a frame
once, however many boxes in it use the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

BoxKind = Literal[
    "data", "op", "call", "table", "column", "tensor", "report", "state", "minimize", "next", "model", "train", "loop"
]
"""`model`, `train` and `loop` hold other boxes; a report has a box for each of its metrics."""
Role = Literal["", "policy", "critic", "reward", "policy frozen", "critic frozen", "reward frozen"]
Line = Literal["data", "weights", "state"]


@dataclass(frozen=True, slots=True)
class Port:
    """A point at which a value enters or leaves a box."""

    value: str
    """Its name outside the box."""
    label: str
    line: Line = "data"
    inside: str = ""
    """Its name inside, if the box is a frame."""
    role: Role = ""
    """The role of the model whose weights the value is."""


@dataclass(frozen=True, slots=True)
class ValueLink:
    """A line from a box's output to a box's input; an empty id is the frame, whose ports have their inside names."""

    source: str
    out: str
    target: str
    into: str
    line: Line = "data"
    role: Role = ""


@dataclass(frozen=True, slots=True)
class Body:
    """The boxes in a frame or a section, and the links between them."""

    boxes: tuple[Box, ...] = ()
    links: tuple[ValueLink, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """One box of a picture: an operation, or a container of other boxes."""

    id: str
    kind: BoxKind
    title: str
    note: str = ""
    """Stands beside the title of a container, and under that of other boxes."""
    lines: tuple[str, ...] = ()
    """The lines of a formula, cut to what fits."""
    role: Role = ""
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    body: Body | None = None
    waits: str = ""
    """E.g. `waits for the batch`, at a barrier."""
    reason: str = ""
    text: str = ""
    """The node in the graph's own notation."""
    rows: tuple[int, ...] = ()
    """The lines of the program's text that it was made of."""
    file: str = ""
    """The name of that text."""

    @property
    def tooltip(self) -> str:
        """The tooltip."""
        parts = [self.text or self.title]
        if self.waits:
            parts.append(f"{self.waits}: {self.reason}")
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Section:
    """The picture of one phase."""

    title: str
    note: str
    body: Body


@dataclass(frozen=True, slots=True)
class Scene:
    """A program to draw, with a section for each phase."""

    title: str
    sections: tuple[Section, ...] = ()

    def walk_boxes(self) -> Iterator[Box]:
        """Yield every box, those inside after the one that holds them."""
        for section in self.sections:
            yield from walk_boxes(section.body)


def walk_boxes(body: Body) -> Iterator[Box]:
    """Yield every box of a body, those inside after the one that holds them."""
    for box in body.boxes:
        yield box
        if box.body:
            yield from walk_boxes(box.body)
