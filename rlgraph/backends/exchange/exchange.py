"""This module carries out a transfer: what one place sends and receives, round by round.

Messages are cut by what travels alone, so that both ends cut them alike. A large message that lies in one piece of
memory is sent from where it is, and received where it belongs, by links that can do so; the others go through a buffer,
which is kept for the next time. Where only changes travel, both ends keep the last messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.exchange.deltas import DeltaMailbox
from rlgraph.backends.exchange.digest import MovedPart, part_digests
from rlgraph.backends.exchange.link import InFlightMessage, Link
from rlgraph.backends.exchange.mailbox import GlooLink
from rlgraph.backends.exchange.messages import ALONE, LocalPieces, Message, local_copies, split_into_messages
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.message_carriers import PeerCarriers
from rlgraph.ir.transfer import TensorBox, Transfer

_NO_WAYS = PeerCarriers()


@dataclass(frozen=True, slots=True)
class ExchangeCost:
    """What a place sent and received, and what that cost."""

    sent_bytes: int
    """Bytes."""
    received_bytes: int
    seconds: float
    peak_buffer_bytes: int
    """The most bytes of buffers that a round used."""
    start: float = 0.0
    """Seconds since 1970, by the process's clock."""
    digests: Mapping[MovedPart, int] = field(default_factory=dict)
    """Of all parts that it sent and received, where these are asked for."""


@dataclass(frozen=True, slots=True)
class CurrentMessage:
    """The message that a place works on, for other threads: the place may be waiting for the other end."""

    description: str
    """What the message has, from whom it goes to whom, in which round, by which carrier."""
    peer: str
    """The name of the other end in messages."""


@dataclass(frozen=True, slots=True)
class _Round:
    """The messages of this place in one round of a transfer."""

    sends: tuple[Message, ...]
    posts: tuple[tuple[int, int], ...]
    """The peer that each send goes to, and the number of the message. A message for several peers is packed once, if it
    is in the same memory for them."""
    receives: tuple[Message, ...]


class TransferEndpoint:
    """One place's end of a transfer. All places that take part call `run` at the same time."""

    def __init__(
        self,
        transfer: Transfer,
        mailbox: GlooLink,
        *,
        source: Sequence[LocalTensor] = (),
        destination: Sequence[LocalTensor] = (),
        dtype: torch.dtype = torch.float32,
        delta: bool = False,
        links: Mapping[int, Link] | None = None,
        ways: PeerCarriers = _NO_WAYS,
    ) -> None:
        """The layouts are those of this place on both sides, and `dtype` is the one that travels: the narrower of both
        sides'. delta: from the second time on only the elements that changed travel; the same at all places, and by
        the mailbox. links: by peer, what carries messages to and from it; the mailbox does for all others. ways: the
        names of places in messages."""
        if dtype.itemsize != transfer.itemsize:
            raise EngineError(
                f"the transfer was planned for elements of {transfer.itemsize} bytes, and {dtype} has {dtype.itemsize}"
            )
        self._transfer, self._mailbox, self._dtype = transfer, mailbox, dtype
        self._links: Mapping[int, Link] = {} if delta else links or {}
        self._ways = ways
        self._held, self._needed = LocalPieces(source), LocalPieces(destination)
        self._local_copies = tuple(local_copies(self._held, destination))
        self._routes = [(move, route) for move in transfer.moves for route in move.routes if mailbox.place in route[:2]]
        self._rounds = tuple(self._scheduled(index) for index in range(transfer.round_count)) if self._routes else ()
        self._buffers: dict[torch.device, Tensor] = {}
        self._changes = DeltaMailbox(mailbox) if delta else None
        self.pending: CurrentMessage | None = None
        """The message at which `run` is. Another thread may read it."""

    @torch.no_grad()
    def run(
        self,
        source: Mapping[str, Tensor],
        destination: Mapping[str, Tensor],
        *,
        ema: float | None = None,
        verify: bool = False,
    ) -> ExchangeCost:
        """Write what the destination needs into its tensors, `ema` of the old value and the rest of what arrives.

        The tensors have the layouts' names, a layer's number in place of `*`. verify: digests of what was moved are
        returned, too; an average has none, since the two ends differ. Raises EngineError naming the peer that is gone
        or does not answer.
        """
        if ema is not None and self._transfer.has_forwarding:
            raise EngineError(
                "a moving average needs a transfer in which no place passes on what it got: plan it with forward=False"
            )
        start, began = time.time(), time.perf_counter()
        for have, need in self._local_copies:
            _store(destination[need.tensor][need.local_slices], source[have.tensor][have.local_slices], ema)
        mail: Link = self._changes.link_for_transfer() if self._changes else self._mailbox
        sent = received = peak = 0
        for number, round_ in enumerate(self._rounds, start=1):
            leaving, arriving, used = self._round(number, round_, mail, source, destination, ema)
            sent += sum(post.travelled_bytes for post in leaving)
            received += sum(post.travelled_bytes for post in arriving)
            peak = max(peak, used)
        seconds = time.perf_counter() - began
        digests = dict(self._digests(source, destination)) if verify and ema is None else {}
        return ExchangeCost(sent, received, seconds, peak, start, digests)

    def _digests(
        self, source: Mapping[str, Tensor], destination: Mapping[str, Tensor]
    ) -> Iterator[tuple[MovedPart, int]]:
        for move, (sender, receiver, hop) in self._routes:
            forwards = hop > 0 or sender != self._mailbox.place
            pieces, tensors = (self._needed, destination) if forwards else (self._held, source)
            ends = self._ways.place_name(sender), self._ways.place_name(receiver)
            for chunk in range(self._transfer.chunks):
                boxes = self._transfer.section_boxes(move, chunk)
                yield from part_digests(ends, chunk, boxes, pieces, tensors, self._dtype)

    # Schedule

    def _scheduled(self, index: int) -> _Round:
        """Return what this place does in a round. Messages that were passed on to it are kept apart from those of their
        first sender, at both ends."""
        outgoing: dict[tuple[int, bool], list[TensorBox]] = {}
        incoming: dict[tuple[int, bool], list[TensorBox]] = {}
        for move, (source, destination, hop) in self._routes:
            ours, peer = (outgoing, destination) if source == self._mailbox.place else (incoming, source)
            ours.setdefault((peer, hop > 0), []).extend(self._transfer.section_boxes(move, index - hop))
        return _Round(*self._sends(outgoing), tuple(self._receives(incoming)))

    def _sends(
        self, outgoing: Mapping[tuple[int, bool], Sequence[TensorBox]]
    ) -> tuple[tuple[Message, ...], tuple[tuple[int, int], ...]]:
        numbers: dict[tuple[Link | torch.device, bool, tuple[TensorBox, ...]], int] = {}
        posts: list[tuple[int, int]] = []
        sends: list[Message] = []
        for (peer, forwarded), parts in sorted(outgoing.items()):
            holding = self._needed if forwarded else self._held
            for content in split_into_messages(parts, self._dtype.itemsize):
                owner = _owner(self._links.get(peer, self._mailbox))
                number = numbers.setdefault((owner, forwarded, content), len(numbers))
                if number == len(sends):
                    sends.append(holding.message_with(content, peer, forwarded))
                posts.append((peer, number))
        return tuple(sends), tuple(posts)

    def _receives(self, incoming: Mapping[tuple[int, bool], Sequence[TensorBox]]) -> Iterator[Message]:
        for (peer, _), parts in sorted(incoming.items()):
            for content in split_into_messages(parts, self._dtype.itemsize):
                yield self._needed.message_with(content, peer, False)

    # Work

    def _round(
        self,
        number: int,
        round_: _Round,
        mail: Link,
        source: Mapping[str, Tensor],
        destination: Mapping[str, Tensor],
        ema: float | None,
    ) -> tuple[list[InFlightMessage], list[InFlightMessage], int]:
        """Run one round. Returns what left, what arrived, and how many bytes of buffers it took."""

        def link(peer: int) -> Link:
            return self._links.get(peer, mail)

        places = [destination if message.forwarded else source for message in round_.sends]
        ready = [
            self._direct(message, link(message.peer), tensors)
            for message, tensors in zip(round_.sends, places, strict=True)
        ]
        in_place = [
            self._direct(message, link(message.peer), destination) if ema is None else None
            for message in round_.receives
        ]
        # Messages that come by a link that is not direct lie in the sender's memory.
        lacking = [message for message, direct in zip(round_.sends, ready, strict=True) if direct is None]
        lacking += [
            message
            for message, direct in zip(round_.receives, in_place, strict=True)
            if direct is None and link(message.peer).direct
        ]
        buffers, used = self._rooms(number, [(link(message.peer), message) for message in lacking])
        arriving: list[InFlightMessage] = []
        for message, direct in zip(round_.receives, in_place, strict=True):
            with self._naming(number, message.description, message.peer, link(message.peer), sends=False):
                into = buffers.get(id(message), direct)
                if into is None:
                    into = torch.empty(message.elements, dtype=self._dtype, device="meta")
                arriving.append(link(message.peer).receive(into, message.peer))
        leaving: list[InFlightMessage] = []
        packed: dict[int, Tensor] = {}
        for peer, index in round_.posts:
            if index not in packed:
                message, direct = round_.sends[index], ready[index]
                packed[index] = buffers[id(message)] if direct is None else direct
                if direct is None:
                    for view, part in message.views_to_copy(packed[index], places[index]):
                        part.copy_(view)
            with self._naming(number, round_.sends[index].description, peer, link(peer), sends=True):
                leaving.append(link(peer).send(packed[index], peer))
        for carrier in dict.fromkeys([*self._links.values(), mail]):
            with self._naming(number, "all messages", None, carrier, sends=True):
                carrier.start_posted_messages()
        for message, direct, post in zip(round_.receives, in_place, arriving, strict=True):
            with self._naming(number, message.description, message.peer, link(message.peer), sends=False):
                post.wait()
                if direct is None:
                    for view, part in message.views_to_copy(post.message, destination):
                        _store(view, part, ema)
                post.note_read()
        for (peer, index), post in zip(round_.posts, leaving, strict=True):
            with self._naming(number, round_.sends[index].description, peer, link(peer), sends=True):
                post.wait()
        return leaving, arriving, used

    def _direct(self, message: Message, link: Link, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """Return the message where it lies in one piece of memory, as it travels; None where it does not."""
        if not link.direct or len(message.copies) != 1 or message.elements * self._dtype.itemsize < ALONE:
            return None
        copy = message.copies[0]
        view = tensors[copy.tensor][copy.local_slices]
        fits = (
            copy.part_slices is None
            and view.is_contiguous()
            and view.dtype == self._dtype
            and view.device == link.device
        )
        return view.detach() if fits else None

    def _rooms(self, number: int, wanted: Sequence[tuple[Link, Message]]) -> tuple[dict[int, Tensor], int]:
        """Return a buffer for each message, by its identity, and the bytes of all."""
        sizes: dict[Link | torch.device, int] = {}
        for link, message in wanted:
            owner = _owner(link)
            sizes[owner] = sizes.get(owner, 0) + message.elements * self._dtype.itemsize
        rooms = {owner: self._kept_buffer(number, owner, size) for owner, size in sizes.items()}
        buffers: dict[int, Tensor] = {}
        for link, message in wanted:
            owner, size = _owner(link), message.elements * self._dtype.itemsize
            buffers[id(message)], rooms[owner] = rooms[owner][:size].view(self._dtype), rooms[owner][size:]
        return buffers, sum(sizes.values())

    def _kept_buffer(self, number: int, owner: Link | torch.device, size: int) -> Tensor:
        """Return a buffer of so many bytes, of a link or of this place."""
        if not isinstance(owner, torch.device):
            with self._naming(number, "all messages", None, owner, sends=True):
                memory = owner.buffer(size)
            return memory
        buffer = self._buffers.get(owner)
        if buffer is None or buffer.nbytes < size:
            buffer = self._buffers[owner] = torch.empty(size, dtype=torch.uint8, device=owner)
        return buffer

    @contextmanager
    def _naming(self, number: int, about: str, peer: int | None, link: Link, *, sends: bool) -> Iterator[None]:
        """Name in errors the message at which a link has failed, and set `pending` meanwhile."""
        ways = self._ways
        ends = [ways.place_name(self._mailbox.place), "its peers" if peer is None else ways.place_name(peer)]
        start, end = ends if sends else ends[::-1]
        where = (
            f"{about} of {ways.what} from {start} to {end} (round {number} of {len(self._rounds)}, over {link.name})"
        )
        self.pending = None if peer is None else CurrentMessage(where, ways.place_name(peer))
        try:
            yield
        except EngineError as error:
            raise type(error)(f"{where}: {error}") from None
        finally:
            self.pending = None


def _owner(link: Link) -> Link | torch.device:
    """Return the link, or the device, in whose memory messages are packed."""
    return link.device if link.direct else link


def _store(view: Tensor, arriving: Tensor, ema: float | None) -> None:
    if ema is None:
        view.copy_(arriving)
    else:
        view.lerp_(arriving.to(view), 1 - ema)
