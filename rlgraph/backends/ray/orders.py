"""What the controller tells a process to do, and what it hears back: references, counts and times, no rows."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlgraph.backends.notes import Note
from rlgraph.backends.ray.remote import Key
from rlgraph.backends.ray.store import Places
from rlgraph.backends.step import Step

PieceRows = tuple[Key, Places, int | None]
"""Rows of a piece; with the number of a node that asks for a column, only that column of them."""


@dataclass(frozen=True)
class Wanted:
    """Rows of one value, from pieces that the process has or that come with the order."""

    parts: tuple[PieceRows, ...]
    """Piece by piece."""
    order: np.ndarray | None = None
    """The parts' rows, one after the other, in the order in which they are wanted; None: as they are."""


@dataclass(frozen=True)
class Whole:
    """A value without rows, from the piece of this key."""

    key: Key


@dataclass(frozen=True)
class Given:
    """A value that the controller itself knows: a model's name, a count."""

    value: Any
    """As it travels."""


@dataclass(frozen=True)
class RowsOf:
    """The rows of an axis: how many, in which rows of the parent, and who they are."""

    axis: str
    size: int
    counts: np.ndarray | None
    """Rows in each row of the parent, in the parent's order; None for a root."""
    ids: Wanted | None


@dataclass(frozen=True)
class RankOrder:
    """What one process is told of an order: do the work of a node on these rows."""

    number: int
    """Pieces that are made carry it."""
    node: int
    """Its number in the program."""
    step: Step
    inputs: dict[str, Wanted | Whole | Given]
    rows: tuple[RowsOf, ...]
    """Outer axes first."""
    idle: bool
    """There are no rows for it: it takes part in an update all the same."""
    keeps: bool
    """Its results are read by others: it is the one of its copy that has them."""
    version: int | None = None
    """Of the weights that it samples with."""
    refreshes: bool = False
    """Newer ones may come meanwhile."""
    joins: bool | None = None
    """Its rows are sampled together with those of orders before it, which have not ended; None: `fire` samples
    them."""
    after: int = 0
    """The number of the order before it whose rows it may need."""
    parts: tuple[tuple[int, int], ...] = ()
    """Of work that is told of part by part: for each part the number that its pieces carry, and how many rows it is
    about."""
    races: bool = False
    """Of the rows that it asks only those are wanted whose answers end first: it tells how long these are."""


@dataclass(frozen=True)
class Receipt:
    """What came of an order."""

    start: float
    end: float
    """By the process's clock, in seconds since 1970."""
    rows: tuple[RowsOf, ...] = ()
    """Of axes that are new."""
    named: tuple[str, ...] = ()
    """New axes whose rows have identities, kept as pieces named `ids:AXIS`."""
    sizes: dict[str, int | None] = field(default_factory=dict)
    """Of each value that was made the number of rows; None for one without rows."""
    chosen: np.ndarray | None = None
    """Of `keep` and `pick`: which rows, int64."""
    numbers: Sequence[float] | None = None
    """For each row one, by which rows are shared out."""
    metrics: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    """That it sampled."""
    came: tuple[int, ...] = ()
    """Bytes of the rows that came with the order, one number for each sender."""
    notes: tuple[Note, ...] = ()
    """Of its rows, for the trace."""
    beside: int = 0
    """Most rows of other orders that its engine had together with its own ones."""
    part: int = 0
    """Of an order that is done in parts, which of its parts this is."""
    longest: tuple[int, ...] = ()
    """Of an order that races, for each row that was asked: tokens of the longest answer; 0: it was given up."""
    left: tuple[int, ...] = ()
    """The parts that were given up: nothing more will be told of the order."""


def packed(told: RankOrder | Receipt) -> bytes:
    """For the wire. Ray sends bytes as they are; its own pickler takes several times as long for what is this small."""
    return pickle.dumps(told, pickle.HIGHEST_PROTOCOL)


def order_of(sent: bytes) -> RankOrder:
    found: RankOrder = pickle.loads(sent)
    return found


def receipt_of(sent: bytes) -> Receipt:
    found: Receipt = pickle.loads(sent)
    return found
