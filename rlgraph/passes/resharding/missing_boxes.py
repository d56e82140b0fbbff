"""Finds parts of tensors that none of several places has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlgraph.ir.transfer import TensorBox
from rlgraph.passes.resharding.cells import Layout, cut_into_cells


def missing_boxes(wanted: Sequence[Layout], held: Sequence[Layout]) -> list[TensorBox]:
    """Return the boxes of global tensors that are in one of the wanted layouts, and in none of those held. Neighbours
    are one box."""
    boxes: list[TensorBox] = []
    for tensor in cut_into_cells([*wanted, *held]):
        is_missing = tensor.held_by_layout[: len(wanted)].any(axis=0) & ~tensor.held_by_layout[len(wanted) :].any(
            axis=0
        )
        boxes += [(tensor.name, box) for _, box in tensor.merge_cells_by_label(np.where(is_missing, 0, -1))]
    return boxes
