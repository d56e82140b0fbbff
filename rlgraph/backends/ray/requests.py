"""The requests that the controller sends to processes, and their receipts: references, counts and times, no rows."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlgraph.backends.mismatch import Mismatch
from rlgraph.backends.ray.piece_store import Places
from rlgraph.backends.ray.row_refs import Key
from rlgraph.backends.step import Step
from rlgraph.backends.trace_notes import TraceNote
from rlgraph.backends.worker.first_failures import FirstFailure

PieceRows = tuple[Key, Places, int | None]
"""A piece's key, which of its rows, and, to get only one column, the number of the node that reads the column."""


@dataclass(frozen=True)
class WantedRows:
    """Rows of one value, from pieces that the process has or that are sent with the request."""

    parts: tuple[PieceRows, ...]
    """The rows of each piece."""
    order: np.ndarray | None = None
    """A permutation of the concatenated rows of the parts; None keeps their order."""


@dataclass(frozen=True)
class WholePiece:
    """A value without rows, which is all of the piece with this key."""

    key: Key


@dataclass(frozen=True)
class ControllerValue:
    """A value that the controller knows: a model's name, a count."""

    value: Any
    """In the form in which it is sent."""


@dataclass(frozen=True)
class AxisRows:
    """The rows of an axis: their number, their parents, and their identities."""

    axis: str
    row_count: int
    rows_per_parent: np.ndarray | None
    """How many rows each row of the parent has, in the parent's order; None for a root."""
    ids: WantedRows | None


@dataclass(frozen=True)
class RankRequest:
    """A request to one process to do the work of a node on these rows."""

    number: int
    """The number that pieces made by it carry."""
    node: int
    """The node's number in the program."""
    step: Step
    inputs: dict[str, WantedRows | WholePiece | ControllerValue]
    rows: tuple[AxisRows, ...]
    """Outer axes come first."""
    idle: bool
    """Whether there are no rows for it; it still takes part in an update."""
    returns_results: bool
    """Whether others read its results: it is the rank of its replica that has them."""
    version: int | None = None
    """The version of the weights that it samples with."""
    refreshes: bool = False
    """Whether newer weights may arrive meanwhile."""
    shares_batch: bool | None = None
    """Whether its rows are sampled together with those of earlier requests in flight; None if `fire` samples them."""
    after_request: int = 0
    """The number of the earlier request whose rows it may need."""
    parts: tuple[tuple[int, int], ...] = ()
    """For work that is reported part by part: for each part, the number that its pieces carry, and its number of
    rows."""
    reports_lengths: bool = False
    """Whether only the rows whose answers end first are wanted; their lengths are then reported."""
    other_versions: Mapping[str, int] = field(default_factory=dict)
    """The versions of the weights of other models that sample with it."""


@dataclass(frozen=True)
class Receipt:
    """What a process reports when a request, or a part of it, is done."""

    start: float
    end: float
    """Both are of the process's clock, in seconds since 1970."""
    rows: tuple[AxisRows, ...] = ()
    """Rows of new axes."""
    axes_with_ids: tuple[str, ...] = ()
    """New axes whose rows have identities, which are kept as pieces named `ids:AXIS`."""
    row_counts: dict[str, int | None] = field(default_factory=dict)
    """The number of rows of each value that was made; None for a value without rows."""
    token_counts: dict[str, np.ndarray] = field(default_factory=dict)
    """The tokens of each row of the tables that were made, int32."""
    chosen_rows: np.ndarray | None = None
    """The rows that `keep` and `pick` chose, int64."""
    row_loads: Sequence[float] | None = None
    """A weight for each row, by which rows are sharded."""
    metrics: dict[str, float] = field(default_factory=dict)
    mismatches: tuple[Mismatch, ...] = ()
    """What was compared with the sampler's log-probabilities."""
    tokens: int = 0
    """How many tokens were sampled."""
    received_bytes: tuple[int, ...] = ()
    """Bytes of the rows that were sent with the request, for each sender."""
    notes: tuple[TraceNote, ...] = ()
    """Notes on its rows, for the trace."""
    other_rows: int = 0
    """The most rows of other requests that its engine had in the batch."""
    part: int = 0
    """Which part of a request in parts this is."""
    longest_answers: tuple[int, ...] = ()
    """For a request that races, the tokens of each row's longest answer; 0 if the row was given up."""
    abandoned_parts: tuple[int, ...] = ()
    """The parts that were given up: nothing more is reported of the request."""
    peak_bytes: int = 0
    """The most memory that the process has used since it began; 0 where that is not told."""
    failures: tuple[FirstFailure, ...] = ()
    """The first failures of functions that the run goes on without."""


def pickle_message(told: RankRequest | Receipt) -> bytes:
    """Pickle a message. Ray sends bytes as they are; its own pickler takes several times as long for such small
    objects."""
    return pickle.dumps(told, pickle.HIGHEST_PROTOCOL)


def unpickle_request(sent: bytes) -> RankRequest:
    """Unpickle a request."""
    request: RankRequest = pickle.loads(sent)
    return request


def unpickle_receipt(sent: bytes) -> Receipt:
    """Unpickle a receipt."""
    receipt: Receipt = pickle.loads(sent)
    return receipt
