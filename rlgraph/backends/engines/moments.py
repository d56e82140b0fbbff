"""The state that an optimizer keeps for a rank's weights, in the terms of layouts: so it goes where weights go, to
other splits and other engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from rlgraph.ir.layout import Box, LocalTensor, box_elements, full_box

MASTER = "master"
"""The kind of the wide copy of a narrow weight; the others are called as torch calls what its optimizers keep."""


@dataclass(frozen=True)
class Moments:
    """The optimizer state of one rank. Beside numbers for each weight it has how many updates they are of."""

    layout: tuple[LocalTensor, ...] = ()
    """The tensors of each kind: which parts of the global parameters they are of. Layers are named one by one."""
    tensors_by_kind: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """The live tensors by kind (`exp_avg`, `exp_avg_sq`, `master`), then by the names of the layout."""
    steps: float = 0.0


def flat_range_boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Yield some elements of a tensor that follow one another in memory, as boxes, in their order: optimizers that are
    sharded over replicas have such ranges of parameters."""
    if start >= stop:
        return
    if (start, stop) == (0, box_elements(full_box(shape))):
        yield full_box(shape)
        return
    row = box_elements(full_box(shape[1:]))
    first, last = -(-start // row), stop // row
    if first > last:
        yield from _in_row(shape, start // row, start % row, stop % row)
        return
    if start < first * row:
        yield from _in_row(shape, first - 1, start % row, row)
    if first < last:
        yield ((first, last), *full_box(shape[1:]))
    if last * row < stop:
        yield from _in_row(shape, last, 0, stop % row)


def _in_row(shape: tuple[int, ...], row: int, start: int, stop: int) -> Iterator[Box]:
    yield from (((row, row + 1), *rest) for rest in flat_range_boxes(shape[1:], start, stop))
