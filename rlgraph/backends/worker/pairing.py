"""Brings rows together: pairs of them, and what the row before each has."""

from __future__ import annotations

import numpy as np
import torch

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import Rows, pick_entries
from rlgraph.backends.worker.session import Session
from rlgraph.ir.graph import Node
from rlgraph.ir.types import axis_of


def run_pairs(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Pair each row with all others of its group, in their order."""
    axis = axis_of(node.outputs[0].type)
    assert axis is not None and axis.parent is not None
    first, second = frame.row_pairs(axis.parent.key, node.attr("axis"))
    known = frame.rows[axis.parent.key].known_ids
    places = zip(first.tolist(), second.tolist(), strict=True)
    ids = tuple((*known[one], known[other][-1]) for one, other in places) if known or not len(first) else None
    rows = Rows(axis, len(first), first, ids)
    return NodeOutput({node.name: torch.from_numpy(second - first)}, [rows])


def run_roll(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return for each row what the row before it has, and for the first one what the last one has."""
    value = frame.values[node.inputs[0]]
    return NodeOutput({node.outputs[0].name: pick_entries(value, np.roll(np.arange(len(value)), 1))})
