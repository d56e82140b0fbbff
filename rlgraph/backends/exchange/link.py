"""How messages of a transfer go between processes: what every carrier of `rlgraph.ir.carriers` does."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rlgraph.backends.engines.base import EngineError


class LinkError(EngineError):
    """A message does not come to its end: a peer is gone or does not answer, or the way to it is broken."""


class Post(Protocol):
    """A message on its way."""

    message: Tensor
    """What was received is there after `wait`, and stays until `release`."""

    @property
    def size(self) -> int:
        """Bytes that travelled, once it is through."""
        ...

    def wait(self) -> None:
        """Until it is through; raises LinkError when the peer is gone, or late."""
        ...

    def release(self) -> None:
        """What was received has been read."""
        ...


class Link(Protocol):
    """Two messages between the same processes arrive in the order in which they were sent. What several places get is
    sent to each of them, from one piece of memory."""

    name: str
    """Of its carrier."""
    device: torch.device
    """On which messages lie."""
    direct: bool
    """Whether a message goes from where it lies to where it belongs. Otherwise it is sent from memory of the link, and
    the receiver reads it there."""

    def room(self, size: int) -> Tensor:
        """So many bytes of its memory, uint8, for the messages of a round; those of the one before have been read.
        Asked only of links that are not direct."""
        ...

    def send(self, message: Tensor, to: int) -> Post:
        """A contiguous tensor that must not change until the post is through."""
        ...

    def receive(self, message: Tensor, source: int) -> Post:
        """Into a contiguous tensor; where the link is not direct, one on `meta` says what comes."""
        ...

    def go(self) -> None:
        """All of a round has been sent and received: what was put off for that goes now."""
        ...
