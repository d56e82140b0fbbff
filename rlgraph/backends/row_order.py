"""This module keeps track of the order in which the rows of a frame lie. Rows move on as they finish: those that are
ready first change places with those before them. Rows may also begin in another order than that of the data.

Nodes that work by row do not depend on that order. A node that works on the whole batch does: it is given the rows in
the order of the data, and its results are put where the rows lie. At the end all rows lie in the order of the data
again, so that no number depends on which rows were ready first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.ir.types import Axis, axis_of


class RowOrder:
    """The order in which the rows of a frame lie, by its outer axes."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.order: dict[str, np.ndarray] = {}
        """For each axis whose rows have changed places: the place in the data of each row, int64."""

    def move_forward(self, axis: str, first: int, start: int, stop: int, names: Iterable[str]) -> None:
        """Move the rows `start` to `stop` of an axis, with all that lies in them, before those from `first` on. names:
        the values that are complete; others have rows before `first` only."""
        places = np.arange(self.frame.row_count(axis))
        places[first:stop] = np.r_[start:stop, first:start]
        self.reorder(axis, places, names)

    def reorder(self, axis: str, places: np.ndarray, names: Iterable[str]) -> None:
        """Reorder the rows of an axis, with all that lies in them: `places`, int64, says where each lies now. names:
        the values that are complete."""
        self._lay(axis, places, names)
        self.order[axis] = self.order.get(axis, np.arange(len(places)))[places]

    def restore_order(self, names: Iterable[str]) -> None:
        """Put all rows of the named values back into the order of the data."""
        wanted = list(names)
        for axis, order in self.order.items():
            self._lay(axis, order.argsort(), wanted)
        self.order.clear()

    def _lay(self, axis: str, places: np.ndarray, names: Iterable[str]) -> None:
        frame, inside = self.frame, self.frame.rows[axis].axis
        moved, _ = frame.slice_rows(axis, places, [name for name in names if _within(frame, name, inside)])
        frame.rows.update(moved.rows)
        frame.values.update(moved.values)
        frame.forget_indexes()

    def frame_in_data_order(self, names: Iterable[str]) -> Frame:
        """Return a frame with the named values in the order of the data."""
        ordered, wanted = self.frame, list(names)
        for axis, order in self.order.items():
            ordered, _ = ordered.slice_rows(axis, order.argsort(), wanted)
        return ordered

    def reorder_output(self, made: NodeOutput) -> NodeOutput:
        """Reorder what a node made of rows in the order of the data to the order in which they lie."""
        for axis, order in self.order.items():
            ordered, inside = self.frame_in_data_order(()), self.frame.rows[axis].axis
            for rows in made.rows:
                ordered.add_rows(rows)
            ordered.values.update(made.values)
            moved, _ = ordered.slice_rows(axis, order, [name for name in made.values if _within(ordered, name, inside)])
            new_rows = [moved.rows[rows.axis.key] if rows.axis.is_within(inside) else rows for rows in made.rows]
            made = replace(made, values={**made.values, **moved.values}, rows=new_rows)
        return made


def _within(frame: Frame, name: str, axis: Axis) -> bool:
    """Whether the rows of a value lie in the rows of an axis."""
    value_axis = axis_of(frame.types[name])
    return value_axis is not None and value_axis.is_within(axis)
