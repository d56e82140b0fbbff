"""Regions: how one is run on a frame, and what a node makes whose region runs as often as its policy says. The same on
every backend.

A policy is a function: it makes frames, runs the region on each with `Loop.run`, and returns the frame in which the
exported values are, by the names that they have outside. What is carried from one run to the next is no business of
most policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from rlgraph.backends.executor import Executor, Made
from rlgraph.backends.finish_order import Endings
from rlgraph.backends.frame import Frame, Places
from rlgraph.backends.rows import Rows
from rlgraph.backends.step import Ended, Step
from rlgraph.ir.graph import Graph, Node
from rlgraph.ir.types import Axis, axes_of

Run = Callable[[Graph, Frame], None]
"""Runs every node of a graph; the values are in the frame afterwards."""


class Host(Protocol):
    """Who has loops run."""

    executor: Executor
    endings: Endings

    def choose(self, node: Node, frame: Frame) -> np.ndarray:
        """Which rows of a frame a node leaves that chooses rows, int64."""
        ...

    def note(self, text: str) -> None:
        """Tells who watches how far it is."""
        ...

    def ended(self, step: Step, data: str, begun: int, batches: Sequence[Ended]) -> None:
        """A `collect` has begun so many batches of new rows in a step, and taken notice of these that ended, one after
        the other."""
        ...


def run_region(run: Run, region: Graph, frame: Frame, carried: Sequence[Any]) -> list[Any]:
    """Runs a region once: what is carried goes in, its last versions come out; all else that it makes is in the
    frame."""
    frame.values.update(zip((value.name for value in region.inputs), carried, strict=True))
    run(region, frame)
    return [frame.values[name] for name in region.outputs[: len(carried)]]


def assembled(node: Node, frame: Frame, parts: Sequence[tuple[Frame, Places]], axis: str) -> Frame:
    """A frame with what a node exports, put together from the slices of an axis on which its region ran."""
    whole = frame.child()
    if node.exported:
        whole.assemble(parts, axis, {inner: value.name for inner, value in node.exported})
    return whole


def made_of(node: Node, frame: Frame, whole: Frame, carried: Sequence[Any], metrics: Mapping[str, float]) -> Made:
    """What a node with a region makes; `whole` has its exports."""
    values = dict(zip((value.name for value in node.carried_out), carried, strict=True))
    rows: dict[str, Rows] = {}
    for _, value in node.exported:
        values[value.name] = whole.values[value.name]
        for axis in _row_axes(value.type):
            if axis.key not in frame.rows and frame.counts(axis):
                rows[axis.key] = whole.rows[axis.key]
    return Made(values, sorted(rows.values(), key=lambda found: found.axis.depth), dict(metrics))


LOOKS = ("recent", "aged", "soonest")
"""By which a `collect` looks at rows that it has."""


def body_of(node: Node) -> Graph:
    """What a loop runs; of fresh rows nobody asks how old they are, nor which of them are taken."""
    return replace(node.region, nodes=tuple(each for each in node.region.nodes if each.op not in LOOKS))


@dataclass
class Loop:
    """A loop while it runs."""

    node: Node
    frame: Frame
    """Around it."""
    host: Host
    carried: list[Any]
    """As the last run left it."""
    metrics: dict[str, float] = field(default_factory=dict)

    def run(self, body: Frame) -> Frame:
        """Runs the region once more; its values are in the frame afterwards."""
        return self.run_all([body])[0]

    def run_all(self, bodies: Sequence[Frame]) -> Sequence[Frame]:
        """Runs the region once for each frame, side by side but for what is carried from one to the next."""
        self.carried = self.host.executor.run_all(body_of(self.node), bodies, self.carried)
        for body in bodies:
            self.metrics.update(body.metrics)
        return bodies


def always(node: Node, step: Step) -> bool:
    return True


@dataclass(frozen=True)
class Policy:
    """How a loop runs its region."""

    run: Callable[[Loop], Frame]
    when: Callable[[Node, Step], bool] = always
    """Whether it does in a step; where not, what is carried stays as it is."""


def run_loop(policy: Policy, node: Node, frame: Frame, host: Host) -> Made:
    """What a loop makes."""
    loop = Loop(node, frame, host, [frame.values[name] for name in node.carried_in])
    whole = policy.run(loop) if policy.when(node, frame.step) else frame
    return made_of(node, frame, whole, loop.carried, loop.metrics)


def _row_axes(kind: Any) -> list[Axis]:
    return [axis for own in axes_of(kind) for axis in own.path()]
