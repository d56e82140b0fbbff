"""Rows that go on as they end: those that are ready first change places with those before them. And rows that begin
in another order than that of the data.

Nodes that work by row do not ask in what order rows lie. A node that does, since it works on the whole batch, is given
them in the order of the data, and what it makes of them is put where they lie. At the end they all lie in the order of
the data again, so that no number depends on which rows were ready first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rlgraph.backends.frame import Frame
from rlgraph.ir.types import Axis, axis_of

if TYPE_CHECKING:
    from rlgraph.backends.executor import Made


class Arrival:
    """In what order the rows of a frame lie, by those of its outer axes."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.order: dict[str, np.ndarray] = {}
        """For each axis whose rows have changed places, the place in the data of each row, int64."""

    def forward(self, axis: str, first: int, start: int, stop: int, names: Iterable[str]) -> None:
        """Rows of an axis from `start` to `stop`, with all that lies in them, go before those from `first` on; of the
        named values, which are whole. Others have only rows before `first`."""
        places = np.arange(self.frame.size(axis))
        places[first:stop] = np.r_[start:stop, first:start]
        self.lay(axis, places, names)

    def lay(self, axis: str, places: np.ndarray, names: Iterable[str]) -> None:
        """Rows of an axis, with all that lies in them, lie in another order: `places`, int64, are those where they lie
        now. Of the named values, which are whole."""
        self._lay(axis, places, names)
        self.order[axis] = self.order.get(axis, np.arange(len(places)))[places]

    def back(self, names: Iterable[str]) -> None:
        """All rows of the named values lie in the order of the data again."""
        wanted = list(names)
        for axis, order in self.order.items():
            self._lay(axis, order.argsort(), wanted)
        self.order.clear()

    def _lay(self, axis: str, places: np.ndarray, names: Iterable[str]) -> None:
        frame, inside = self.frame, self.frame.rows[axis].axis
        moved, _ = frame.slice(axis, places, [name for name in names if _within(frame, name, inside)])
        frame.rows.update(moved.rows)
        frame.values.update(moved.values)
        frame.forget()

    def sorted(self, names: Iterable[str]) -> Frame:
        """A frame with the named values in the order of the data."""
        found, wanted = self.frame, list(names)
        for axis, order in self.order.items():
            found, _ = found.slice(axis, order.argsort(), wanted)
        return found

    def laid(self, made: Made) -> Made:
        """What was made of rows in the order of the data, as they lie."""
        for axis, order in self.order.items():
            whole, inside = self.sorted(()), self.frame.rows[axis].axis
            for rows in made.rows:
                whole.add_rows(rows)
            whole.values.update(made.values)
            moved, _ = whole.slice(axis, order, [name for name in made.values if _within(whole, name, inside)])
            own = [moved.rows[rows.axis.key] if rows.axis.within(inside) else rows for rows in made.rows]
            made = replace(made, values={**made.values, **moved.values}, rows=own)
        return made


def _within(frame: Frame, name: str, axis: Axis) -> bool:
    own = axis_of(frame.types[name])
    return own is not None and own.within(axis)
