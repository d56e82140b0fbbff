"""Layouts: which part of a global tensor a rank holds, and where in its own tensors that part lies.

A part is a box in global indices. A parameter that every layer has is one tensor whose first dimension is the layer:
its name has a `*` in the layer's place, or `*+3` where the first three layers have something else. So layers over
pipeline stages are a split like any other, and plans stay small.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

Range = tuple[int, int]
"""From the first index to the one after the last."""

Box = tuple[Range, ...]
"""A range for each dimension."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor of the model as the world knows it: Hugging Face's name and shape."""

    name: str
    """`model.layers.*.mlp.up_proj.weight`: with a `*`, the first dimension is the layer, or the layer
    after so many as a number behind it says."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a global tensor, and where it lies in a local one. Both have the same dimensions."""

    name: str
    box: Box
    at: tuple[int, ...]
    """The first index of the box in the local tensor."""


@dataclass(frozen=True, slots=True)
class Local:
    """A tensor that a rank holds. What no piece covers is padding."""

    name: str
    """The engine's own; with a `*`, one tensor for each layer that the rank has, its first dimension the layer."""
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


_LAYER = re.compile(r"\*(?:\+(\d+))?")


def at_layer(name: str, place: int) -> str:
    """The name of one layer's tensor, by its place in the first dimension of all layers'."""
    return _LAYER.sub(lambda found: str(place + int(found[1] or 0)), name)


def first_layer(name: str) -> int:
    """The layer that is at the first place; 0 where there is none."""
    found = _LAYER.search(name)
    return int(found[1] or 0) if found else 0


def from_layer(name: str, first: int) -> str:
    """The same name where the layer at the first place is another."""
    return _LAYER.sub(f"*+{first}" if first else "*", name)


def volume(box: Box) -> int:
    """How many elements a box has."""
    return math.prod(stop - start for start, stop in box)


def whole(shape: tuple[int, ...]) -> Box:
    return tuple((0, size) for size in shape)


def common(a: Box, b: Box) -> Box | None:
    """What lies in both; None if that is nothing."""
    found = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return found if all(start < stop for start, stop in found) else None


def without(box: Box, cut: Box) -> list[Box]:
    """What is left of a box, as boxes that do not overlap."""
    inner = common(box, cut)
    if inner is None:
        return [box]
    left = []
    for dim, ((start, stop), (low, high)) in enumerate(zip(box, inner, strict=True)):
        for part in ((start, low), (high, stop)):
            if part[0] < part[1]:
                left.append((*inner[:dim], part, *box[dim + 1 :]))
    return left


def within(local: Local, box: Box, name: str) -> Local:
    """A box of a rank's tensor as a tensor of its own."""
    pieces = []
    for piece in local.pieces:
        lies = tuple((at, at + stop - start) for at, (start, stop) in zip(piece.at, piece.box, strict=True))
        if found := common(lies, box):
            starts = [start - at for at, (start, _) in zip(piece.at, piece.box, strict=True)]
            there = tuple((low + start, high + start) for (low, high), start in zip(found, starts, strict=True))
            at = tuple(low - first for (low, _), (first, _) in zip(found, box, strict=True))
            pieces.append(Piece(piece.name, there, at))
    return Local(name, tuple(stop - start for start, stop in box), tuple(pieces))


def chunk(size: int, parts: int, index: int) -> Range:
    """The range of one of so many parts as `torch.chunk` cuts them: of equal length but for the last one that has any,
    and then empty ones."""
    each = -(-size // parts)
    return min(index * each, size), min((index + 1) * each, size)


def share(size: int, parts: int, index: int) -> Range:
    """The range of one of so many parts; the first ones are one longer where it does not divide."""
    base, more = divmod(size, parts)
    start = index * base + min(index, more)
    return start, start + base + (index < more)
