"""What operations make that only select some rows, once it is known which: wherever the rows are, the frame says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from rlgraph.backends.executor import Made
from rlgraph.backends.frame import Frame
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Axis, Table, axes_of


def selected(node: Node, frame: Frame, places: np.ndarray) -> Made:
    """What a node makes that only selects rows; `places`, int64: which it takes."""
    return _SELECT[node.op](node, frame, places)


def _kept(node: Node, frame: Frame, places: np.ndarray) -> Made:
    inside, _ = frame.slice(node.attr("axis"), places, node.inputs[1:])
    made = Made()
    names: dict[str, Axis] = {}
    for source, value in zip(node.inputs[1:], node.outputs, strict=True):
        made.values[value.name] = inside.values[source]
        for old, new in zip(axes_of(frame.types[source]), axes_of(value.type), strict=True):
            for before, after in zip(old.path(), new.path(), strict=True):
                names[before.key] = after
    for key in inside.rows:
        if key in names and names[key].key != key:
            made.rows.append(replace(inside.rows[key], axis=names[key]))
    made.rows.sort(key=lambda rows: rows.axis.depth)
    return made


def _picked(node: Node, frame: Frame, places: np.ndarray) -> Made:
    kind = frame.types[node.inputs[0]]
    assert isinstance(kind, Table)
    picked, _ = frame.slice(kind.axis.key, places, [node.inputs[0]])
    return Made({node.name: picked.values[node.inputs[0]]})


_SELECT: Mapping[str, Callable[[Node, Frame, np.ndarray], Made]] = {"keep": _kept, "pick": _picked}
"""By operation."""
