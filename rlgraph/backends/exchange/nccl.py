"""This module carries messages from GPU to GPU. NCCL has a stream of its own: an event makes it wait for what this
process has queued on its device before a message goes, and another one makes what follows wait for it. No tensor
passes through the memory of a host.

All messages of a round are one group of calls: otherwise two places that send to each other would wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from rlgraph.backends.exchange.link import InFlightMessage, Link
from rlgraph.backends.exchange.mailbox import link_error
from rlgraph.ir.message_carriers import NCCL

_LATER = 600.0
"""Seconds that NCCL's own watchdog, which ends the process, waits longer than we do."""
_LOOK = 1e-4
"""Seconds between two checks whether messages have arrived."""

Backend = Callable[[Store, int, int, timedelta], Any]
"""A constructor of a torch backend: takes a store, a rank, how many ranks there are, and how long it waits."""


def nccl_backend(store: Store, rank: int, ranks: int, limit: timedelta) -> Any:
    """Return torch's NCCL backend, which its builds for CPUs do not have."""
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = limit + timedelta(seconds=_LATER)
    return nccl(store, rank, ranks, options)


class NcclLink(Link):
    """One place's end of the NCCL carrier."""

    name = NCCL.name

    def __init__(
        self,
        place: int,
        clubs: Sequence[Sequence[int]],
        store: Store,
        device: torch.device,
        *,
        name: str,
        seconds: float,
        backend: Backend = nccl_backend,
    ) -> None:
        """All places of a club make it at the same time; those that are in several have them in the same order."""
        self.device = device
        self._clubs = [_Communicator(place, club, store, device, name, seconds, backend) for club in clubs]
        self._club_of = {peer: club for club in self._clubs for peer in club.ranks if peer != place}

    def send(self, message: Tensor, to: int) -> InFlightMessage:
        return self._club_of[to].add_to_batch("send", message, to)

    def receive(self, message: Tensor, source: int) -> InFlightMessage:
        return self._club_of[source].add_to_batch("recv", message, source)

    def start_posted_messages(self) -> None:
        # In the same order everywhere, so that no two pairs of places wait for each other.
        for club in self._clubs:
            club.start_batch()


class _Communicator:
    """A NCCL communicator of some places."""

    def __init__(
        self,
        place: int,
        places: Sequence[int],
        store: Store,
        device: torch.device,
        name: str,
        seconds: float,
        backend: Backend,
    ) -> None:
        self.ranks = {member: rank for rank, member in enumerate(places)}
        self._device, self._seconds = device, seconds
        own_store = PrefixStore(f"{name} {NCCL.name} {'-'.join(map(str, places))}", store)
        rank, ranks = self.ranks[place], len(places)
        try:
            self._backend = backend(own_store, rank, ranks, timedelta(seconds=seconds))
            self._group: Any = dist.ProcessGroup(own_store, rank, ranks)
            kind = getattr(dist.ProcessGroup.BackendType, self._backend.name().upper())
            self._group._register_backend(device, kind, self._backend)
            self._group._set_default_backend(kind)
            if device.type == "cuda":
                # Places that have nothing to send in the first round are waited for here, and not in the round.
                self._backend.eager_connect_single_device(device)
        except RuntimeError as error:
            raise link_error(error) from None
        self._batch = _Batch(seconds)

    def add_to_batch(self, call: str, message: Tensor, peer: int) -> InFlightMessage:
        """Add a message to the batch of this round."""
        self._batch.calls.append((call, message, self.ranks[peer]))
        return _Message(message, self._batch)

    def start_batch(self) -> None:
        """Begin all messages of the batch."""
        batch, self._batch = self._batch, _Batch(self._seconds)
        if not batch.calls:
            return
        coalesces = self._backend.supports_coalescing
        try:
            if coalesces:
                self._group._start_coalescing(self._device)
            works = [getattr(self._group, call)([message], peer, 0) for call, message, peer in batch.calls]
            batch.works = [self._group._end_coalescing(self._device)] if coalesces else works
        except RuntimeError as error:
            raise link_error(error) from None
        batch.abort = self._backend.abort


@dataclass
class _Batch:
    """The messages of a round, which arrive together."""

    seconds: float
    calls: list[tuple[str, Tensor, int]] = field(default_factory=list)
    works: list[Any] = field(default_factory=list)
    abort: Callable[[], None] = lambda: None

    def wait_for_batch(self) -> None:
        """Wait until all messages have arrived. Raises LinkError."""
        began = time.monotonic()
        try:
            while self.works:
                self._wait(self.works[-1], began)
                self.works.pop()
        except RuntimeError as error:
            self.abort()
            raise link_error(error, time.monotonic() - began) from None

    def _wait(self, work: Any, began: float) -> None:
        # This wait holds up only the device's stream: a process that is gone would never be noticed.
        work.wait(timedelta(seconds=self.seconds))
        while not work.is_completed():
            if time.monotonic() - began > self.seconds:
                raise RuntimeError("no message has come")
            time.sleep(_LOOK)


class _Message(InFlightMessage):
    """A message of a batch."""

    def __init__(self, message: Tensor, batch: _Batch) -> None:
        self.message, self._batch = message, batch

    def wait(self) -> None:
        self._batch.wait_for_batch()
