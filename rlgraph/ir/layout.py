"""Layouts: which parts of global tensors a rank holds, and where in its own tensors these parts are.

A part is a box in global indices. A parameter that every layer has is one tensor whose first dimension is the layer:
its name has a `*` for the layer's number, or `*+3` where the first three layers do not have it. So pipeline stages
split it along a dimension like any other split, and plans stay small.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

Range = tuple[int, int]
"""The first index, and the one after the last."""

Box = tuple[Range, ...]
"""One range for each dimension."""


@dataclass(frozen=True, slots=True)
class ParameterShape:
    """A tensor of the model, with its name and shape in Hugging Face's checkpoint."""

    name: str
    """For example `model.layers.*.mlp.up_proj.weight`: with a `*`, the first dimension is the layer; with `*+N`, the
    layer minus N."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A box of a global tensor, and its place in a local one. Both have the same number of dimensions."""

    name: str
    box: Box
    at: tuple[int, ...]
    """The first index of the box in the local tensor."""


@dataclass(frozen=True, slots=True)
class LocalTensor:
    """A tensor that a rank holds. Elements that no piece covers are padding."""

    name: str
    """The engine's name; with a `*`, the rank has a tensor for each of its layers, and the first dimension is the
    layer."""
    shape: tuple[int, ...]
    pieces: tuple[TensorPiece, ...]


_LAYER = re.compile(r"\*(?:\+(\d+))?")


def layer_tensor_name(name: str, place: int) -> str:
    """Return the name of one layer's tensor, given its index in the first dimension."""
    return _LAYER.sub(lambda match: str(place + int(match[1] or 0)), name)


def first_stacked_layer(name: str) -> int:
    """Return the layer at index 0 of the first dimension; 0 for a tensor that belongs to no layer."""
    match = _LAYER.search(name)
    return int(match[1] or 0) if match else 0


def name_with_first_layer(name: str, first: int) -> str:
    """Return the name with another layer at index 0 of the first dimension."""
    return _LAYER.sub(f"*+{first}" if first else "*", name)


def box_elements(box: Box) -> int:
    """Return the number of elements of a box."""
    return math.prod(shape_of_box(box))


def shape_of_box(box: Box) -> tuple[int, ...]:
    """Return how far a box reaches along each axis."""
    return tuple(stop - start for start, stop in box)


def box_slices(box: Box) -> tuple[slice, ...]:
    """Return the index of a box's elements in a tensor."""
    return tuple(slice(start, stop) for start, stop in box)


def relative_box(outer: Box, inner: Box) -> Box:
    """Return where a box lies in another one."""
    return tuple((low - first, high - first) for (first, _), (low, high) in zip(outer, inner, strict=True))


def full_box(shape: tuple[int, ...]) -> Box:
    """Return the box that covers a tensor of this shape."""
    return tuple((0, size) for size in shape)


def box_intersection(a: Box, b: Box) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    box = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return box if all(start < stop for start, stop in box) else None


def box_difference(box: Box, cut: Box) -> list[Box]:
    """Return what is left of a box without `cut`, as boxes that do not overlap."""
    inner = box_intersection(box, cut)
    if inner is None:
        return [box]
    left = []
    for dim, ((start, stop), (low, high)) in enumerate(zip(box, inner, strict=True)):
        for part in ((start, low), (high, stop)):
            if part[0] < part[1]:
                left.append((*inner[:dim], part, *box[dim + 1 :]))
    return left


def cut_tensor(local: LocalTensor, box: Box, name: str) -> LocalTensor:
    """Return a box of a rank's tensor as a tensor of this name."""
    pieces = []
    for piece in local.pieces:
        local_box = tuple((at, at + stop - start) for at, (start, stop) in zip(piece.at, piece.box, strict=True))
        if overlap := box_intersection(local_box, box):
            starts = [start - at for at, (start, _) in zip(piece.at, piece.box, strict=True)]
            global_box = tuple((low + start, high + start) for (low, high), start in zip(overlap, starts, strict=True))
            at = tuple(low - first for (low, _), (first, _) in zip(overlap, box, strict=True))
            pieces.append(TensorPiece(piece.name, global_box, at))
    return LocalTensor(name, shape_of_box(box), tuple(pieces))


def chunk_range(size: int, parts: int, index: int) -> Range:
    """Return the range of one of `parts` parts as `torch.chunk` cuts them: all of the same length but for the last
    non-empty one, with empty ones after it."""
    length = -(-size // parts)
    return min(index * length, size), min((index + 1) * length, size)


def even_range(size: int, parts: int, index: int) -> Range:
    """Return the range of one of `parts` even parts; the first ones are longer by one where `size` does not divide."""
    base, more = divmod(size, parts)
    start = index * base + min(index, more)
    return start, start + base + (index < more)
