"""A plan as lanes: what there is to draw, without positions.

A lane is a pool. Its head says what it is made of and how models are split on it; work stands in the lane where it
runs, one below the other, as the pool takes turns. A way is what goes from one work to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlgraph.viz.boxes import BoxKind, Line, Role


@dataclass(frozen=True, slots=True)
class DeployedModel:
    """A model in the head of a lane."""

    title: str
    how: tuple[str, ...]
    """Its engine, its split, and how it is held."""
    seconds: str = ""
    role: Role = ""


@dataclass(frozen=True, slots=True)
class PoolLane:
    """A pool, with the models that are deployed on it."""

    name: str
    note: str
    """Its devices."""
    memory: tuple[str, ...] = ()
    """The peak memory of a device."""
    full: float = 0.0
    """The fraction of the memory that this is."""
    deployed: tuple[DeployedModel, ...] = ()
    measured_memory: tuple[str, ...] = ()
    """What its processes have used at most; empty where nothing was measured."""
    measured_full: float = 0.0


@dataclass(frozen=True, slots=True)
class LaneWork:
    """What one node does in a step, as a box in a lane."""

    id: str
    lane: int
    title: str
    note: str = ""
    kind: BoxKind = "op"
    """`op` is a model's work, `next` is new weights that arrive."""
    role: Role = ""
    seconds: str = ""
    share: float = 0.0
    """Fraction of the step's time."""
    text: str = ""
    """More details about it."""
    rows: tuple[int, ...] = ()
    """The lines of the program's text that it was made of."""
    file: str = ""
    measured: str = ""
    """The seconds that it took; `seconds` are then those that were predicted."""
    measured_share: float = 0.0
    measured_note: str = ""
    """What else was measured, as bytes."""
    key: str = ""
    """What a run calls it: `train actor`; of weights that arrive `actor -> play`."""


@dataclass(frozen=True, slots=True)
class LaneEdge:
    """A line from one work to another."""

    source: str
    """The work that it comes from; empty for the head of a lane."""
    target: str
    lane: int
    """The lane that it comes from."""
    names: tuple[str, ...] = ()
    """The values that travel; empty if one work only waits for another."""
    sizes: tuple[str, ...] = ()
    line: Line = "data"
    role: Role = ""


@dataclass(frozen=True, slots=True)
class LanePhase:
    """The work of one phase."""

    title: str
    note: str
    works: tuple[LaneWork, ...]
    """In topological order."""
    ways: tuple[LaneEdge, ...]


@dataclass(frozen=True, slots=True)
class Lanes:
    """A plan to draw."""

    title: str
    notes: tuple[str, ...]
    lanes: tuple[PoolLane, ...]
    stages: tuple[LanePhase, ...]

    def all_works(self) -> Iterator[LaneWork]:
        for stage in self.stages:
            yield from stage.works
