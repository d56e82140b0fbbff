"""Global tensors cut wherever one of several layouts cuts them: inside a cell all elements are on the same ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlgraph.ir.layout import Box, Local

Layout = Sequence[Local]


@dataclass(frozen=True, slots=True)
class Cells:
    """One tensor's cells."""

    name: str
    edges: tuple[NDArray[np.int64], ...]
    """For each dimension where it is cut, from the first index to the one after the last."""
    held: NDArray[np.bool_]
    """For each layout and each cell whether it has it; the cells as one dimension, row by row."""

    def volumes(self) -> NDArray[np.int64]:
        """How many elements each cell has."""
        found = np.ones(1, np.int64)
        for edge in self.edges:
            found = np.multiply.outer(found, np.diff(edge)).reshape(-1)
        return found

    def boxes(self, labels: NDArray[np.int64]) -> list[tuple[int, Box]]:
        """Label and box; neighbours with the same label are one box. Cells labelled -1 are left out."""
        shape = tuple(len(edge) - 1 for edge in self.edges)
        at = np.indices(shape).reshape(len(shape), math.prod(shape))
        rows = np.stack([labels, *(index for dim in at for index in (dim, dim + 1))], axis=1)[labels >= 0]
        for dim in reversed(range(len(shape) if len(rows) else 0)):
            rows = _joined(rows, 1 + 2 * dim)
        found = []
        for label, *corners in rows[np.lexsort(rows.T[::-1])].tolist():
            ranges = zip(self.edges, corners[::2], corners[1::2], strict=True)
            found.append((label, tuple((int(edge[low]), int(edge[high])) for edge, low, high in ranges)))
        return found


def cells(layouts: Sequence[Layout]) -> Iterator[Cells]:
    """The cells of every tensor, in the order in which the layouts name them."""
    boxes: dict[str, list[tuple[int, Box]]] = {}
    for index, layout in enumerate(layouts):
        for local in layout:
            for piece in local.pieces:
                if all(low < high for low, high in piece.box):
                    boxes.setdefault(piece.name, []).append((index, piece.box))
    for name, found in boxes.items():
        yield _cells(name, found, len(layouts))


def distinct(side: Mapping[int, Layout]) -> tuple[list[Layout], list[list[int]]]:
    """The different layouts of a side, and for each of them the places that have it.

    Places that share one tuple are told apart from others without looking into it.
    """
    layouts: dict[tuple[Local, ...], list[int]] = {}
    known: dict[int, list[int]] = {}
    for place, layout in side.items():
        if id(layout) not in known:
            known[id(layout)] = layouts.setdefault(tuple(layout), [])
        known[id(layout)].append(place)
    return list(layouts), list(layouts.values())


def _cells(name: str, boxes: Sequence[tuple[int, Box]], layouts: int) -> Cells:
    dims = len(boxes[0][1])
    cuts = [sorted({end for _, box in boxes for end in box[dim]}) for dim in range(dims)]
    index = [{end: number for number, end in enumerate(cut)} for cut in cuts]
    held = np.zeros((layouts, *(len(cut) - 1 for cut in cuts)), np.bool_)
    for layout, box in boxes:
        inside = tuple(slice(at[low], at[high]) for at, (low, high) in zip(index, box, strict=True))
        held[layout][inside] = True
    return Cells(name, tuple(np.array(cut, np.int64) for cut in cuts), held.reshape(layouts, -1))


def _joined(rows: NDArray[np.int64], start: int) -> NDArray[np.int64]:
    """Boxes that touch along one dimension, and agree in all else, as one. `start` is the column of its first index."""
    others = [column for column in range(rows.shape[1]) if column not in (start, start + 1)]
    rows = rows[np.lexsort((rows[:, start], *(rows[:, column] for column in others)))]
    same = (rows[1:, others] == rows[:-1, others]).all(axis=1) & (rows[1:, start] == rows[:-1, start + 1])
    first = np.flatnonzero(np.concatenate([[True], ~same]))
    found = rows[first]
    found[:, start + 1] = rows[np.append(first[1:], len(rows)) - 1, start + 1]
    return found
