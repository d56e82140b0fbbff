"""Carries out a transfer: what one place sends and receives, round by round.

Messages are cut by what travels alone, so that both ends cut them alike. A large message that lies in one piece of
memory is sent from where it is, and received where it belongs; the others go through a buffer, which is kept for the
next time. Where only changes travel, both ends keep the last messages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlgraph.engines.base import EngineError
from rlgraph.exchange.changes import Changes
from rlgraph.exchange.mailbox import Mail, Mailbox, Post
from rlgraph.ir.layout import Box, Local, Piece, common, volume, without
from rlgraph.ir.transfer import TensorBox, Transfer

_ALONE = 1 << 18
"""Bytes from which on a part of one tensor is a message of its own."""

_Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """What a place did."""

    sent: int
    """Bytes."""
    received: int
    seconds: float
    peak: int
    """The most bytes of buffers that a round used."""
    start: float = 0.0
    """By the process's clock, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A box of a message and where it lies in a local tensor."""

    tensor: str
    at: _Slices
    start: int
    """The first element in the message of the part that the box belongs to."""
    shape: tuple[int, ...]
    """Of that part."""
    inner: _Slices | None
    """Which of its elements these are; None for all of them."""


@dataclass(frozen=True, slots=True)
class _Message:
    elements: int
    forwarded: bool
    """Whether it is taken from the destination's tensors, where it arrived."""
    copies: tuple[_Copy, ...]


@dataclass(frozen=True, slots=True)
class _Round:
    sends: tuple[_Message, ...]
    posts: tuple[tuple[int, int], ...]
    """To whom each send goes: peer, number of the message. What several peers get is packed once."""
    receives: tuple[tuple[int, _Message], ...]
    """From whom, and what."""


class Exchange:
    """One place's end of a transfer. All places that take part call `run` at the same time."""

    def __init__(
        self,
        transfer: Transfer,
        mailbox: Mailbox,
        *,
        source: Sequence[Local] = (),
        destination: Sequence[Local] = (),
        dtype: torch.dtype = torch.float32,
        delta: bool = False,
    ) -> None:
        """The layouts are those of this place on both sides, and `dtype` is the one that travels: the narrower of both
        sides'. delta: from the second time on only the elements that changed travel; the same at all places."""
        if dtype.itemsize != transfer.itemsize:
            raise EngineError(
                f"the transfer was planned for elements of {transfer.itemsize} bytes, and {dtype} has {dtype.itemsize}"
            )
        self._transfer, self._mailbox, self._dtype = transfer, mailbox, dtype
        self._held, self._needed = _Holding(source), _Holding(destination)
        self._kept = tuple(_kept(self._held, destination))
        self._routes = [(move, route) for move in transfer.moves for route in move.routes if mailbox.place in route[:2]]
        self._rounds = tuple(self._scheduled(index) for index in range(transfer.rounds)) if self._routes else ()
        self._buffer = torch.empty(0, dtype=dtype)
        self._changes = Changes(mailbox) if delta else None

    @torch.no_grad()
    def run(
        self, source: Mapping[str, Tensor], destination: Mapping[str, Tensor], *, ema: float | None = None
    ) -> Moved:
        """Write what the destination needs into its tensors, `ema` of the old value and the rest of what arrives.

        The tensors have the layouts' names, a layer's number in place of `*`. Raises EngineError naming the peer that
        is gone or does not answer.
        """
        if ema is not None and self._transfer.forwards:
            raise EngineError(
                "a moving average needs a transfer in which no place passes on what it got: plan it with forward=False"
            )
        start, began = time.time(), time.perf_counter()
        for have, need in self._kept:
            _store(destination[need.tensor][need.at], source[have.tensor][have.at], ema)
        mail = self._changes.run() if self._changes else self._mailbox
        sent = received = peak = 0
        for each in self._rounds:
            leaving, arriving, used = self._round(each, mail, source, destination, ema)
            sent += sum(post.size for post in leaving)
            received += sum(post.size for post in arriving)
            peak = max(peak, used)
        return Moved(sent, received, time.perf_counter() - began, peak, start)

    # Schedule

    def _scheduled(self, index: int) -> _Round:
        """What this place does in a round. What it has passed to it, and what others had first, are told apart at both
        ends."""
        outgoing: dict[tuple[int, bool], list[TensorBox]] = {}
        incoming: dict[tuple[int, bool], list[TensorBox]] = {}
        for move, (source, destination, hop) in self._routes:
            ours, peer = (outgoing, destination) if source == self._mailbox.place else (incoming, source)
            ours.setdefault((peer, hop > 0), []).extend(self._transfer.section(move, index - hop))
        return _Round(*self._sends(outgoing), tuple(self._receives(incoming)))

    def _sends(
        self, outgoing: Mapping[tuple[int, bool], Sequence[TensorBox]]
    ) -> tuple[tuple[_Message, ...], tuple[tuple[int, int], ...]]:
        numbers: dict[tuple[bool, tuple[TensorBox, ...]], int] = {}
        posts = [
            (peer, numbers.setdefault((forwarded, content), len(numbers)))
            for (peer, forwarded), parts in sorted(outgoing.items())
            for content in _messages(parts, self._dtype.itemsize)
        ]
        sends = []
        for forwarded, content in numbers:
            holding = self._needed if forwarded else self._held
            sends.append(_Message(_elements(content), forwarded, tuple(holding.copies(content))))
        return tuple(sends), tuple(posts)

    def _receives(self, incoming: Mapping[tuple[int, bool], Sequence[TensorBox]]) -> Iterator[tuple[int, _Message]]:
        for (peer, _), parts in sorted(incoming.items()):
            for content in _messages(parts, self._dtype.itemsize):
                yield peer, _Message(_elements(content), False, tuple(self._needed.copies(content)))

    # Work

    def _round(
        self,
        each: _Round,
        mail: Mail,
        source: Mapping[str, Tensor],
        destination: Mapping[str, Tensor],
        ema: float | None,
    ) -> tuple[list[Post], list[Post], int]:
        """Run one round: what left, what arrived, and how many bytes of the buffer it took."""
        places = [destination if message.forwarded else source for message in each.sends]
        ready = [self._direct(message, tensors) for message, tensors in zip(each.sends, places, strict=True)]
        open_ = [self._direct(message, destination) if ema is None else None for _, message in each.receives]
        messages = [*each.sends, *(message for _, message in each.receives)]
        buffers = self._buffers(
            0 if direct is not None else message.elements
            for message, direct in zip(messages, [*ready, *open_], strict=True)
        )
        arriving = [
            mail.receive(buffer if direct is None else direct, peer)
            for (peer, _), direct, buffer in zip(each.receives, open_, buffers[len(ready) :], strict=True)
        ]
        leaving: list[Post] = []
        packed: dict[int, Tensor] = {}
        for peer, index in each.posts:
            if index not in packed:
                direct = ready[index]
                packed[index] = buffers[index] if direct is None else direct
                if direct is None:
                    for view, part in _views(each.sends[index], buffers[index], places[index]):
                        part.copy_(view)
            leaving.append(mail.send(packed[index], peer))
        for (_, message), direct, post in zip(each.receives, open_, arriving, strict=True):
            post.wait()
            if direct is None:
                for view, part in _views(message, post.message, destination):
                    _store(view, part, ema)
        for post in leaving:
            post.wait()
        return leaving, arriving, sum(buffer.nbytes for buffer in buffers)

    def _direct(self, message: _Message, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """Where the message lies in one piece of memory, as it travels."""
        if len(message.copies) != 1 or message.elements * self._dtype.itemsize < _ALONE:
            return None
        copy = message.copies[0]
        view = tensors[copy.tensor][copy.at]
        fits = copy.inner is None and view.is_contiguous() and view.dtype == self._dtype and view.is_cpu
        return view.detach() if fits else None

    def _buffers(self, sizes: Iterable[int]) -> list[Tensor]:
        wanted = list(sizes)
        if sum(wanted) > len(self._buffer):
            self._buffer = torch.empty(sum(wanted), dtype=self._dtype)
        return list(self._buffer[: sum(wanted)].split(wanted)) if wanted else []


class _Holding:
    """Where the boxes of global tensors lie in a place's own."""

    def __init__(self, layout: Sequence[Local]) -> None:
        self.pieces: dict[str, list[tuple[str, Piece]]] = {}
        for local in layout:
            for piece in local.pieces:
                self.pieces.setdefault(piece.name, []).append((local.name, piece))

    def copies(self, parts: Iterable[TensorBox]) -> Iterator[_Copy]:
        """For parts that lie behind each other in a message."""
        start = 0
        for name, box in parts:
            shape = _shape(box)
            for local, piece in self.pieces.get(name, ()):
                shared = common(box, piece.box)
                if shared is not None:
                    for layer in _layers(local, shared):
                        inner = None if layer == box else _within(box, layer)
                        yield _Copy(*_located(local, piece, layer), start, shape, inner)
            start += math.prod(shape)


def _kept(held: _Holding, destination: Sequence[Local]) -> Iterator[tuple[_Copy, _Copy]]:
    """What a place needs and has itself: where it is, and where it goes."""
    for local in destination:
        for piece in local.pieces:
            left = [piece.box]
            for name, other in held.pieces.get(piece.name, ()):
                for box in filter(None, [common(each, other.box) for each in left]):
                    for layer in _layers(name + local.name, box):
                        yield (
                            _Copy(*_located(name, other, layer), 0, _shape(layer), None),
                            _Copy(*_located(local.name, piece, layer), 0, _shape(layer), None),
                        )
                left = [rest for each in left for rest in without(each, other.box)]


def _messages(parts: Iterable[TensorBox], itemsize: int) -> Iterator[tuple[TensorBox, ...]]:
    """What travels together: large parts of one tensor alone, all the others in one message."""
    together = []
    for name, box in parts:
        for layer in _layers(name, box):
            if volume(layer) * itemsize >= _ALONE:
                yield ((name, layer),)
            else:
                together.append((name, layer))
    if together:
        yield tuple(together)


def _layers(name: str, box: Box) -> list[Box]:
    """A tensor for each layer cannot be copied at once."""
    if "*" not in name:
        return [box]
    return [((layer, layer + 1), *box[1:]) for layer in range(*box[0])]


def _located(local: str, piece: Piece, box: Box) -> tuple[str, _Slices]:
    """The tensor that a box inside a piece lies in, and where."""
    starts = [at + low - first for at, (low, _), (first, _) in zip(piece.at, box, piece.box, strict=True)]
    slices = tuple(slice(start, start + high - low) for start, (low, high) in zip(starts, box, strict=True))
    if "*" not in local:
        return local, slices
    return local.replace("*", str(starts[0])), slices[1:]


def _within(outer: Box, inner: Box) -> _Slices:
    return tuple(slice(low - first, high - first) for (first, _), (low, high) in zip(outer, inner, strict=True))


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(high - low for low, high in box)


def _elements(parts: Iterable[TensorBox]) -> int:
    return sum(volume(box) for _, box in parts)


def _views(message: _Message, buffer: Tensor, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """For each copy the part of the local tensor and the part of the message."""
    for copy in message.copies:
        part = buffer[copy.start : copy.start + math.prod(copy.shape)].view(copy.shape)
        if copy.inner is not None:
            part = part[copy.inner]
        local = tensors[copy.tensor][copy.at]
        # A layer's tensor lacks the dimension of the layers.
        yield local, part if part.dim() == local.dim() else part.squeeze(0)


def _store(view: Tensor, arriving: Tensor, ema: float | None) -> None:
    if ema is None:
        view.copy_(arriving)
    else:
        view.lerp_(arriving.to(view), 1 - ema)
