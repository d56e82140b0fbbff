"""This module has the frame, which holds the values of one run of a graph, and the rows of the axes they lie on. A row
travels in it.

Bodies of loops run in frames of their own, made by slicing; what they export is put together again by the places of the
rows, so that no order of slices can mix rows up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlgraph.backends.engines.ragged import ragged_positions
from rlgraph.backends.mismatch import Mismatch
from rlgraph.backends.rows import RemoteEntries, Rows, TableData, concat_entries, pick_entries
from rlgraph.backends.step import Step
from rlgraph.ir.types import Axis, StateHandle, Table, Type, axes_of, axis_of

if TYPE_CHECKING:
    from rlgraph.backends.engines.records import Admission
    from rlgraph.backends.engines.roles import WeightRefresh
    from rlgraph.backends.samples import ShownSamples

Places = dict[str, np.ndarray]
"""For each axis, which of a frame's rows another frame has, int64."""


@dataclass
class NodeOutput:
    """The output of a node for one block."""

    values: dict[str, Any] = field(default_factory=dict)
    rows: list[Rows] = field(default_factory=list)
    """The rows of new axes, outer ones first; parents are counted within the block."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the node reported."""
    mismatches: tuple[Mismatch, ...] = ()
    """What the node has compared with the sampler's log-probabilities."""


Part = tuple[int, NodeOutput]
"""A node's output for some of its rows, with the number of this part."""


@dataclass
class Frame:
    """The values of one run of a graph, with their rows and the step that they belong to."""

    types: Mapping[str, Type]
    """The type of every value of the phase, by name."""
    step: Step
    values_are_remote: bool = False
    """Whether its values are in other processes."""
    version: int | None = None
    """The version of the weights that sample, where whoever handed the work out has chosen it."""
    other_versions: Mapping[str, int] = field(default_factory=dict)
    """That of other models that sample besides."""
    refresh: WeightRefresh | None = None
    """Where newer weights come from while they sample."""
    admission: Admission | None = None
    """How its rows come among those of other work, where another process samples for all."""
    soonest: int | None = None
    """How many rows of the data are wanted, those whose answers end first; None: all of them."""
    rows: dict[str, Rows] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    """What its own nodes reported."""
    shown: ShownSamples | None = None
    """What is shown of its step's rows, once it is over."""
    _indexes: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict, repr=False)

    def row_count(self, axis: str) -> int:
        """Return the number of rows of an axis."""
        return self.rows[axis].size

    def knows_row_count(self, axis: Axis) -> bool:
        """Whether rows of this axis are counted here: what lies inside of rows is not, where the rows are elsewhere."""
        return not (self.values_are_remote and axis.inner)

    def ancestor_rows(self, child: str, ancestor: str) -> np.ndarray:
        """Return for each row of `child` the row of `ancestor` that it lies in: int64 [rows of child], ascending."""
        if child == ancestor:
            return np.arange(self.row_count(child))
        if (child, ancestor) not in self._indexes:
            rows = self.rows[child]
            assert rows.parent is not None and rows.axis.parent is not None, f"{child} does not lie in {ancestor}"
            parent = rows.axis.parent.key
            outer = rows.parent if parent == ancestor else self.ancestor_rows(parent, ancestor)[rows.parent]
            self._indexes[child, ancestor] = outer
        return self._indexes[child, ancestor]

    def rows_before(self, child: str, ancestor: str) -> np.ndarray:
        """Return how many rows of `child` lie before each row of `ancestor`, and how many there are: int64 [rows of
        ancestor + 1], ascending."""
        key = (child, ancestor, "before")
        if key not in self._indexes:
            counts = np.bincount(self.ancestor_rows(child, ancestor), minlength=self.row_count(ancestor))
            self._indexes[key] = np.concatenate([[0], counts.cumsum()])
        return self._indexes[key]

    def entries_per_row(self, axis: Axis) -> np.ndarray | None:
        """Return how many entries of an inner axis each row has of the axis that it lies in, int64; None for an axis of
        rows."""
        if not axis.inner:
            return None
        assert axis.parent
        parents = self.ancestor_rows(axis.key, axis.parent.key)
        # They ascend: nothing is counted one by one.
        return np.diff(np.searchsorted(parents, np.arange(self.row_count(axis.parent.key) + 1)))

    def max_per_row(self, axis: str, numbers: Iterable[tuple[str, np.ndarray]]) -> np.ndarray:
        """Return for each row of an axis the greatest number of the rows that lie in it, float [rows], 0 at least.
        numbers: of named values, row by row."""
        largest = np.zeros(self.row_count(axis))
        for name, row_numbers in numbers:
            value_axis = axis_of(self.types[name])
            assert value_axis is not None
            np.maximum.at(largest, self.ancestor_rows(value_axis.row_axis.key, axis), row_numbers)
        return largest

    def row_pairs(self, axis: str, group: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the second row of each pair of different rows that lie in one row of `group`, int64: the
        first ones ascending."""
        above = self.ancestor_rows(axis, group)
        counts = np.bincount(above, minlength=self.row_count(group))
        starts = counts.cumsum() - counts
        first = np.repeat(np.arange(len(above)), counts[above])
        second = ragged_positions(starts[above], counts[above])
        return first[first != second], second[first != second]

    def add_rows(self, rows: Rows) -> None:
        """Add rows of a new axis, or more rows of an axis that it has (their parents counted from the first row of
        all)."""
        key, old = rows.axis.key, self.rows.get(rows.axis.key)
        if old is not None:
            parent = None if rows.parent is None or old.parent is None else np.concatenate([old.parent, rows.parent])
            ids = None if rows.ids is None or old.ids is None else concat_entries([old.ids, rows.ids])
            rows = Rows(rows.axis, old.size + rows.size, parent, ids)
        self.rows[key] = rows
        for pair in [pair for pair in self._indexes if key in pair]:
            del self._indexes[pair]

    def add_output(self, output: NodeOutput, first: Mapping[str, int]) -> None:
        """Add the output of a node for a block; `first` is the block's first row on each sliced axis."""
        before = {
            rows.axis.key: self.rows[rows.axis.key].size if rows.axis.key in self.rows else 0 for rows in output.rows
        }
        for rows in output.rows:
            above = rows.axis.parent
            offset = (before[above.key] if above.key in before else first.get(above.key, 0)) if above else 0
            parent = None if rows.parent is None else rows.parent + offset
            self.add_rows(Rows(rows.axis, rows.size, parent, rows.ids))
        for name, value in output.values.items():
            self.values[name] = concat_entries([self.values[name], value]) if name in self.values else value
        self.metrics.update(output.metrics)

    def forget_indexes(self) -> None:
        """Forget what was worked out of the rows' places, which have changed."""
        self._indexes.clear()

    def child_frame(self) -> Frame:
        """Return a frame that sees the same rows and values and can add its own."""
        return replace(self, rows=dict(self.rows), values=dict(self.values), metrics={}, _indexes=dict(self._indexes))

    def slice_rows(self, axis: str, places: np.ndarray, names: Iterable[str]) -> tuple[Frame, Places]:
        """Return a frame with the named values for some rows of an axis and all that lies in them; outer axes stay
        whole. Also returns which rows it has of each axis."""
        chosen: Places = {}
        rows_left: dict[str, Rows] = {}
        for key, rows in self._outer_first():
            if key == axis:
                chosen[key] = places
                rows_left[key] = rows.take(places, None if rows.parent is None else rows.parent[places])
            elif rows.axis.parent and rows.axis.parent.key in chosen:
                # Children lie one behind the other under their parent, whatever the parents' order becomes.
                above = chosen[rows.axis.parent.key]
                before = self.rows_before(key, rows.axis.parent.key)
                starts, counts = before[above], before[above + 1] - before[above]
                chosen[key] = ragged_positions(starts, counts)
                parent = np.repeat(np.arange(above.shape[0]), counts)
                rows_left[key] = rows.take(chosen[key], parent)
            else:
                rows_left[key] = rows
        sliced = replace(self, rows=rows_left, values={}, metrics={}, _indexes={})
        for name in names:
            sliced.values[name] = self._take(name, chosen)
        return sliced, chosen

    def _outer_first(self) -> list[tuple[str, Rows]]:
        return sorted(self.rows.items(), key=lambda item: item[1].axis.depth)

    @staticmethod
    def _parent(rows: Rows) -> np.ndarray:
        assert rows.parent is not None
        return rows.parent

    def _take(self, name: str, chosen: Places) -> Any:
        """Return the chosen entries of a value."""
        value, kind = self.values[name], self.types[name]
        axis = axis_of(kind)
        if axis is not None and isinstance(value, RemoteEntries):
            # What lies inside a row travels with it.
            return value.pick(chosen[axis.row_axis.key]) if axis.row_axis.key in chosen else value
        if axis is None or axis.key not in chosen:
            return value
        return value.take(kind, chosen) if isinstance(kind, Table) else pick_entries(value, chosen[axis.key])

    def append_frames(self, parts: Sequence[Frame], names: Sequence[str]) -> None:
        """Add the named values of frames that have their root rows one after the other (rounds of `collect`)."""
        fresh = {
            axis.key: axis
            for name in names
            for value_axis in axes_of(self.types[name])
            for axis in value_axis.path_to_root()
        }
        for key in sorted(
            filter(lambda key: self.knows_row_count(fresh[key]), fresh), key=lambda key: fresh[key].depth
        ):
            start = 0
            for part in parts:
                rows = part.rows[key]
                above = rows.axis.parent
                self.add_rows(
                    Rows(rows.axis, rows.size, None if rows.parent is None else rows.parent + start, rows.ids)
                )
                start += part.row_count(above.key) if above else 0
        for name in names:
            self.values[name] = concat_entries([part.values[name] for part in parts])

    def assemble_slices(
        self, parts: Sequence[tuple[Frame, Places]], axes: Collection[str], names: Mapping[str, str]
    ) -> None:
        """Put together what slices of axes made; `names` maps the slices' values to this frame's.

        A value that lies outside of them is the last slice's.
        """
        order: Places = {}
        for inner, outer in names.items():
            kind = self.types[inner]
            value_axis = axis_of(kind)
            if value_axis is None or not any(ancestor.key in axes for ancestor in value_axis.path_to_root()):
                self.values[outer] = parts[-1][0].values[inner]
                continue
            for entry_axis in axes_of(kind):
                self._order(parts, entry_axis if self.knows_row_count(entry_axis) else entry_axis.row_axis, order)
            value = concat_entries([part.values[inner] for part, _ in parts])
            if isinstance(value, RemoteEntries):
                self.values[outer] = value.pick(order[value_axis.row_axis.key])
            elif isinstance(value, TableData):
                assert isinstance(kind, Table)
                self.values[outer] = value.take(kind, order)
            else:
                self.values[outer] = pick_entries(value, order[value_axis.key])

    def _order(self, parts: Sequence[tuple[Frame, Places]], axis: Axis, order: Places) -> None:
        """Fill `order` for an axis: the joined row of the slices that each row of this frame is; rows of a new axis are
        added."""
        key = axis.key
        if key in order:
            return
        if all(key in places for _, places in parts):
            order[key] = np.concatenate([places[key] for _, places in parts]).argsort(kind="stable")
            return
        assert axis.parent
        self._order(parts, axis.parent, order)
        above = self._places(parts, axis.parent, order)
        parents = np.concatenate([up[self._parent(part.rows[key])] for up, (part, _) in zip(above, parts, strict=True)])
        order[key] = parents.argsort(kind="stable")
        ids = [part.rows[key].ids for part, _ in parts]
        row_ids = None if any(part_ids is None for part_ids in ids) else pick_entries(concat_entries(ids), order[key])
        if key not in self.rows:
            self.add_rows(Rows(axis, int(parents.shape[0]), parents[order[key]], row_ids))

    @staticmethod
    def _places(parts: Sequence[tuple[Frame, Places]], axis: Axis, order: Places) -> list[np.ndarray]:
        """Return where each slice's rows of an axis are in this frame."""
        if all(axis.key in places for _, places in parts):
            return [places[axis.key] for _, places in parts]
        # These rows were made in the slices: `order` says which of their joined rows each row of this frame is.
        sizes = [part.row_count(axis.key) for part, _ in parts]
        return np.split(order[axis.key].argsort(), np.cumsum(sizes)[:-1])


def is_step_state(kind: Type) -> bool:
    """Whether a value is a handle of something that lives across steps."""
    return isinstance(kind, StateHandle)
