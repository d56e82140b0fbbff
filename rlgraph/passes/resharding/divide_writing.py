"""Divides the writing of tensors among the places that have them, so that each element is written once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlgraph.ir.transfer import TensorBox
from rlgraph.passes.resharding.cells import Layout, cut_into_cells


def divide_writing(layouts: Sequence[Layout]) -> list[list[TensorBox]]:
    """Return for each place the boxes of global tensors that it writes: the place with the least to write so far gets a
    box among those that have it."""
    boxes_of: list[list[TensorBox]] = [[] for _ in layouts]
    load = np.zeros(len(layouts), np.int64)
    for tensor in cut_into_cells(layouts):
        volumes, labels = tensor.volumes(), np.full(tensor.held_by_layout.shape[1], -1, np.int64)
        # Cells that the same places have are written by the same one, so that boxes are few and large.
        patterns, which = np.unique(tensor.held_by_layout, axis=1, return_inverse=True)
        for number, pattern in enumerate(patterns.T):
            holders = np.flatnonzero(pattern)
            if len(holders):
                chosen = holders[load[holders].argmin()]
                in_pattern = which.reshape(-1) == number
                labels[in_pattern] = chosen
                load[chosen] += volumes[in_pattern].sum()
        for place, box in tensor.merge_cells_by_label(labels):
            boxes_of[place].append((tensor.name, box))
    return boxes_of
