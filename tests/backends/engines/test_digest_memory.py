"""Digests of weights need little memory beside them, however the tensors lie."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlgraph.backends.exchange.digest import part_digests, tensor_digest
from rlgraph.backends.exchange.messages import LocalPieces
from rlgraph.ir.layout import LocalTensor, TensorPiece
from tests.passes.cost.allocated import Everywhere

ROWS, COLUMNS = 512, 600
BOX = ((0, ROWS), (0, COLUMNS))


def halves(first: int, axis: int) -> list[LocalTensor]:
    """Two local tensors of a global one, the first with so many of its rows or columns."""
    ends = [(0, first), (first, BOX[axis][1])]
    boxes = [tuple(end if number == axis else BOX[number] for number in range(2)) for end in ends]
    return [
        LocalTensor(f"part{number}", tuple(high - low for low, high in box), (TensorPiece("w", box, (0, 0)),))
        for number, box in enumerate(boxes)
    ]


def digest(layout: list[LocalTensor], whole: Tensor, dtype: torch.dtype) -> int:
    tensors = {}
    for local in layout:
        [piece] = local.pieces
        (top, bottom), (left, right) = piece.box
        tensors[local.name] = whole[top:bottom, left:right].contiguous()
    [(_, made)] = part_digests(("a", "b"), 0, [("w", BOX)], LocalPieces(layout), tensors, dtype)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_same_in_any_split_and_that_of_the_packed_message(dtype: torch.dtype) -> None:
    """A hundredth of a second each."""
    whole = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
    same = [LocalTensor(name, (ROWS, COLUMNS), (TensorPiece("w", BOX, (0, 0)),)) for name in ("head", "embedding")]
    packed = tensor_digest(whole.to(dtype).flatten())
    for layout in (same[:1], same, halves(100, 0), halves(500, 1), [*halves(500, 1), same[0]]):
        assert digest(layout, whole, dtype) == packed
    changed = whole.clone()
    changed[411, 512] += 1
    assert digest(halves(500, 1), changed, dtype) != packed


def test_it_needs_half_of_what_it_is_of() -> None:
    layout = [LocalTensor("w", (ROWS, COLUMNS), (TensorPiece("w", BOX, (0, 0)),))]
    with Everywhere() as live:
        tensors = {"w": torch.zeros(ROWS, COLUMNS)}
        live.since()
        list(part_digests(("a", "b"), 0, [("w", BOX)], LocalPieces(layout), tensors, torch.float32))
        peak = live.since() - live.now
    assert live.now == tensors["w"].nbytes and peak < tensors["w"].nbytes / 2
