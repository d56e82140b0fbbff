"""This module says how messages of a transfer go between processes: what every carrier of `rlgraph.ir.message_carriers`
does."""

from __future__ import annotations

import torch
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError


class LinkError(EngineError):
    """A message does not arrive: a peer is gone or does not answer, or the connection is broken."""


class InFlightMessage:
    """A message on its way."""

    message: Tensor
    """What was received, after `wait` and until `note_read`."""

    @property
    def travelled_bytes(self) -> int:
        """Bytes that travelled, once it has arrived."""
        return self.message.nbytes

    def wait(self) -> None:
        """Wait until it has arrived; raises LinkError when the peer is gone, or late."""
        raise NotImplementedError

    def note_read(self) -> None:
        """Note that what was received has been read: nothing follows from it where that belongs to the receiver."""


class Link:
    """One process's end of a carrier. Two messages between the same processes arrive in the order in which they were
    sent. A message for several places is sent to each of them, from one piece of memory."""

    name: str
    """The name of its carrier."""
    device: torch.device
    """The device on which messages lie."""
    direct = True
    """Whether a message goes from where it lies to where it belongs. Otherwise it is sent from memory of the link, and
    the receiver reads it there."""

    def buffer(self, size: int) -> Tensor:
        """Return so many bytes of its memory, uint8, for the messages of a round; those of the round before have been
        read. Only links that are not direct are asked for it."""
        raise AssertionError("messages go from where they lie")

    def send(self, message: Tensor, to: int) -> InFlightMessage:
        """Send a contiguous tensor, which must not change until the post has arrived."""
        raise NotImplementedError

    def receive(self, message: Tensor, source: int) -> InFlightMessage:
        """Receive into a contiguous tensor; where the link is not direct, one on `meta` says what comes."""
        raise NotImplementedError

    def start_posted_messages(self) -> None:
        """Begin what was put off until all messages of a round are posted: nothing, where they go at once."""
