"""What has to be where a node's work is done: the values that it reads, and the rows that it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlgraph.backends.frame import Frame
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Axis, Table, axes_of
from rlgraph.ops.nodes import NODES


@dataclass(frozen=True)
class Needs:
    names: tuple[str, ...]
    """Of the values."""
    axes: Sequence[Axis]
    """Of rows, outer ones first."""
    ids: bool
    """Who the rows are matters, too."""


def needs(node: Node, frame: Frame, axes: Mapping[str, Axis]) -> Needs:
    """Of a node's work on the rows of a frame; `axes` are all axes of the program."""
    op, names = NODES[node.op], needed(node)
    about = {axis: axes[axis] for axis in (split_axis(node), node.attr("axis")) if axis}
    if op.chooses is not None and op.unit == "group":
        kind = frame.types[node.inputs[0]]
        assert isinstance(kind, Table)
        about[kind.axis.key] = kind.axis
    return Needs(names, row_axes(frame, names, about.values()), not (op.trains or op.scores))


def needed(node: Node) -> tuple[str, ...]:
    """The values that a node's work reads: rows that are only chosen from stay where they are."""
    chooses = NODES[node.op].chooses
    return node.inputs if chooses is None else (node.inputs[chooses],)


def split_axis(node: Node) -> str | None:
    """The axis whose rows can be shared out."""
    if NODES[node.op].trains:
        found: str | None = node.attr("micro")
        return found
    return node.unit.axis if node.unit else None


def row_axes(frame: Frame, names: Iterable[str], more: Iterable[Axis]) -> list[Axis]:
    """The axes of rows that some values need to be understood, outer ones first; `more` are needed in any case."""
    found: dict[str, Axis] = {}
    for own in [*(axis for name in names for axis in axes_of(frame.types[name])), *(axis.row for axis in more)]:
        for axis in own.path():
            if not axis.inner:
                found[axis.key] = axis
    return sorted(found.values(), key=lambda axis: axis.depth)
