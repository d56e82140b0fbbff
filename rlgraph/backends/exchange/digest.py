"""Digests of what a transfer moved, which both ends compute of the weights themselves: the sender of those that it has,
the receiver of those that now lie where its engine works with them.

They are of the dtype that travels, the narrower of both sides', so that a conversion does not change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlgraph.backends.exchange.messages import LocalPieces, Message, split_into_messages
from rlgraph.ir.transfer import TensorBox

_STRETCH = 1 << 18
"""The most elements that are summed at a time: a device on which a model sleeps has little room."""
_FEWEST = 1 << 12
"""A stretch has at least so many, where a message is small."""
_SHARE = 16
"""A stretch has one of so many elements of a message."""
_MIX = -7046029254386353131
"""An odd number whose multiples have all bits mixed: 0x9E3779B97F4A7C15 with a sign."""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class MovedPart:
    """A part of the weights that went from one place to another."""

    source: str
    """What messages call the place that sent it."""
    destination: str
    section: int
    """The section of its move."""
    description: str
    """Its first tensor and box, and how many more it has."""


def part_digests(
    ends: tuple[str, str],
    section: int,
    boxes: Iterable[TensorBox],
    pieces: LocalPieces,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> Iterator[tuple[MovedPart, int]]:
    """Yield the digests of the boxes of a section, as they lie in the tensors of one of the two places. No message is
    packed for it: plans count no room for that."""
    for content in split_into_messages(boxes, dtype.itemsize):
        message = pieces.message_with(content, 0, False)
        # It has no memory, and says which place of the message each part of a tensor has.
        unpacked = torch.empty(message.elements, dtype=dtype, device="meta")
        copies = {_place_key(places): (view, places) for view, places in message.views_to_copy(unpacked, tensors)}
        if sum(view.numel() for view, _ in copies.values()) != message.elements:
            copies = {(): (_packed(message, dtype, tensors), unpacked)}
        sums = [_sum(view, places, dtype, _stretch(message.elements)) for view, places in copies.values()]
        yield MovedPart(*ends, section, message.description), _total(sums)


def tensor_digest(flat: Tensor) -> int:
    """Return the digest of a message that is packed: the sum of its elements' bits, each times an odd number of its
    place, modulo 2**64, so that another bit, order or place changes it."""
    return _total([_sum(flat, flat.to("meta"), flat.dtype, _stretch(len(flat)))])


def _place_key(places: Tensor) -> tuple[int, ...]:
    """Return the same for two tensors that have the same part of a message, as a head that is the embedding has."""
    return places.storage_offset(), *places.shape, *places.stride()


def _packed(message: Message, dtype: torch.dtype, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return a message of which some tensors have parts that overlap, or of which some part is nowhere here."""
    device = next((tensors[copy.tensor].device for copy in message.copies), None)
    packed = torch.zeros(message.elements, dtype=dtype, device=device)
    for view, place in message.views_to_copy(packed, tensors):
        place.copy_(view)
    return packed


def _stretch(elements: int) -> int:
    return min(_STRETCH, max(_FEWEST, elements // _SHARE))


def _sum(view: Tensor, places: Tensor, dtype: torch.dtype, stretch: int) -> Tensor:
    """Return the sum of some elements of a message, as a number on their device. places: a view of the message without
    memory, of the same shape."""
    total = torch.zeros((), dtype=torch.int64, device=view.device)
    for part, where in _parts(view, places, stretch):
        numbers = torch.full((), int(where.storage_offset()), dtype=torch.int64, device=view.device)
        for size, stride in zip(where.shape, where.stride(), strict=True):
            numbers = numbers.unsqueeze(-1) + torch.arange(size, device=view.device) * stride
        numbers.mul_(_MIX).bitwise_or_(1)
        bits = part.detach().to(dtype).contiguous().view(_INTEGERS[dtype.itemsize])
        total += numbers.mul_(bits).sum()
    return total


def _parts(view: Tensor, places: Tensor, stretch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield parts of so many elements at most."""
    if view.numel() <= stretch:
        yield view, places
        return
    rows = stretch * len(view) // view.numel()
    for part, where in zip(view.split(max(1, rows)), places.split(max(1, rows)), strict=True):
        if rows:
            yield part, where
        else:
            yield from _parts(part[0], where[0], stretch)


def _total(sums: Iterable[Tensor]) -> int:
    total = sum(int(part) for part in sums)
    return (total + 2**63) % 2**64 - 2**63


def first_difference(ends: Iterable[Mapping[MovedPart, int]]) -> MovedPart | None:
    """Return the first part that the two ends have otherwise, or that one of them lacks; None if there is none."""
    digests: dict[MovedPart, list[int]] = {}
    for end in ends:
        for part, digest in end.items():
            digests.setdefault(part, []).append(digest)
    return next((part for part, both in digests.items() if len(both) < 2 or both[0] != both[1]), None)
