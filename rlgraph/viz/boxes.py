"""A program as nested boxes, ports and links: what there is to draw, without positions.

Every value has one source in a body: a box, or a port of the frame around it (the empty id). So a value
enters a frame once, however many boxes in it use the value.
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
    """Where a value enters or leaves a box."""

    value: str
    """Its name outside of the box."""
    label: str
    line: Line = "data"
    inside: str = ""
    """Of a frame: its name inside."""
    role: Role = ""
    """Of the model whose weights they are."""


@dataclass(frozen=True, slots=True)
class Link:
    """From a box's output to a box's input; an empty id is the frame, whose ports are named as inside."""

    source: str
    out: str
    target: str
    into: str
    line: Line = "data"
    role: Role = ""


@dataclass(frozen=True, slots=True)
class Body:
    boxes: tuple[Box, ...] = ()
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    id: str
    kind: BoxKind
    title: str
    note: str = ""
    """Beside the title of a container, under that of others."""
    lines: tuple[str, ...] = ()
    """A formula, cut to what fits."""
    role: Role = ""
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    body: Body | None = None
    waits: str = ""
    """`waits for the batch`, at a barrier."""
    reason: str = ""
    text: str = ""
    """The node in the graph's own notation."""
    rows: tuple[int, ...] = ()
    """The lines of the program's text that it was made of."""
    file: str = ""
    """Which text that is."""

    @property
    def tip(self) -> str:
        """What the pointer shows."""
        parts = [self.text or self.title]
        if self.waits:
            parts.append(f"{self.waits}: {self.reason}")
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Section:
    """One phase."""

    title: str
    note: str
    body: Body


@dataclass(frozen=True, slots=True)
class Scene:
    title: str
    sections: tuple[Section, ...] = ()

    def walk(self) -> Iterator[Box]:
        """Every box, those inside after the one that holds them."""
        for section in self.sections:
            yield from walk(section.body)


def walk(body: Body) -> Iterator[Box]:
    """Every box of a body, those inside after the one that holds them."""
    for box in body.boxes:
        yield box
        if box.body:
            yield from walk(box.body)
