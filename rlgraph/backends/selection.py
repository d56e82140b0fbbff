"""This module computes operations that only select some rows, once it is known which: the frame suffices, wherever the
rows are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Axis, Table, axes_of


def select_rows(node: Node, frame: Frame, places: np.ndarray) -> NodeOutput:
    """Return the output of a node that only selects rows; `places`, int64: which it takes."""
    return _SELECT[node.op](node, frame, places)


def _kept(node: Node, frame: Frame, places: np.ndarray) -> NodeOutput:
    """Select rows, which then lie on new axes."""
    inside, _ = frame.slice_rows(node.attr("axis"), places, node.inputs[1:])
    made = NodeOutput()
    new_axes: dict[str, Axis] = {}
    for source, value in zip(node.inputs[1:], node.outputs, strict=True):
        made.values[value.name] = inside.values[source]
        for old, new in zip(axes_of(frame.types[source]), axes_of(value.type), strict=True):
            for before, after in zip(old.path_to_root(), new.path_to_root(), strict=True):
                new_axes[before.key] = after
    for key in inside.rows:
        if key in new_axes and new_axes[key].key != key:
            made.rows.append(replace(inside.rows[key], axis=new_axes[key]))
    made.rows.sort(key=lambda rows: rows.axis.depth)
    return made


def _picked(node: Node, frame: Frame, places: np.ndarray) -> NodeOutput:
    """Select rows of a table, which stay on their axes."""
    kind = frame.types[node.inputs[0]]
    assert isinstance(kind, Table)
    picked, _ = frame.slice_rows(kind.axis.key, places, [node.inputs[0]])
    return NodeOutput({node.name: picked.values[node.inputs[0]]})


_SELECT: Mapping[str, Callable[[Node, Frame, np.ndarray], NodeOutput]] = {
    "keep": _kept,
    "resample": _kept,
    "pick": _picked,
}
"""How each operation selects, by its name."""
