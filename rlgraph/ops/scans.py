"""Scans along the entries of rows, without padding: sums with decay, cumulative sums, neighbours.

A row is cut into segments of `SEGMENT` entries from where its scan begins. Segments of all rows are computed side by
side, one entry of all at a time: first where each ends, from which follows what the next one begins with, then all
entries. So a row has the same bits whatever rows are beside it, and with any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

SEGMENT = 128
"""Entries that are computed one after the other. It decides the last bits of rows that are longer."""
TILE = 1 << 18
"""Entries of the segments that are computed side by side: 2 MiB, so that they stay in a processor's cache."""

Decay: TypeAlias = "Tensor | float | None"
"""A number, a 0-d tensor, or one for each entry; None is 1."""


def decayed_sums(x: Tensor, decay: Decay, index: Tensor, direction: int) -> Tensor:
    """Return y[t] = x[t] + decay[t] * y[t + direction] in each row, in the common dtype of both; direction: 1 or -1.

    x: [entries]; index: int64 [entries], ascending, the row of each. Numbers with a fraction are added up in double
    precision. Gradients of any order go through.
    """
    dtype = x.dtype if decay is None else torch.result_type(x, decay)
    summed: Tensor = _DecayedSums.apply(x.to(dtype), decay, index, direction)  # type: ignore[no-untyped-call]
    return summed


def neighbours(x: Tensor, index: Tensor, step: int) -> Tensor:
    """Return x[t + step], 0 where that is not in the row of t; step: 1 or -1."""
    if not len(x):
        return x
    bounds = _row_bounds(index)
    filled = bounds[1:] > bounds[:-1]
    if step > 0:
        shifted = torch.cat((x[1:], x.new_zeros(1)))
        return shifted.index_fill_(0, bounds[1:][filled] - 1, 0)
    shifted = torch.cat((x.new_zeros(1), x[:-1]))
    return shifted.index_fill_(0, bounds[:-1][filled], 0)


class _DecayedSums(torch.autograd.Function):
    """`decayed_sums` with a gradient that is a scan in the other direction."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, decay: Decay, index: Tensor, direction: int) -> Tensor:
        tensor = decay if isinstance(decay, Tensor) else None
        y = _scan(x, decay, _row_bounds(index), direction)
        ctx.save_for_backward(tensor, index, y)
        ctx.number, ctx.direction = None if tensor is not None else decay, direction
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        tensor, index, y = ctx.saved_tensors
        decay: Decay = ctx.number if tensor is None else tensor
        if tensor is not None and tensor.dim():
            decay = neighbours(tensor, index, -ctx.direction)
        of_x = decayed_sums(gradients[0], decay, index, -ctx.direction)
        if tensor is None or not ctx.needs_input_grad[1]:
            return of_x, None, None, None
        of_decay = of_x * neighbours(y, index, ctx.direction)
        return of_x, (of_decay if tensor.dim() else of_decay.sum()).to(tensor.dtype), None, None


def _row_bounds(index: Tensor) -> Tensor:
    """Return where each row begins, and after them how many entries there are, int64 [rows + 1]."""
    rows = int(index[-1]) + 1 if len(index) else 0
    return torch.searchsorted(index, torch.arange(rows + 1, device=index.device))


@dataclass(frozen=True)
class _Segments:
    """The segments of rows, of which each has its first entry in the order of the scan, int64 [segments]."""

    start: Tensor
    length: Tensor
    place: Tensor
    """Which segment of its row it is, from 0."""
    row: Tensor


def _cut(bounds: Tensor, direction: int) -> _Segments:
    """Cut rows into segments from where their scan begins, which is their last entry if `direction` is 1."""
    lengths = bounds[1:] - bounds[:-1]
    counts = (lengths + (SEGMENT - 1)) // SEGMENT
    row = torch.repeat_interleave(torch.arange(len(counts), device=bounds.device), counts)
    place = torch.arange(len(row), device=bounds.device) - (counts.cumsum(0) - counts)[row]
    before = place * SEGMENT
    start = bounds[1:][row] - 1 - before if direction > 0 else bounds[:-1][row] + before
    return _Segments(start, (lengths[row] - before).clamp(max=SEGMENT), place, row)


def _scan(x: Tensor, decay: Decay, bounds: Tensor, direction: int) -> Tensor:
    """Return sums with decay of the rows between `bounds`; no gradient goes through."""
    y = torch.empty_like(x)
    if not len(x):
        return y
    if isinstance(decay, Tensor) and not decay.dim():
        decay = decay.item()
    segments = _cut(bounds, direction)
    wide = torch.float64 if x.is_floating_point() else x.dtype
    begin: Tensor | None = None
    going_on = segments.place > 0
    if bool(going_on.any()):
        begin = _carried(x, decay, segments, going_on, direction, wide)
    for chosen, entries, same_length in _tiles(segments.length.argsort(descending=True, stable=True), segments):
        positions, inside = _positions(segments, chosen, entries, direction, len(x))
        of_entries = _decays(decay, positions)
        begun = None if begin is None else begin[chosen]
        sums = _summed(_entries(x, positions).to(wide), of_entries, begun).to(y.dtype).t()
        if same_length:
            y.scatter_(0, positions.flatten(), sums.flatten())
        else:
            y.scatter_(0, positions[inside], sums[inside])
    return y


def _carried(
    x: Tensor, decay: Decay, segments: _Segments, going_on: Tensor, direction: int, wide: torch.dtype
) -> Tensor:
    """Return the sum that each segment begins with, [segments]: that at the end of the one before, 0 of the first."""
    # The segments before others are whole ones. Their ends are themselves a scan along the segments of each row.
    whole = going_on.nonzero()[:, 0] - 1
    ends = torch.empty(len(whole), dtype=wide, device=x.device)
    number = decay
    if isinstance(decay, (int, float)):
        # Python's own power raises OverflowError where this one is infinite.
        number = torch.tensor(float(decay), dtype=torch.float64).pow(SEGMENT).item()
    products = torch.empty_like(ends) if isinstance(decay, Tensor) else None
    for chosen, entries, _ in _tiles(torch.arange(len(whole), device=x.device), segments, whole):
        positions, _ = _positions(segments, whole[chosen], entries, direction, len(x))
        of_entries = _decays(decay, positions)
        ends[chosen] = _summed(_entries(x, positions).to(wide), of_entries, None)[-1]
        if products is not None:
            assert isinstance(of_entries, Tensor)
            products[chosen] = of_entries.cumprod(0)[-1]
    rows, parts = segments.row[whole], number if products is None else products
    carried = torch.zeros(len(segments.row), dtype=wide, device=x.device)
    carried[whole + 1] = _scan(ends, parts, _row_bounds(rows), -1)
    return carried


def _tiles(order: Tensor, segments: _Segments, whole: Tensor | None = None) -> Iterator[tuple[Tensor, int, bool]]:
    """Yield parts of an order of segments, longest first, each with how many entries the longest has, and whether all
    have as many. whole: the segments that the order counts, if it does not count all."""
    lengths = (segments.length if whole is None else segments.length[whole])[order].tolist()
    first = 0
    while first < len(lengths):
        last = min(len(lengths), first + max(1, TILE // lengths[first]))
        yield order[first:last], lengths[first], lengths[first] == lengths[last - 1]
        first = last


def _positions(segments: _Segments, chosen: Tensor, entries: int, direction: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the positions of entries of segments in the order of the scan, int64 [segments, entries], and which of
    them are inside: the others are positions of something else."""
    steps = torch.arange(entries, device=chosen.device)
    positions = segments.start[chosen][:, None] - direction * steps
    return positions.clamp_(0, size - 1), steps < segments.length[chosen][:, None]


def _entries(x: Tensor, positions: Tensor) -> Tensor:
    """Return entries of segments, [entries, segments]: read as they lie in memory, and turned around after that."""
    return x.index_select(0, positions.flatten()).view(positions.shape).t().contiguous()


def _decays(decay: Decay, positions: Tensor) -> Decay:
    return _entries(decay, positions).double() if isinstance(decay, Tensor) else decay


def _summed(x: Tensor, decay: Decay, begin: Tensor | None) -> Tensor:
    """Return sums with decay along the first dimension of `x`, which is overwritten. begin: what was before."""
    if decay is None:
        if begin is not None:
            x[0] += begin
        return x.cumsum(0)
    entries = x.unbind(0)
    decays: list[Tensor | float] = [*decay.unbind(0)] if isinstance(decay, Tensor) else [decay] * len(entries)
    before, product = begin, torch.empty_like(entries[0])
    for entry, factor in zip(entries, decays, strict=True):
        if before is not None:
            # A fused product and sum would have other bits at the end of a tile than inside of it.
            torch.mul(before, factor, out=product)
            entry += product
        before = entry
    return x
