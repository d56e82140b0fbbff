"""How the rows of a frame are shared out between the copies of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlgraph.backends.frame import Frame, Places
from rlgraph.ir.layout import share


def split(frame: Frame, axis: str, copies: int, names: Sequence[str]) -> list[tuple[Frame, Places]]:
    """A part of the rows of an axis for each copy, one behind the other and as even as can be, with all that lies in
    them and the outer rows that they lie in. Names without rows are the same in each."""
    size = frame.size(axis)
    ranges = (share(size, copies, index) for index in range(copies))
    return [part(frame, axis, torch.arange(start, stop), names) for start, stop in ranges]


def part(frame: Frame, axis: str, rows: Tensor, names: Sequence[str]) -> tuple[Frame, Places]:
    """Some rows of an axis, ascending, and of the outer axes only the rows that these lie in."""
    path = [above.key for above in frame.rows[axis].axis.path()]
    used: Places = {axis: rows}
    for outer in path[1:]:
        used[outer] = frame.index(axis, outer)[rows].unique()
    kept: Places = {}
    for key in reversed(path):
        # Outer cuts have moved the rows: what is left of them is ascending.
        here = torch.searchsorted(kept[key], used[key]) if key in kept else used[key]
        frame, chosen = frame.slice(key, here, names)
        for other, places in chosen.items():
            kept[other] = kept[other][places] if other in kept else places
    return frame, kept
