"""This module shards the rows of a request over the replicas of a model, and puts their results together again. It also
says what of a frame has to be where the work is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlgraph.backends.distributed.row_balancing import balance_rows
from rlgraph.backends.distributed.transport import NodeRequest, RemoteRows
from rlgraph.backends.frame import Frame, NodeOutput, Places
from rlgraph.ir.graph import Node
from rlgraph.ir.layout import even_range
from rlgraph.ir.types import Axis, Table, axes_of, axis_of
from rlgraph.ops.nodes import NODES, inputs_read, tables_read


@dataclass(frozen=True)
class RequestNeeds:
    """What of a frame a node's work needs."""

    names: tuple[str, ...]
    """The names of the values."""
    axes: Sequence[Axis]
    """The axes of rows, outer ones first."""
    ids: bool
    """Whether the identities of the rows are needed, too."""


def request_needs(node: Node, frame: Frame, axes: Mapping[str, Axis], *, notes: bool) -> RequestNeeds:
    """Return what a node's work on the rows of a frame needs; `axes` are all axes of the program. notes: whether it is
    told which rows are trained on."""
    op, names = NODES[node.op], inputs_read(node)
    about = {axis: axes[axis] for axis in (sharded_axis(node), node.attr("axis")) if axis}
    if op.chooses is not None and op.unit == "group":
        kind = frame.types[node.inputs[0]]
        assert isinstance(kind, Table)
        about[kind.axis.key] = kind.axis
    return RequestNeeds(names, row_axes(frame, names, about.values()), not op.scores and (notes or not op.trains))


def sharded_axis(node: Node) -> str | None:
    """Return the axis whose rows can be sharded."""
    return node.attr("micro") or (node.unit.axis if node.unit else None)


def row_axes(frame: Frame, names: Iterable[str], more: Iterable[Axis]) -> list[Axis]:
    """Return the axes of rows that some values need to be understood, outer ones first; `more` are needed in any
    case."""
    by_key: dict[str, Axis] = {}
    for value_axis in [
        *(axis for name in names for axis in axes_of(frame.types[name])),
        *(axis.row_axis for axis in more),
    ]:
        for axis in value_axis.path_to_root():
            if not axis.inner:
                by_key[axis.key] = axis
    return sorted(by_key.values(), key=lambda axis: axis.depth)


# Shards


@dataclass(frozen=True)
class RowShards:
    """The rows that each replica of a request's group gets."""

    node: Node
    frame: Frame
    axis: str | None
    """The axis whose rows are sharded; None: one replica does the work."""
    frames: Mapping[int, Frame | None]
    """The frame of each replica; one with None takes part in an update to which it has nothing to add, and one that is
    not listed does nothing."""
    places: Mapping[int, Places]
    """The places of each replica's rows among all rows."""

    def merge_outputs(self, made: Mapping[int, NodeOutput]) -> NodeOutput:
        """Put together what the replicas that had rows made."""
        if self.axis is None:
            return made[min(made)]
        metrics: dict[str, float] = {}
        mismatches = tuple(one for replica_made in made.values() for one in replica_made.mismatches)
        parts: list[tuple[Frame, Places]] = []
        for replica, replica_made in made.items():
            body = self.frames[replica]
            assert body is not None
            for rows in replica_made.rows:
                body.add_rows(rows)
            body.values.update(replica_made.values)
            metrics.update(replica_made.metrics)
            parts.append((body, self.places[replica]))
        joined, outputs = self.frame.child_frame(), self.node.outputs
        names = {value.name: value.name for value in outputs if axis_of(value.type) is not None}
        single = {value.name: parts[0][0].values[value.name] for value in outputs if value.name not in names}
        joined.assemble_slices(parts, (self.axis,), names)
        new_rows = [rows for key, rows in joined.rows.items() if key not in self.frame.rows]
        new_rows.sort(key=lambda rows: rows.axis.depth)
        return NodeOutput(single | {name: joined.values[name] for name in names}, new_rows, metrics, mismatches)


def shard_rows(order: NodeRequest, axes: Mapping[str, Axis], living: Sequence[int] | None = None) -> RowShards:
    """Shard the rows of a request over the data-parallel replicas of a group; `axes` are all axes of the program.
    living: the replicas that there are; None: all."""
    node, frame = order.node, order.frame
    living = range(order.group.mesh.axis_size("dp")) if living is None else living
    copies = len(living)
    axis, trains = sharded_axis(node), NODES[node.op].trains
    if trains and not node.regions:
        # The optimizer step itself: each replica has gradients of its own, and needs the whole frame.
        return RowShards(node, frame, None, dict.fromkeys(living, frame), {})
    # All replicas of a model take the same step, those without rows too.
    idle: dict[int, Frame | None] = dict.fromkeys(living) if trains else {}
    if copies == 1 or axis is None:
        # A loss that cannot be split is computed by one replica.
        return RowShards(node, frame, None, idle | {living[0]: frame}, {})
    # In a later block the frame has the axes that the node makes already, without rows of this block.
    wanted = {row_axis.key for row_axis in row_axes(frame, node.inputs, [axes[axis]])}
    frame = frame.child_frame()
    frame.rows = {key: rows for key, rows in frame.rows.items() if key in wanted}
    sharded = zip(living, rows_by_replica(order, frame.row_count(axis), copies, tokens_read(order, axis)), strict=True)
    parts = {replica: slice_rows(frame, axis, rows, node.inputs) for replica, rows in sharded}
    busy = {replica: body for replica, (body, _) in parts.items() if replica == living[0] or body.row_count(axis)}
    return RowShards(node, frame, axis, idle | busy, {replica: parts[replica][1] for replica in busy})


MOST_UNEVEN = 0.02
"""By which share the replica with most tokens may have more than if they were dealt out evenly, so that rows stay one
behind the other: most are then where they were sampled."""


def rows_by_replica(order: NodeRequest, size: int, copies: int, tokens: np.ndarray | None = None) -> list[np.ndarray]:
    """Return the rows of an axis that each replica gets, ascending, int64: one behind the other and as even as can be.
    Where it is known how long they are expected to be, or how many tokens they have, as even by that."""
    lengths = order.expected_lengths
    if lengths is None:
        following = [np.arange(*even_range(size, copies, index)) for index in range(copies)]
        if tokens is None or max(tokens[rows].sum() for rows in following) * copies <= tokens.sum() * (1 + MOST_UNEVEN):
            return following
        lengths = tokens.tolist()
    return [np.array(sorted(shard), dtype=np.int64) for shard in balance_rows(lengths, copies)]


def tokens_read(order: NodeRequest, axis: str) -> np.ndarray | None:
    """Return how many tokens a model reads in each row of an axis, float64, as a node asks it to, or as it is trained;
    None where it reads none, or where that is not known."""
    frame, tables = order.frame, tables_read(order.node)
    tokens = np.zeros(frame.row_count(axis))
    for table in tables:
        rows = frame.values.get(table)
        counts = rows.token_counts if isinstance(rows, RemoteRows) else None
        own = axis_of(frame.types[table]) if counts is not None else None
        if counts is None or own is None or axis not in (outer.key for outer in own.path_to_root()):
            return None
        np.add.at(tokens, frame.ancestor_rows(own.key, axis), counts)
    return tokens if tables else None


def slice_rows(frame: Frame, axis: str, rows: np.ndarray, names: Sequence[str]) -> tuple[Frame, Places]:
    """Return a frame with some rows of an axis, ascending, with all that lies in them, and of the outer axes only the
    rows that these lie in. Values without rows stay as they are. Also returns the places of its rows."""
    path = [ancestor.key for ancestor in frame.rows[axis].axis.path_to_root()]
    used: Places = {axis: rows}
    for outer in path[1:]:
        used[outer] = np.unique(frame.ancestor_rows(axis, outer)[rows])
    rows_left: Places = {}
    for key in reversed(path):
        # Outer cuts have changed the places of rows; those that are left are ascending.
        remaining = np.searchsorted(rows_left[key], used[key]) if key in rows_left else used[key]
        frame, chosen = frame.slice_rows(key, remaining, names)
        for sliced_key, places in chosen.items():
            rows_left[sliced_key] = rows_left[sliced_key][places] if sliced_key in rows_left else places
    return frame, rows_left
