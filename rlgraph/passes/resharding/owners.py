"""Who writes what of tensors that several places have, so that each element is written once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlgraph.ir.transfer import TensorBox
from rlgraph.passes.resharding.cells import Layout, cells


def owners(layouts: Sequence[Layout]) -> list[list[TensorBox]]:
    """For each place the boxes of global tensors that it writes: of those that have one, who has least to write so
    far."""
    found: list[list[TensorBox]] = [[] for _ in layouts]
    load = np.zeros(len(layouts), np.int64)
    for tensor in cells(layouts):
        volumes, labels = tensor.volumes(), np.full(tensor.held.shape[1], -1, np.int64)
        # Cells that the same places have go to the same one: few boxes are large ones.
        patterns, which = np.unique(tensor.held, axis=1, return_inverse=True)
        for number, pattern in enumerate(patterns.T):
            holders = np.flatnonzero(pattern)
            if len(holders):
                chosen = holders[load[holders].argmin()]
                mine = which.reshape(-1) == number
                labels[mine] = chosen
                load[chosen] += volumes[mine].sum()
        for place, box in tensor.boxes(labels):
            found[place].append((tensor.name, box))
    return found
