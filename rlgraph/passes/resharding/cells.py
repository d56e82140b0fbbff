"""Cuts global tensors wherever one of several layouts cuts them, into cells whose elements are all on the same
ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlgraph.ir.layout import Box, LocalTensor

Layout = Sequence[LocalTensor]


@dataclass(frozen=True, slots=True)
class TensorCells:
    """The cells of one tensor."""

    name: str
    cuts: tuple[NDArray[np.int64], ...]
    """The cuts along each dimension, from the first index to the one after the last."""
    held_by_layout: NDArray[np.bool_]
    """Whether each layout has each cell: [layouts, cells], with cells row by row."""

    def volumes(self) -> NDArray[np.int64]:
        """Return the number of elements of each cell."""
        volumes = np.ones(1, np.int64)
        for edge in self.cuts:
            volumes = np.multiply.outer(volumes, np.diff(edge)).reshape(-1)
        return volumes

    def merge_cells_by_label(self, labels: NDArray[np.int64]) -> list[tuple[int, Box]]:
        """Return labels and boxes; neighbours with the same label are one box. Cells labelled -1 are left out."""
        shape = tuple(len(edge) - 1 for edge in self.cuts)
        at = np.indices(shape).reshape(len(shape), math.prod(shape))
        rows = np.stack([labels, *(index for dim in at for index in (dim, dim + 1))], axis=1)[labels >= 0]
        for dim in reversed(range(len(shape) if len(rows) else 0)):
            rows = _merge(rows, 1 + 2 * dim)
        boxes = []
        for label, *corners in rows[np.lexsort(rows.T[::-1])].tolist():
            ranges = zip(self.cuts, corners[::2], corners[1::2], strict=True)
            boxes.append((label, tuple((int(edge[low]), int(edge[high])) for edge, low, high in ranges)))
        return boxes


def cut_into_cells(layouts: Sequence[Layout]) -> Iterator[TensorCells]:
    """Return the cells of every tensor, in the order in which the layouts name them."""
    boxes: dict[str, list[tuple[int, Box]]] = {}
    for index, layout in enumerate(layouts):
        for local in layout:
            for piece in local.pieces:
                if all(low < high for low, high in piece.box):
                    boxes.setdefault(piece.name, []).append((index, piece.box))
    for name, tensor_boxes in boxes.items():
        yield _cells(name, tensor_boxes, len(layouts))


def distinct_layouts(side: Mapping[int, Layout]) -> tuple[list[Layout], list[list[int]]]:
    """Return the different layouts of a side, and the places that have each of them.

    Layouts that are the same object are compared only once.
    """
    layouts: dict[tuple[LocalTensor, ...], list[int]] = {}
    places_by_id: dict[int, list[int]] = {}
    for place, layout in side.items():
        if id(layout) not in places_by_id:
            places_by_id[id(layout)] = layouts.setdefault(tuple(layout), [])
        places_by_id[id(layout)].append(place)
    return list(layouts), list(layouts.values())


def _cells(name: str, boxes: Sequence[tuple[int, Box]], layouts: int) -> TensorCells:
    dims = len(boxes[0][1])
    cuts = [sorted({end for _, box in boxes for end in box[dim]}) for dim in range(dims)]
    index = [{end: number for number, end in enumerate(cut)} for cut in cuts]
    held = np.zeros((layouts, *(len(cut) - 1 for cut in cuts)), np.bool_)
    for layout, box in boxes:
        inside = tuple(slice(at[low], at[high]) for at, (low, high) in zip(index, box, strict=True))
        held[layout][inside] = True
    return TensorCells(name, tuple(np.array(cut, np.int64) for cut in cuts), held.reshape(layouts, -1))


def _merge(rows: NDArray[np.int64], start: int) -> NDArray[np.int64]:
    """Merge boxes that touch along one dimension and agree in all else. `start` is the column of its first index."""
    others = [column for column in range(rows.shape[1]) if column not in (start, start + 1)]
    rows = rows[np.lexsort((rows[:, start], *(rows[:, column] for column in others)))]
    same = (rows[1:, others] == rows[:-1, others]).all(axis=1) & (rows[1:, start] == rows[:-1, start + 1])
    first = np.flatnonzero(np.concatenate([[True], ~same]))
    merged = rows[first]
    merged[:, start + 1] = rows[np.append(first[1:], len(rows)) - 1, start + 1]
    return merged
