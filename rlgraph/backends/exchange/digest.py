"""Digests of what a transfer moved, which both ends compute of the weights themselves: the sender of those that it has,
the receiver of those that now lie where its engine works with them.

They are of the dtype that travels, the narrower of both sides', so that a conversion does not change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from rlgraph.backends.exchange.messages import LocalPieces, split_into_messages
from rlgraph.ir.transfer import TensorBox

_STRETCH = 1 << 18
"""Elements that are summed at a time."""
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
    """Yield the digests of the boxes of a section, as they lie in the tensors of one of the two places."""
    for content in split_into_messages(boxes, dtype.itemsize):
        message = pieces.message_with(content, 0, False)
        device = next((tensors[copy.tensor].device for copy in message.copies), None)
        packed = torch.zeros(message.elements, dtype=dtype, device=device)
        for view, place in message.views_to_copy(packed, tensors):
            place.copy_(view)
        yield MovedPart(*ends, section, message.description), tensor_digest(packed)


def tensor_digest(flat: Tensor) -> int:
    """Return the sum of the elements' bits, each times an odd number of its place, modulo 2**64, so that another bit,
    order or place changes it; a sum for each stretch, put together in the same way."""
    bits, total = flat.view(_INTEGERS[flat.dtype.itemsize]), torch.zeros((), dtype=torch.int64, device=flat.device)
    for part in bits.split(_STRETCH):
        total = total * _MIX + part.to(torch.int64).mul_(_place_numbers(flat.device)[: len(part)]).sum()
    return int(total)


@cache
def _place_numbers(device: torch.device) -> Tensor:
    """Return an odd number for each place of a stretch."""
    return (torch.arange(_STRETCH, dtype=torch.int64, device=device) * _MIX) | 1


def first_difference(ends: Iterable[Mapping[MovedPart, int]]) -> MovedPart | None:
    """Return the first part that the two ends have otherwise, or that one of them lacks; None if there is none."""
    digests: dict[MovedPart, list[int]] = {}
    for end in ends:
        for part, digest in end.items():
            digests.setdefault(part, []).append(digest)
    return next((part for part, both in digests.items() if len(both) < 2 or both[0] != both[1]), None)
