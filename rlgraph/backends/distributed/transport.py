"""This module has the requests to the groups of a plan, and says what a transport has to do: carry requests to the
groups, and weights between them.

The backend decides who does what, on which rows, with which weights; a transport decides how it gets there. It takes
the turns of the pools on which it has work done (`device_queues.DeviceQueues`), because nothing has to wait
for a turn while it is on its way.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from rlgraph.backends.device_queues import DeviceSet, device_set
from rlgraph.backends.distributed.offload import Shifting, no_offload_change
from rlgraph.backends.frame import Frame, NodeOutput, Part
from rlgraph.backends.in_flight import Things
from rlgraph.backends.rows import RemoteEntries
from rlgraph.backends.step import Step
from rlgraph.ir.graph import Node
from rlgraph.ir.plan import Group, TailMove
from rlgraph.ops.nodes import expected_lengths_of


class RemoteRows(RemoteEntries):
    """Rows of a value that a group has."""

    @property
    @abstractmethod
    def token_counts(self) -> np.ndarray | None:
        """The tokens of each row, int64; None where rows have none."""

    @abstractmethod
    def select_column(self, column: int) -> RemoteRows:
        """Return the column of these tables that a node, by its number in the graph, asks for: computed where it is
        needed, or where the rows are."""


@dataclass(frozen=True, eq=False)
class RefreshState:
    """The state of a request to which newer weights may come while it is done."""

    versions: dict[int, int] = field(default_factory=dict)
    """By data-parallel replica the version that it has when the request is sent, where replicas get them one by one."""
    sent: Future[None] = field(default_factory=Future)
    """Is done when the request has been sent, or never will be."""


@dataclass(frozen=True)
class NodeRequest:
    """A request to a group to do the work of a node on the rows of a frame."""

    node: Node
    frame: Frame
    """The frame, whose values are what the transport made of earlier requests: remote rows, or the values
    themselves."""
    group: Group
    """The group that does it."""
    version: int | None = None
    """The version of the weights that it samples with."""
    refresh_state: RefreshState | None = None
    """Given where newer weights may come meanwhile."""
    copy: int | None = None
    """The data-parallel replica of the group that does it; None: all of them share the rows."""
    wait_for_arrival: Callable[[], None] = lambda: None
    """Waits for the weights that it works with, which were sent before it."""
    weights_key: Hashable = None
    """A key of the weights that it samples with, where rows of other requests with the same ones come in between its
    own."""
    offload_change: Shifting = no_offload_change
    """The models to off-load and to load back before it is done."""
    other_versions: Mapping[str, int] = field(default_factory=dict)
    """The versions of the weights of other models that sample with it."""
    tail: TailMove | None = None
    """What becomes of the last rows that it samples."""

    @property
    def step(self) -> Step:
        """The step to which it belongs."""
        return self.frame.step

    @property
    def expected_lengths(self) -> Sequence[float] | None:
        """How long the rows that it samples are expected to be, for each that is asked; None: this is not known."""
        name = expected_lengths_of(self.node)
        return self.frame.values[name] if name else None

    @property
    def wanted_row_count(self) -> int | None:
        """How many of the rows that are asked are wanted, those whose answers end first: the sampler gives the others
        up. None: all are wanted, or the sampler cannot be told."""
        return None if self.weights_key is None else self.frame.soonest

    @property
    def replica_count(self) -> int | None:
        """How many data-parallel replicas do it; None: as many as the group has."""
        return None if self.copy is None else 1

    @property
    def devices(self) -> DeviceSet:
        """The devices on which it is done."""
        return device_set(self.group, self.copy)


@dataclass(frozen=True)
class WeightTransfer:
    """A transfer of a model's weights from the group that owns them to another one."""

    source: str
    sender: Group
    target: str
    """The model that gets them: the same one, or one that is updated from it."""
    receiver: Group
    node: Node
    """The node that needs them."""
    step: Step
    """The step in which it needs them."""
    version: int | None = None
    """Which weights; None: as they are now."""
    ema_decay: float | None = None
    """The share of its own weights that the target keeps where it moves towards them, as a moving average."""
    update_step: Step | None = None
    """The step in which this changes the target; None: the weights are only brought there."""
    copy: int | None = None
    """The data-parallel replica of the receiver that they go to; None: all."""
    refresh_state: RefreshState | None = None
    """What the receiver is at work on, where they come meanwhile."""
    offload_change: Shifting = no_offload_change
    """The models to off-load and to load back before they come."""

    @property
    def replica_count(self) -> int | None:
        """How many data-parallel replicas they go to; None: as many as the receiver has."""
        return None if self.copy is None else 1

    @property
    def devices(self) -> tuple[DeviceSet, DeviceSet]:
        """The devices that take part."""
        return device_set(self.sender), device_set(self.receiver, self.copy)


@dataclass(frozen=True)
class TransferCost:
    """The cost of a transfer of weights."""

    seconds: float
    sent_bytes: int = 0
    """Bytes that left a process."""
    peak_buffer_bytes: int = 0
    """Bytes of buffers of the fullest process."""


Coming = Callable[[], TransferCost]
"""A function that waits for weights on their way, and returns what the transfer cost."""


class Transport(Protocol):
    """Carries requests to groups, and weights between them."""

    def run_request(self, order: NodeRequest) -> NodeOutput:
        """Have a request done, and return its output as remote rows."""
        ...

    def run_fused_trainings(self, orders: Sequence[NodeRequest]) -> Sequence[NodeOutput]:
        """Have requests done, as `run_request`, that are trainings which share the pipeline of a group."""
        ...

    def run_in_parts(self, order: NodeRequest, sizes: Sequence[int]) -> Iterator[Part]:
        """Have a request done part by part, and yield each part when it is done, in whatever order: the output of the
        first `sizes[0]` rows of the node's unit, of the next `sizes[1]`, and so on."""
        ...

    def choose_rows(self, order: NodeRequest) -> np.ndarray:
        """Return which rows a node takes that only selects some, int64. The rows themselves stay where they are."""
        ...

    def row_loads(self, order: NodeRequest) -> Sequence[float]:
        """Return a number for each row, by which rows are sharded. The rows themselves stay where they are."""
        ...

    def send_weights(self, move: WeightTransfer) -> Coming:
        """Send weights. Both ends take part before any request that is given to them from now on: the caller need not
        wait."""
        ...

    def prepare_weight_transfer(self, move: WeightTransfer) -> None:
        """Do all that has to be done before a transfer can be made while its receiver is at work."""
        ...

    def refresh_weights(self, move: WeightTransfer, going: AbstractContextManager[int | None]) -> TransferCost | None:
        """Make a transfer to a group that samples with the model, between two tokens. `going` is entered once the
        sender is free, and says which version goes then: None where the receiver has no use for it any more."""
        ...

    def assign_weights(self, move: WeightTransfer) -> None:
        """Give a model the weights of another one of the same group, as an `update` says."""
        ...

    def finish_step(self, step: Step, things: Things) -> dict[str, float]:
        """Forget what a step that is over made, but for what these things need. Returns numbers about the machine."""
        ...

    def save(self, model: str, owner: Group, folder: Path) -> None:
        """Write a folder that a model source can name; also after a failure, if the model is whole."""
        ...

    def fail_pending_work(self, why: BaseException) -> None:
        """Make all give up that wait for an answer."""
        ...

    def end_processes(self) -> None:
        """End the processes of the groups."""
        ...
