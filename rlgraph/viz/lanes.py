"""A plan as lanes: what there is to draw, without positions.

A lane is a pool. Its head says what it is made of and how models are split on it; work stands in the lane where it
runs, one thing below the other, as the pool takes turns. A way is what goes from one work to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlgraph.viz.boxes import BoxKind, Line, Role


@dataclass(frozen=True, slots=True)
class Deployed:
    """A model in a lane."""

    title: str
    how: tuple[str, ...]
    """Engine, split, and how the model is held."""
    seconds: str = ""
    role: Role = ""


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    note: str
    """Its devices."""
    memory: tuple[str, ...] = ()
    """The fullest moment of a device."""
    full: float = 0.0
    """Which share of the memory that is."""
    deployed: tuple[Deployed, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    id: str
    lane: int
    title: str
    note: str = ""
    kind: BoxKind = "op"
    """`op` is a model's, `next` new weights that arrive."""
    role: Role = ""
    seconds: str = ""
    share: float = 0.0
    """Of the step's time."""
    text: str = ""
    """What else there is to say of it."""
    rows: tuple[int, ...] = ()
    """The lines of the program's text that it was made of."""
    file: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    source: str
    """The work that it comes from; empty for the head of a lane."""
    target: str
    lane: int
    """Where it comes from."""
    names: tuple[str, ...] = ()
    """The values that travel; none: one work waits for another."""
    sizes: tuple[str, ...] = ()
    line: Line = "data"
    role: Role = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase."""

    title: str
    note: str
    works: tuple[Work, ...]
    """What makes something comes before what needs it."""
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Lanes:
    title: str
    notes: tuple[str, ...]
    lanes: tuple[Lane, ...]
    stages: tuple[Stage, ...]

    def works(self) -> Iterator[Work]:
        for stage in self.stages:
            yield from stage.works
