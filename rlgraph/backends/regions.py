"""This module runs regions: one run on a frame, and a node whose region runs as often as its policy says. It is the
same on every backend.

A policy is a function: it makes frames, runs the region on each with `Loop.run_body`, and returns the frame in which
the exported values are, by the names that they have outside. Most policies do not deal with what is carried from one
run to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from rlgraph.backends.executor import Executor
from rlgraph.backends.finish_order import FinishOrder
from rlgraph.backends.frame import Frame, NodeOutput, Places
from rlgraph.backends.rows import Rows
from rlgraph.backends.step import Ended, Step
from rlgraph.ir.graph import Graph, Node
from rlgraph.ir.types import Axis, axes_of

Run = Callable[[Graph, Frame], None]
"""A function that runs every node of a graph; the values are in the frame afterwards."""


class LoopHost(Protocol):
    """What a loop needs of the backend that runs it."""

    executor: Executor
    finish_order: FinishOrder

    def choose_rows(self, node: Node, frame: Frame) -> np.ndarray:
        """Return which rows of a frame a node that chooses rows leaves, int64."""
        ...

    def note_unchanged(self, model: str, step: Step) -> None:
        """Note that a model stays as it is where a step might have changed it."""
        ...

    def report_progress(self, text: str) -> None:
        """Tell observers of the run how far it is."""
        ...

    def report_ended_batches(self, step: Step, data: str, begun: int, batches: Sequence[Ended]) -> None:
        """Report that a `collect` has begun so many batches of new rows in a step, and has seen these batches end, one
        after the other."""
        ...


def run_region(run: Run, region: Graph, frame: Frame, carried: Sequence[Any]) -> list[Any]:
    """Run a region once. `carried` goes in, and its last versions are returned; all else that it makes is in the
    frame."""
    frame.values.update(zip((value.name for value in region.inputs), carried, strict=True))
    run(region, frame)
    return [frame.values[name] for name in region.outputs[: len(carried)]]


def assemble_exports(node: Node, frame: Frame, parts: Sequence[tuple[Frame, Places]], *axes: str) -> Frame:
    """Return a frame with what a node exports, put together from the slices of axes on which its region ran."""
    joined = frame.child_frame()
    if node.exported_values:
        joined.assemble_slices(parts, axes, {inner: value.name for inner, value in node.exported_values})
    return joined


def region_output(
    node: Node, frame: Frame, whole: Frame, carried: Sequence[Any], metrics: Mapping[str, float]
) -> NodeOutput:
    """Return the output of a node with a region; `whole` has its exports."""
    values = dict(zip((value.name for value in node.carried_outputs), carried, strict=True))
    rows: dict[str, Rows] = {}
    for _, value in node.exported_values:
        values[value.name] = whole.values[value.name]
        for axis in _row_axes(value.type):
            if axis.key not in frame.rows and frame.knows_row_count(axis):
                rows[axis.key] = whole.rows[axis.key]
    return NodeOutput(values, sorted(rows.values(), key=lambda axis_rows: axis_rows.axis.depth), dict(metrics))


LOOKS = ("recent", "aged", "soonest", "when", "stop")
"""The operations by which a loop looks at what it has: a `collect` at its rows, others at a condition."""


def loop_body(node: Node) -> Graph:
    """Return what a loop runs: its region without the nodes that ask how old rows are, or which of them are taken,
    since neither is asked of fresh rows, and without conditions."""
    return replace(node.region, nodes=tuple(body_node for body_node in node.region.nodes if body_node.op not in LOOKS))


@dataclass
class Loop:
    """A loop while it runs."""

    node: Node
    frame: Frame
    """The frame around it."""
    host: LoopHost
    carried: list[Any]
    """The carried values as the last run left them."""
    metrics: dict[str, float] = field(default_factory=dict)

    def run_body(self, body: Frame) -> Frame:
        """Run the region once more; its values are in the frame afterwards."""
        return self.run_bodies([body])[0]

    def run_bodies(self, bodies: Sequence[Frame]) -> Sequence[Frame]:
        """Run the region once for each frame, side by side but for what is carried from one to the next."""
        self.carried = self.host.executor.run_frames(loop_body(self.node), bodies, self.carried)
        for body in bodies:
            self.metrics.update(body.metrics)
        return bodies


def holds(op: str, loop: Loop, frame: Frame) -> bool | None:
    """Return whether the condition of a loop holds by the values of a frame; None where the loop has none. op: `when`
    or `stop`."""
    asked = next((node for node in loop.node.region.nodes if node.op == op), None)
    return None if asked is None else bool(len(loop.host.choose_rows(asked, frame)))


def runs_in_every_step(node: Node, step: Step) -> bool:
    """Return True: the loop runs in every step."""
    return True


@dataclass(frozen=True)
class LoopPolicy:
    """How a loop runs its region."""

    run: Callable[[Loop], Frame]
    runs_in_step: Callable[[Node, Step], bool] = runs_in_every_step
    """Whether it runs in a step; where not, what is carried stays as it is."""


def run_loop(policy: LoopPolicy, node: Node, frame: Frame, host: LoopHost) -> NodeOutput:
    """Run a loop and return its output."""
    loop = Loop(node, frame, host, [frame.values[name] for name in node.carried_input_names])
    exports = policy.run(loop) if policy.runs_in_step(node, frame.step) else frame
    return region_output(node, frame, exports, loop.carried, loop.metrics)


def _row_axes(kind: Any) -> list[Axis]:
    return [axis for value_axis in axes_of(kind) for axis in value_axis.path_to_root()]
