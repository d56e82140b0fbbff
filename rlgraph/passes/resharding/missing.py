"""What of some tensors none of several places has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlgraph.ir.transfer import TensorBox
from rlgraph.passes.resharding.cells import Layout, cells


def lacking(wanted: Sequence[Layout], held: Sequence[Layout]) -> list[TensorBox]:
    """The boxes of global tensors that are in one of the layouts that are wanted, and in none of those that are there.
    Neighbours are one box."""
    found: list[TensorBox] = []
    for tensor in cells([*wanted, *held]):
        gone = tensor.held[: len(wanted)].any(axis=0) & ~tensor.held[len(wanted) :].any(axis=0)
        found += [(tensor.name, box) for _, box in tensor.boxes(np.where(gone, 0, -1))]
    return found
