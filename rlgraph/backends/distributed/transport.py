"""What a transport has to do: carry orders to the groups of a plan, and weights between them.

The backend decides who does what, on which rows, with which weights; a transport decides how it gets there. It takes
the turns of the pools that it has work done on (`rlgraph.backends.clocks.Queues`), because what is on its way needs
none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from rlgraph.backends.distributed.offload import Shifting, nobody
from rlgraph.backends.executor import Made, Part
from rlgraph.backends.frame import Frame
from rlgraph.backends.in_flight import Things
from rlgraph.backends.rows import Elsewhere
from rlgraph.backends.step import Step
from rlgraph.backends.turns import Seats, seats
from rlgraph.ir.graph import Node
from rlgraph.ir.plan import Group, Tail
from rlgraph.ops.nodes import expected_of


class StandIn(Elsewhere):
    """Rows of a value that a group has."""

    @abstractmethod
    def select(self, column: int) -> StandIn:
        """Of the tables that these are, what the node of this number asks for: worked out where it is needed, or where
        the rows are."""


@dataclass(frozen=True, eq=False)
class Sampling:
    """Of an order to which newer weights may come while it is done."""

    versions: dict[int, int] = field(default_factory=dict)
    """By data-parallel copy the version that is there when it is sent, where copies get them apart."""
    sent: Future[None] = field(default_factory=Future)
    """Whether it has been, or never will be."""


@dataclass(frozen=True)
class Order:
    """Do the work of a node on the rows of a frame."""

    node: Node
    frame: Frame
    """Its values are what the transport made of earlier orders: stand-ins, or the values themselves."""
    group: Group
    """Who does it."""
    version: int | None = None
    """Of the weights that it samples with."""
    sampling: Sampling | None = None
    """Newer ones may come meanwhile."""
    copy: int | None = None
    """Of the group's data-parallel copies the one that does it; None: all of them share the rows."""
    arrived: Callable[[], None] = lambda: None
    """Waits for the weights that it works with, which were sent before it."""
    key: Hashable = None
    """Of the weights that it samples with, where rows of other orders with the same ones come in between its own."""
    shifting: Shifting = nobody
    """Who sleeps and who wakes up before it is done."""
    tail: Tail | None = None
    """What becomes of the last rows that it samples."""

    @property
    def step(self) -> Step:
        return self.frame.step

    @property
    def expected(self) -> Sequence[float] | None:
        """How long the rows that it samples are expected to be, for each that is asked; None: nobody says."""
        name = expected_of(self.node)
        return self.frame.values[name] if name else None

    @property
    def race(self) -> int | None:
        """Of the rows that are asked so many are wanted, those whose answers end first: who samples gives the others
        up. None: all are wanted, or nobody can tell who samples."""
        return None if self.key is None else self.frame.soonest

    @property
    def copies(self) -> int | None:
        """How many data-parallel copies do it; None: as many as the group has."""
        return None if self.copy is None else 1

    @property
    def seats(self) -> Seats:
        """The devices on which it is done."""
        return seats(self.group, self.copy)


@dataclass(frozen=True)
class Move:
    """Weights of a model go from the group that owns them to another one."""

    source: str
    sender: Group
    target: str
    """The model that gets them: the same one, or one that is updated from it."""
    receiver: Group
    node: Node
    """Who needs them."""
    step: Step
    """In which step."""
    version: int | None = None
    """Which weights; None: as they are now."""
    average: float | None = None
    """The target moves towards them: the share of its own that it keeps."""
    update: Step | None = None
    """The step in which this changes the target; None: it is only brought there."""
    copy: int | None = None
    """Of the receiver's data-parallel copies the one that they go to; None: all."""
    sampling: Sampling | None = None
    """What the receiver is at work on, where they come meanwhile."""
    shifting: Shifting = nobody
    """Who sleeps and who wakes up before they come."""

    @property
    def copies(self) -> int | None:
        """How many data-parallel copies they go to; None: as many as the receiver has."""
        return None if self.copy is None else 1

    @property
    def seats(self) -> tuple[Seats, Seats]:
        """The devices that take part."""
        return seats(self.sender), seats(self.receiver, self.copy)


@dataclass(frozen=True)
class Moved:
    """What a move took."""

    seconds: float
    sent: int = 0
    """Bytes that left a process."""
    peak: int = 0
    """Bytes of buffers of the fullest process."""


Coming = Callable[[], Moved]
"""Weights on their way: waits until they are there, and says what that took."""


class Transport(Protocol):
    def fire(self, order: Order) -> Made:
        """Has an order done: what was made, as stand-ins."""
        ...

    def fire_together(self, orders: Sequence[Order]) -> Sequence[Made]:
        """The same of trainings that share the pipeline of a group."""
        ...

    def parts(self, order: Order, sizes: Sequence[int]) -> Iterator[Part]:
        """Has an order done part by part: what was made of the first so many rows of the node's unit, of the next ones,
        and so on, each as soon as it is there, in whatever order."""
        ...

    def choose(self, order: Order) -> np.ndarray:
        """Which rows a node takes that only selects some, int64. The rows themselves stay where they are."""
        ...

    def weigh(self, order: Order) -> Sequence[float]:
        """A number for each row, by which rows are shared out. The rows themselves stay where they are."""
        ...

    def move(self, move: Move) -> Coming:
        """Sends weights. Both ends take part before any order that is given to them from now on: nobody need wait."""
        ...

    def connect(self, move: Move) -> None:
        """Sees to all that has to be done before a move can be made while its receiver is at work."""
        ...

    def refresh(self, move: Move, going: AbstractContextManager[int | None]) -> Moved | None:
        """Makes a move to a group that samples with the model, between two tokens. `going` is entered once the sender
        is free, and says which version goes then: None where the receiver has no use for it any more."""
        ...

    def adopt(self, move: Move) -> None:
        """A model gets the weights of another one of the same group, as an `update` says."""
        ...

    def finish(self, step: Step, things: Things) -> dict[str, float]:
        """A step is over: all that it made can be forgotten, but for what these things need. What there is to say about
        the machine."""
        ...

    def save(self, model: str, owner: Group, folder: Path) -> None:
        """Writes a folder that a model source can name; also after a failure, if the model is whole."""
        ...

    def abort(self, why: BaseException) -> None:
        """Whoever waits for an answer gives up."""
        ...

    def stop(self) -> None: ...
