"""What operations make that only select some rows, once it is known which: wherever the rows are, the frame says it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from rlgraph.backends.executor import Made
from rlgraph.backends.frame import Frame
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Axis, Table, axes_of


def kept(node: Node, frame: Frame, places: Tensor) -> Made:
    """What `keep` makes, once it is known which rows it keeps."""
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


def chosen(node: Node, frame: Frame, places: Tensor) -> Made:
    """What `pick` makes, once it is known which rows it picks."""
    kind = frame.types[node.inputs[0]]
    assert isinstance(kind, Table)
    picked, _ = frame.slice(kind.axis.key, places, [node.inputs[0]])
    return Made({node.name: picked.values[node.inputs[0]]})
