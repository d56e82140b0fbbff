"""This module has the loops, which decide how often the region of a node runs, and on which rows. A loop is a policy
(`rlgraph.backends.regions`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlgraph.backends.collects import run_collect
from rlgraph.backends.frame import Frame, Places
from rlgraph.backends.regions import Loop, LoopPolicy, assemble_exports, holds
from rlgraph.ir.types import is_model
from rlgraph.ops.node_op import LoopStepRule
from rlgraph.ops.nodes import NODES, sliced_axes


def run_once(loop: Loop) -> Frame:
    """Run the region once, on the rows of the frame; it exports nothing."""
    loop.run_body(loop.frame.child_frame())
    return loop.frame


def run_minibatches(loop: Loop) -> Frame:
    """Run the region for each slice of an axis, and of those beside it, in every epoch. Exports are the rows
    of the last epoch."""
    node, frame = loop.node, loop.frame
    axes = sliced_axes(node)
    count = max(1, min(node.attr("parts"), frame.row_count(axes[0])))
    parts: list[tuple[Frame, Places]] = []
    for epoch in range(node.attr("epochs")):
        slices = [_slices(loop, axis, count, epoch) for axis in axes]
        parts = []
        for number in range(count):
            body, places = frame, Places()
            for axis, of_axis in zip(axes, slices, strict=True):
                body, chosen = body.slice_rows(axis, of_axis[number], node.captured_values)
                places |= chosen
            parts.append((loop.run_body(body), places))
            if holds("stop", loop, body):
                # Where a loop may end early nothing of it is used after it but what is carried.
                return frame
    return assemble_exports(node, frame, parts, *axes)


def _slices(loop: Loop, axis: str, count: int, epoch: int) -> list[np.ndarray]:
    """Return the rows of each slice of an axis, int64, in the order of the batch."""
    node, order = loop.node, list(range(loop.frame.row_count(axis)))
    if node.attr("shuffle"):
        key = node.attr("key") if axis == node.attr("axis") else f"{node.attr('key')}.{axis}"
        loop.frame.step.shuffling_rng(key, epoch).shuffle(order)
    return [np.sort(chosen) for chosen in np.array_split(np.array(order, dtype=np.int64), count)]


def run_if(loop: Loop) -> Frame:
    """Run the region once where its condition holds; it exports nothing. Where not, all that is carried stays."""
    if holds("when", loop, loop.frame):
        return run_once(loop)
    for value in loop.node.carried_outputs:
        if is_model(value.type):
            loop.host.note_unchanged(value.type.name, loop.frame.step)
    return loop.frame


def _on(steps: LoopStepRule) -> LoopPolicy:
    """Return the policy of a loop that runs on some steps."""
    return LoopPolicy(run_once, lambda node, step: steps.when(step.number, node.attr("steps")))


LOOPS: Mapping[str, LoopPolicy] = {
    "minibatch": LoopPolicy(run_minibatches),
    "collect": LoopPolicy(run_collect),
    "if": LoopPolicy(run_if),
    **{name: _on(op.on_steps) for name, op in NODES.items() if op.on_steps},
}
"""The policy of each loop, by its operation."""
