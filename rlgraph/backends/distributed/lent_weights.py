"""This module has who works with lent weights, and weights that are on their way to them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from rlgraph.backends.distributed.transport import RefreshState, WeightTransfer
from rlgraph.backends.locks import Lock


@dataclass(frozen=True)
class LentWeights:
    """The weights that a request works with."""

    version: int
    refresh_state: RefreshState | None = None
    """Given where newer weights may come meanwhile."""
    wait_for_arrival: Callable[[], None] = lambda: None
    """Waits until the weights have come: what is requested before that is done after it."""
    weights_key: Hashable = None
    """A key, the same for all who sample with the same weights in the same place, where they may do so together."""


Place = tuple[str, str, int]
"""Where weights are: a model, a group, and a replica of it."""


@dataclass(eq=False)
class WeightBorrower:
    """A request that works with weights of a group."""

    transfer: WeightTransfer
    """The transfer of its weights; the version is set when they go."""
    lock: Lock
    """A lock for newer weights on their way, and for the note that the group's work has ended."""
    versions: dict[Place, int] = field(default_factory=dict)
    """The version with which it began, in each place that it has."""

    @property
    def can_be_refreshed(self) -> bool:
        """Whether newer weights may come, and it has been sent."""
        return self.transfer.refresh_state is not None and self.transfer.refresh_state.sent.done()


@dataclass(eq=False)
class WeightArrival:
    """The arrival of weights. All who work with them wait for it, not only who had them brought: one of these may be
    queued behind another, and nobody would report a transfer that fails."""

    wait: Callable[[], None]
    lock: Lock
    received: bool = False

    def __call__(self) -> None:
        with self.lock.acquire():
            if not self.received:
                self.wait()
                self.received = True
