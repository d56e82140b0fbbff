"""What of an order has to be where its work is done, and how its rows are shared out between the copies of a model and
put together again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlgraph.backends.distributed.admission import dealt
from rlgraph.backends.distributed.transport import Order
from rlgraph.backends.executor import Made
from rlgraph.backends.frame import Frame, Places
from rlgraph.ir.graph import Node
from rlgraph.ir.layout import share
from rlgraph.ir.types import Axis, Table, axes_of, axis_of
from rlgraph.ops.nodes import NODES, needed


@dataclass(frozen=True)
class Needs:
    names: tuple[str, ...]
    """Of the values."""
    axes: Sequence[Axis]
    """Of rows, outer ones first."""
    ids: bool
    """Who the rows are matters, too."""


def needs(node: Node, frame: Frame, axes: Mapping[str, Axis], *, notes: bool) -> Needs:
    """Of a node's work on the rows of a frame; `axes` are all axes of the program. notes: it is told which rows are
    trained on."""
    op, names = NODES[node.op], needed(node)
    about = {axis: axes[axis] for axis in (split_axis(node), node.attr("axis")) if axis}
    if op.chooses is not None and op.unit == "group":
        kind = frame.types[node.inputs[0]]
        assert isinstance(kind, Table)
        about[kind.axis.key] = kind.axis
    return Needs(names, row_axes(frame, names, about.values()), not op.scores and (notes or not op.trains))


def split_axis(node: Node) -> str | None:
    """The axis whose rows can be shared out."""
    return node.attr("micro") or (node.unit.axis if node.unit else None)


def row_axes(frame: Frame, names: Iterable[str], more: Iterable[Axis]) -> list[Axis]:
    """The axes of rows that some values need to be understood, outer ones first; `more` are needed in any case."""
    found: dict[str, Axis] = {}
    for own in [*(axis for name in names for axis in axes_of(frame.types[name])), *(axis.row for axis in more)]:
        for axis in own.path():
            if not axis.inner:
                found[axis.key] = axis
    return sorted(found.values(), key=lambda axis: axis.depth)


# Shares


@dataclass(frozen=True)
class Shares:
    """Which rows each copy of an order's group gets."""

    node: Node
    frame: Frame
    axis: str | None
    """Whose rows are shared out; None: one copy does the work."""
    frames: Mapping[int, Frame | None]
    """By copy; one without a frame takes part in an update to which it has nothing to add, and who is not named does
    nothing."""
    places: Mapping[int, Places]
    """Of each copy's rows among all rows."""

    def together(self, made: Mapping[int, Made]) -> Made:
        """What the copies that had rows made, as one."""
        if self.axis is None:
            return made[min(made)]
        metrics: dict[str, float] = {}
        parts: list[tuple[Frame, Places]] = []
        for copy, own in made.items():
            body = self.frames[copy]
            assert body is not None
            for rows in own.rows:
                body.add_rows(rows)
            body.values.update(own.values)
            metrics.update(own.metrics)
            parts.append((body, self.places[copy]))
        whole, outputs = self.frame.child(), self.node.outputs
        names = {value.name: value.name for value in outputs if axis_of(value.type) is not None}
        single = {value.name: parts[0][0].values[value.name] for value in outputs if value.name not in names}
        whole.assemble(parts, self.axis, names)
        rows_ = [found for key, found in whole.rows.items() if key not in self.frame.rows]
        rows_.sort(key=lambda found: found.axis.depth)
        return Made(single | {name: whole.values[name] for name in names}, rows_, metrics)


def shares(order: Order, axes: Mapping[str, Axis], living: Sequence[int] | None = None) -> Shares:
    """For each data-parallel copy of a group its part of the rows; `axes` are all axes of the program. living: the
    copies that there are; None: all."""
    node, frame = order.node, order.frame
    living = range(order.group.mesh.length("dp")) if living is None else living
    copies = len(living)
    axis, trains = split_axis(node), NODES[node.op].trains
    if trains and not node.regions:
        # The step itself: each has gradients of its own, and needs to know what all know.
        return Shares(node, frame, None, dict.fromkeys(living, frame), {})
    # All copies of a model take the same step, those without rows too.
    idle: dict[int, Frame | None] = dict.fromkeys(living) if trains else {}
    if copies == 1 or axis is None:
        # A loss that cannot be split is worked out by one copy.
        return Shares(node, frame, None, idle | {living[0]: frame}, {})
    # In a later block the axes that the node makes are there already, without rows of this block.
    wanted = {own.key for own in row_axes(frame, node.inputs, [axes[axis]])}
    frame = frame.child()
    frame.rows = {key: rows for key, rows in frame.rows.items() if key in wanted}
    dealt = zip(living, rows_of(order, frame.size(axis), copies), strict=True)
    parts = {copy: part(frame, axis, rows, node.inputs) for copy, rows in dealt}
    busy = {copy: body for copy, (body, _) in parts.items() if copy == living[0] or body.size(axis)}
    return Shares(node, frame, axis, idle | busy, {copy: parts[copy][1] for copy in busy})


def rows_of(order: Order, size: int, copies: int) -> list[np.ndarray]:
    """Of each copy the rows of an axis that it gets, ascending, int64: one behind the other and as even as can be;
    where it is known how long they are expected to be, as even by that."""
    if order.expected is not None:
        return [np.array(sorted(mine), dtype=np.int64) for mine in dealt(order.expected, copies)]
    return [np.arange(*share(size, copies, index)) for index in range(copies)]


def part(frame: Frame, axis: str, rows: np.ndarray, names: Sequence[str]) -> tuple[Frame, Places]:
    """Some rows of an axis, ascending, with all that lies in them, and of the outer axes only the rows that these lie
    in. Names without rows are as they are."""
    path = [above.key for above in frame.rows[axis].axis.path()]
    used: Places = {axis: rows}
    for outer in path[1:]:
        used[outer] = np.unique(frame.index(axis, outer)[rows])
    kept: Places = {}
    for key in reversed(path):
        # Outer cuts have moved the rows: what is left of them is ascending.
        here = np.searchsorted(kept[key], used[key]) if key in kept else used[key]
        frame, chosen = frame.slice(key, here, names)
        for other, places in chosen.items():
            kept[other] = kept[other][places] if other in kept else places
    return frame, kept
