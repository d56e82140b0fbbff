"""Messages between any two of some processes, whatever their own torch groups are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from rlgraph.engines.base import EngineError
from rlgraph.engines.joining import INTERFACES

_TAG = 7
_HEADS = 8
_THREADS = 2
"""Of gloo's own."""


class Post(Protocol):
    """A message on its way."""

    message: Tensor

    @property
    def size(self) -> int:
        """Bytes that travelled, once it is through."""
        ...

    def wait(self) -> None:
        """Until it is through; raises EngineError when the peer is gone, or late."""
        ...


class Mail(Protocol):
    """How messages go. Two between the same processes arrive in the order in which they were sent."""

    def send(self, message: Tensor, to: int) -> Post:
        """A contiguous tensor that must not change until the post is through."""
        ...

    def receive(self, message: Tensor, source: int) -> Post:
        """Into a contiguous tensor."""
        ...


class Mailbox:
    """A gloo group of its own, beside the default group of each process. Two places are connected when they exchange
    their first message: of many places each has few peers."""

    def __init__(
        self, place: int, places: Sequence[int], store: Store, *, name: str = "mail", seconds: float = 120.0
    ) -> None:
        """All `places` make one, at the same time, with the same store and name. No wait is longer than `seconds`."""
        self.place = place
        self._ranks = {each: rank for rank, each in enumerate(sorted(places))}
        self._limit = timedelta(seconds=seconds)
        # The group itself does not keep a store that is written in Python.
        self._store = store
        try:
            self._group = dist.ProcessGroupGloo(
                PrefixStore(name, store), self._ranks[place], len(self._ranks), _options(self._limit)
            )
        except RuntimeError as error:
            raise EngineError(f"place {place} could not reach the other {len(places) - 1} places: {error}") from None

    def send(self, message: Tensor, to: int, *, head: bool = False) -> Whole:
        """head: it says how long another message is; heads have an order of their own."""
        return self._post("send", message, to, head)

    def receive(self, message: Tensor, source: int, *, head: bool = False) -> Whole:
        return self._post("recv", message, source, head)

    def _post(self, call: str, message: Tensor, peer: int, head: bool) -> Whole:
        try:
            work = getattr(self._group, call)([message], self._ranks[peer], _HEADS if head else _TAG)
        except RuntimeError as error:
            raise _failed(self.place, peer, error) from None
        return Whole(work, message, self.place, peer, self._limit)


def _options(limit: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout, options._threads = limit, _THREADS
    # As torch's default group does, which looks for the variable itself.
    named = [each for each in os.environ.get(INTERFACES, "").split(",") if each]
    options._devices = [gloo.create_device(interface=each, lazy_init=True) for each in named] or [
        gloo.create_default_device(lazy_init=True)
    ]
    return options


class Whole:
    """A message that goes as it is."""

    def __init__(self, work: dist.Work, message: Tensor, place: int, peer: int, limit: timedelta) -> None:
        self._work, self._place, self._limit = work, place, limit
        self.message, self.peer = message, peer

    @property
    def size(self) -> int:
        return self.message.nbytes

    def wait(self) -> None:
        try:
            self._work.wait(self._limit)
        except RuntimeError as error:
            raise _failed(self._place, self.peer, error) from None


def _failed(place: int, peer: int, error: RuntimeError) -> EngineError:
    reason = str(error).strip().splitlines()[0]
    return EngineError(f"place {place} exchanges data with place {peer}, which is gone or does not answer: {reason}")
