"""What nobody has, beside sets of elements."""

from __future__ import annotations

import random
from itertools import product

from rlgraph.ir.layout import LocalTensor, TensorPiece
from rlgraph.ir.transfer import TensorBox
from rlgraph.passes.resharding.missing_boxes import missing_boxes

SHAPES = {"a": (5,), "b": (4, 3), "c": (2, 3, 4)}

Element = tuple[str, tuple[int, ...]]


def drawn(source: random.Random) -> tuple[LocalTensor, ...]:
    """Some boxes of some tensors."""
    found = []
    for name, shape in SHAPES.items():
        for _ in range(source.randrange(3)):
            box = tuple((low := source.randrange(size), source.randrange(low, size + 1)) for size in shape)
            sizes = tuple(high - low for low, high in box)
            found.append(LocalTensor(name, sizes, (TensorPiece(name, box, (0,) * len(shape)),)))
    return tuple(found)


def inside(boxes: list[TensorBox]) -> list[Element]:
    return [(name, at) for name, box in boxes for at in product(*(range(low, high) for low, high in box))]


def of(layouts: list[tuple[LocalTensor, ...]]) -> set[Element]:
    boxes = [(piece.name, piece.box) for layout in layouts for local in layout for piece in local.pieces]
    return set(inside(boxes))


def test_what_nobody_has() -> None:
    source = random.Random(0)
    some = 0
    for _ in range(200):
        wanted, held = ([drawn(source) for _ in range(source.randrange(4))] for _ in range(2))
        found = inside(missing_boxes(wanted, held))
        assert len(found) == len(set(found))
        assert set(found) == of(wanted) - of(held)
        some += bool(found) and bool(of(wanted) & of(held))
    assert some > 50
