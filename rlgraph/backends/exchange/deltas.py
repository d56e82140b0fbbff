"""This module sends of a message only what changed since the last time the same one was sent, exact to the bit.

Where elements changed is told by gaps: how many elements did not change since the last one that did, in a byte each,
and 255 for 255 elements of which none did. So an element that changed costs one byte more, and 255 others at most one.
Where that is more than the message, it goes whole.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.exchange.link import InFlightMessage, Link
from rlgraph.backends.exchange.mailbox import GlooLink, MessageKind

_HEAD = 3
"""Numbers in the head of a message: which time it is sent, elements that changed, bytes that say where."""
_NONE = 255
_ALL = -1
"""In place of the number of bytes that say where: the message is whole."""

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

_Key = tuple[int, int]
"""A peer, and the number of a message among those to or from it."""


class DeltaMailbox:
    """Sends and receives the same messages again and again. Both ends keep the last of each, on the CPU, whatever
    happens to the tensors that it was taken from or went to."""

    def __init__(self, mailbox: GlooLink) -> None:
        self.mailbox = mailbox
        self.senders: dict[_Key, DeltaSender] = {}
        self.receivers: dict[_Key, DeltaReceiver] = {}

    def link_for_transfer(self) -> _DeltaLink:
        """Return a link for messages that go once each, in the same order every time."""
        return _DeltaLink(self)


class _DeltaLink(Link):
    """The link of one transfer."""

    def __init__(self, changes: DeltaMailbox) -> None:
        self.changes, self.name, self.device = changes, changes.mailbox.name, changes.mailbox.device
        self._sent, self._received = Counter[int](), Counter[int]()

    def send(self, message: Tensor, to: int) -> InFlightMessage:
        key = to, self._sent[to]
        self._sent[to] += 1
        head, body = self.changes.senders.setdefault(key, DeltaSender()).encode(message)
        mailbox = self.changes.mailbox
        return _OutgoingMessage(message, mailbox.send(head, to, MessageKind.HEAD), mailbox.send(body, to))

    def receive(self, message: Tensor, source: int) -> InFlightMessage:
        key = source, self._received[source]
        self._received[source] += 1
        receiver = self.changes.receivers.setdefault(key, DeltaReceiver(message))
        head = torch.empty(_HEAD, dtype=torch.int64)
        return _IncomingMessage(
            message,
            self.changes.mailbox,
            source,
            receiver,
            self.changes.mailbox.receive(head, source, MessageKind.HEAD),
        )


class _OutgoingMessage(InFlightMessage):
    """A message that is sent as a head and a body."""

    def __init__(self, message: Tensor, *parts: InFlightMessage) -> None:
        self.message, self._parts = message, parts

    @property
    def travelled_bytes(self) -> int:
        return sum(part.travelled_bytes for part in self._parts)

    def wait(self) -> None:
        for part in self._parts:
            part.wait()


class _IncomingMessage(InFlightMessage):
    """A message that is received. Those from the same peer are waited for in their order."""

    travelled_bytes = 0

    def __init__(
        self, message: Tensor, mailbox: GlooLink, source: int, receiver: DeltaReceiver, head: InFlightMessage
    ) -> None:
        self.message = message
        self._mailbox, self._source, self._receiver, self._head = mailbox, source, receiver, head

    def wait(self) -> None:
        self._head.wait()
        body = self._mailbox.receive(self._receiver.body_buffer(self._head.message), self._source)
        body.wait()
        self.message.view(-1).copy_(self._receiver.decode(self._head.message, body.message))
        self.travelled_bytes = self._head.travelled_bytes + body.travelled_bytes


class DeltaSender:
    """The sending end of messages of one shape and dtype."""

    def __init__(self) -> None:
        self._time = 0
        self._last: np.ndarray | None = None
        """A copy of the bits of the last message."""

    def encode(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """Return the head, int64 [3], and the body, uint8, of a message: the elements that changed, then where.
        message: contiguous, on the CPU."""
        now = _bits(message)
        self._time += 1
        last, self._last = self._last, now.copy()
        if last is not None:
            places = np.flatnonzero(now != last)
            where = _gaps(places)
            if places.size * now.itemsize + where.size < now.nbytes:
                body = np.concatenate([now[places].view(np.uint8), where])
                return torch.tensor([self._time, places.size, where.size]), torch.from_numpy(body)
        return torch.tensor([self._time, now.size, _ALL]), torch.from_numpy(self._last.view(np.uint8))


class DeltaReceiver:
    """The receiving end of messages of one shape and dtype."""

    def __init__(self, message: Tensor) -> None:
        """message: of the shape and dtype of those that will come."""
        self._time = 0
        self._last = torch.empty(message.numel(), dtype=message.dtype)

    def body_buffer(self, head: Tensor) -> Tensor:
        """Return a buffer for the body. Raises EngineError where it has changes since a message that never came."""
        time, changed, where = head.tolist()
        if where != _ALL and time != self._time + 1:
            raise EngineError(
                f"weights arrived as what changed since transfer {time - 1}, and the last one that came is {self._time}"
            )
        return torch.empty(changed * self._last.element_size() + max(where, 0), dtype=torch.uint8)

    def decode(self, head: Tensor, body: Tensor) -> Tensor:
        """Return the message, flat; valid until the next one."""
        self._time, changed, where = head.tolist()
        last, received = _bits(self._last), body.numpy()
        elements = received[: changed * last.itemsize].view(last.dtype)
        last[slice(None) if where == _ALL else _places(received[elements.nbytes :])] = elements
        return self._last


def _bits(message: Tensor) -> np.ndarray:
    """Return the bits of a message, flat, sharing its memory."""
    return message.detach().view(-1).view(torch.uint8).numpy().view(_BITS[message.element_size()])


def _gaps(places: np.ndarray) -> np.ndarray:
    """Return ascending numbers of elements as bytes."""
    gaps = np.diff(places, prepend=-1) - 1
    lengths = gaps // _NONE + 1
    encoded = np.full(lengths.sum(), _NONE, dtype=np.uint8)
    encoded[np.cumsum(lengths) - 1] = gaps % _NONE
    return encoded


def _places(gaps: np.ndarray) -> np.ndarray:
    """Return the numbers of which `_gaps` made bytes."""
    ends = gaps != _NONE
    places: np.ndarray = np.cumsum(gaps + ends.astype(np.int64))[ends] - 1
    return places
