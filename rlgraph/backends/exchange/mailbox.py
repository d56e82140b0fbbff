"""This module has the mailbox, which carries messages between any two of some processes, whatever their torch groups
are."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.process_groups import INTERFACES
from rlgraph.backends.exchange.link import InFlightMessage, Link, LinkError
from rlgraph.ir.message_carriers import GLOO

_THREADS = 2
"""Threads that gloo starts."""


class MessageKind(IntEnum):
    """The kind of a message; messages of each kind arrive in an order of their own."""

    WHOLE = 7
    HEAD = 8
    """The length of another message."""
    NOTICE = 9
    """The place of a message in memory that both ends have."""
    HANDLE = 10
    """A handle of such memory."""
    READ = 11
    """The message has been read there."""


class GlooLink(Link):
    """The carrier that goes everywhere: a gloo group of its own, beside the default group of each process. Two places
    are connected when they exchange their first message: of many places each has few peers."""

    name, device = GLOO.name, torch.device("cpu")

    def __init__(
        self, place: int, places: Sequence[int], store: Store, *, name: str = "mail", seconds: float = 120.0
    ) -> None:
        """All `places` make one, at the same time, with the same store and name. No wait is longer than `seconds`."""
        self.place = place
        self._ranks = {member: rank for rank, member in enumerate(sorted(places))}
        self.seconds = seconds
        self._limit = timedelta(seconds=seconds)
        # The group itself does not keep a store that is written in Python.
        self.store = store
        try:
            self._group = dist.ProcessGroupGloo(
                PrefixStore(name, store), self._ranks[place], len(self._ranks), _options(self._limit)
            )
        except RuntimeError as error:
            raise EngineError(f"place {place} could not reach the other {len(places) - 1} places: {error}") from None

    def send(self, message: Tensor, to: int, kind: MessageKind = MessageKind.WHOLE) -> WholeMessage:
        return self._post("send", message, to, kind)

    def receive(self, message: Tensor, source: int, kind: MessageKind = MessageKind.WHOLE) -> WholeMessage:
        return self._post("recv", message, source, kind)

    def _post(self, call: str, message: Tensor, peer: int, kind: MessageKind) -> WholeMessage:
        began = time.monotonic()
        try:
            work = getattr(self._group, call)([message], self._ranks[peer], kind)
        except RuntimeError as error:  # The first message connects the two places.
            raise link_error(error, time.monotonic() - began) from None
        return WholeMessage(work, message, self._limit)


def _options(limit: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout, options._threads = limit, _THREADS
    # As torch's default group does, which looks for the variable itself.
    interfaces = [interface for interface in os.environ.get(INTERFACES, "").split(",") if interface]
    options._devices = [gloo.create_device(interface=interface, lazy_init=True) for interface in interfaces] or [
        gloo.create_default_device(lazy_init=True)
    ]
    return options


class WholeMessage(InFlightMessage):
    """A message that goes as it is."""

    def __init__(self, work: dist.Work, message: Tensor, limit: timedelta) -> None:
        self._work, self._limit = work, limit
        self.message = message

    def wait(self) -> None:
        began = time.monotonic()
        try:
            self._work.wait(self._limit)
        except RuntimeError as error:
            raise link_error(error, time.monotonic() - began) from None


def link_error(error: RuntimeError, seconds: float = 0.0) -> LinkError:
    """Return the error for a message that does not arrive. seconds: how long it has been waited for."""
    # Without the line of torch's source, and its general advice.
    reason = re.sub(r"^\[\S+:\d+\] |\. This is typically .*", "", str(error).strip().splitlines()[0])
    return LinkError(f"the other end is gone or does not answer, after {seconds:.1f} s: {reason}")
