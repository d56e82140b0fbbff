"""The messages of a transfer: what each has, and where that lies in a place's own tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from rlgraph.errors import count_phrase
from rlgraph.ir.layout import (
    Box,
    LocalTensor,
    TensorPiece,
    box_difference,
    box_elements,
    box_intersection,
    box_slices,
    layer_tensor_name,
    relative_box,
    shape_of_box,
)
from rlgraph.ir.transfer import TensorBox

ALONE = 1 << 18
"""Bytes from which on a part of one tensor is a message by itself."""

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class BoxCopy:
    """A box of a message and where it lies in a local tensor."""

    tensor: str
    local_slices: Slices
    start: int
    """The first element, in the message, of the part that the box belongs to."""
    shape: tuple[int, ...]
    """The shape of that part."""
    part_slices: Slices | None
    """The elements of the part that the box has; None for all of them."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message between two places."""

    elements: int
    peer: int
    """The place that it comes from, or goes to first."""
    forwarded: bool
    """Whether it is taken from the destination's tensors, where it arrived."""
    copies: tuple[BoxCopy, ...]
    description: str
    """What it has, for error messages."""

    def views_to_copy(self, buffer: Tensor, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield for each copy the part of the local tensor and the part of the message."""
        for copy in self.copies:
            part = buffer[copy.start : copy.start + math.prod(copy.shape)].view(copy.shape)
            if copy.part_slices is not None:
                part = part[copy.part_slices]
            local = tensors[copy.tensor][copy.local_slices]
            # A layer's tensor lacks the dimension of the layers.
            yield local, part if part.dim() == local.dim() else part.squeeze(0)


class LocalPieces:
    """The places of the boxes of global tensors in a place's own tensors."""

    def __init__(self, layout: Sequence[LocalTensor]) -> None:
        self.pieces: dict[str, list[tuple[str, TensorPiece]]] = {}
        for local in layout:
            for piece in local.pieces:
                self.pieces.setdefault(piece.name, []).append((local.name, piece))

    def message_with(self, content: Sequence[TensorBox], peer: int, forwarded: bool) -> Message:
        """Return the message that has these boxes."""
        name, box = content[0]
        more = f" and {count_phrase(len(content) - 1, 'more part')}" if len(content) > 1 else ""
        about = f"{name}[{', '.join(f'{low}:{high}' for low, high in box)}]{more}"
        elements = sum(box_elements(box) for _, box in content)
        return Message(elements, peer, forwarded, tuple(self.box_copies(content)), about)

    def box_copies(self, parts: Iterable[TensorBox]) -> Iterator[BoxCopy]:
        """Yield the copies for parts that lie one behind the other in a message."""
        start = 0
        for name, box in parts:
            shape = shape_of_box(box)
            for local, piece in self.pieces.get(name, ()):
                shared = box_intersection(box, piece.box)
                if shared is not None:
                    for layer in _layers(local, shared):
                        inner = None if layer == box else box_slices(relative_box(box, layer))
                        yield BoxCopy(*_located(local, piece, layer), start, shape, inner)
            start += math.prod(shape)


def local_copies(held: LocalPieces, destination: Sequence[LocalTensor]) -> Iterator[tuple[BoxCopy, BoxCopy]]:
    """Yield what a place needs and has itself: where it is, and where it goes."""
    for local in destination:
        for piece in local.pieces:
            left = [piece.box]
            for name, held_piece in held.pieces.get(piece.name, ()):
                for box in filter(None, [box_intersection(missing, held_piece.box) for missing in left]):
                    for layer in _layers(name + local.name, box):
                        yield (
                            BoxCopy(*_located(name, held_piece, layer), 0, shape_of_box(layer), None),
                            BoxCopy(*_located(local.name, piece, layer), 0, shape_of_box(layer), None),
                        )
                left = [rest for missing in left for rest in box_difference(missing, held_piece.box)]


def split_into_messages(parts: Iterable[TensorBox], itemsize: int) -> Iterator[tuple[TensorBox, ...]]:
    """Yield what travels together: large parts of one tensor alone, all the others in one message."""
    together = []
    for name, box in parts:
        for layer in _layers(name, box):
            if box_elements(layer) * itemsize >= ALONE:
                yield ((name, layer),)
            else:
                together.append((name, layer))
    if together:
        yield tuple(together)


def _layers(name: str, box: Box) -> list[Box]:
    """Return a box for each layer of tensors that have one tensor for each, since they cannot be copied at once."""
    if "*" not in name:
        return [box]
    return [((layer, layer + 1), *box[1:]) for layer in range(*box[0])]


def _located(local: str, piece: TensorPiece, box: Box) -> tuple[str, Slices]:
    """Return the tensor in which a box inside a piece lies, and where."""
    starts = [at + low - first for at, (low, _), (first, _) in zip(piece.at, box, piece.box, strict=True)]
    slices = tuple(slice(start, start + high - low) for start, (low, high) in zip(starts, box, strict=True))
    if "*" not in local:
        return local, slices
    return layer_tensor_name(local, starts[0]), slices[1:]
