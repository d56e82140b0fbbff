"""Regions: how often one runs, on which rows, and what comes out. The same on every backend.

A loop is a node whose region runs as often as its policy says. A policy is a function: it makes frames, runs the region
on each with `Loop.run`, and returns the frame in which the exported values are, by the names that they have outside.
What is carried from one run to the next is no business of most policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlgraph.backends.executor import Made
from rlgraph.backends.frame import Frame, Places
from rlgraph.backends.rows import Rows
from rlgraph.backends.step import Step
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Graph, Node
from rlgraph.ir.types import Axis, Table, axes_of
from rlgraph.ops.nodes import NODES, OnSteps, at_once, attr

Run = Callable[[Graph, Frame], None]
"""Runs every node of a graph; the values are in the frame afterwards."""

RunAll = Callable[[Graph, Sequence[Frame], Sequence[Any]], list[Any]]
"""Runs a graph on each frame, given what is carried into the first one: what the last one leaves."""

Choose = Callable[[Node, Frame], np.ndarray]
"""Which rows of a frame a node leaves that chooses rows, int64."""


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


# Loops


@dataclass
class Loop:
    """A loop while it runs."""

    node: Node
    frame: Frame
    """Around it."""
    execute: RunAll
    note: Callable[[str], None]
    """Tells who watches how far it is."""
    choose: Choose
    carried: list[Any]
    """As the last run left it."""
    metrics: dict[str, float] = field(default_factory=dict)

    def run(self, body: Frame) -> Frame:
        """Runs the region once more; its values are in the frame afterwards."""
        return self.run_all([body])[0]

    def run_all(self, bodies: Sequence[Frame]) -> Sequence[Frame]:
        """Runs the region once for each frame, side by side but for what is carried from one to the next."""
        self.carried = self.execute(_body(self.node), bodies, self.carried)
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


def run_loop(
    policy: Policy, node: Node, frame: Frame, execute: RunAll, note: Callable[[str], None], choose: Choose
) -> Made:
    """What a loop makes."""
    loop = Loop(node, frame, execute, note, choose, [frame.values[name] for name in node.carried_in])
    whole = policy.run(loop) if policy.when(node, frame.step) else frame
    return made_of(node, frame, whole, loop.carried, loop.metrics)


def once(loop: Loop) -> Frame:
    """On the rows that there are; nothing is exported."""
    loop.run(loop.frame.child())
    return loop.frame


def minibatch(loop: Loop) -> Frame:
    """For each slice of an axis, in every epoch. Exports are the rows of the last epoch."""
    node, frame = loop.node, loop.frame
    axis = node.attr("axis")
    size = frame.size(axis)
    parts: list[tuple[Frame, Places]] = []
    for epoch in range(node.attr("epochs")):
        order = list(range(size))
        if node.attr("shuffle"):
            frame.step.shuffler(node.attr("key"), epoch).shuffle(order)
        parts = []
        for chosen in np.array_split(np.array(order, dtype=np.int64), max(1, min(node.attr("parts"), size))):
            body, places = frame.slice(axis, np.sort(chosen), node.captured)
            parts.append((loop.run(body), places))
    return assembled(node, frame, parts, axis)


def collect(loop: Loop) -> Frame:
    """On fresh batches until enough rows are kept, the first of them in the order of the data. The surplus begins the
    next step's, or is asked again there, or is dropped; so are rows of it that are too old."""
    node, frame, rest, late = loop.node, loop.frame, attr(loop.node, "rest"), attr(loop.node, "late")
    axis, wanted = node.attr("axis"), node.attr("rows")
    place = next(at for at, value in enumerate(node.region.inputs) if _surplus(value.name))
    name, names = node.region.inputs[place].name.rsplit(".surplus", 1)[0], _kept_names(node)
    before, loop.carried[place] = loop.carried[place], None
    again = before if rest == "later" else None
    if late != "wait":
        before, old = (None, None) if before is None else _recent(loop, before)
        loop.metrics[f"{name}.late"] = 0.0 if old is None else float(old.size(axis))
        again = old if late == "again" and old is not None and old.size(axis) else None
    parts: list[Frame] = [before] if before is not None and rest == "carry" else []
    kept, rounds = sum(part.size(axis) for part in parts), 0
    while kept < wanted or again is not None:
        allowed, missing = node.attr("rounds") - rounds, wanted - kept
        if not allowed:
            message = f"{kept} of {wanted} rows were kept after {rounds} batches"
            hint = "keep more of them, raise `rounds`, or lower the number of rows"
            raise RunError(Diagnostic("E0737", message, node.span, hint))
        begun = [] if again is None else [_asked_again(loop, again)]
        if again is None or attr(node, "ahead") is not None:
            missing -= 0 if again is None else again.size(axis)
            begun += [frame.child() for _ in range(min(allowed - len(begun), at_once(node, max(0, missing))))]
        bodies = loop.run_all(begun)
        # What is asked again was read before all others.
        parts = [*parts, *bodies] if again is None else [bodies[0], *parts, *bodies[1:]]
        kept, rounds, again = kept + sum(body.size(axis) for body in bodies), rounds + len(bodies), None
        loop.note(f"{kept} of {wanted} rows kept")
    whole = frame.child()
    whole.append(parts, names)
    top = list(whole.rows[axis].axis.path())[-1].key
    last = int(whole.index(axis, top)[wanted - 1]) + 1
    now, _ = whole.slice(top, np.arange(last), names)
    # What was carried over once is the first of them.
    first = max(last, before.size(top)) if before is not None and attr(node, "once") else last
    kept_for_later = names if rest == "carry" else [_data(node)]
    later, _ = whole.slice(top, np.arange(first, whole.size(top)), kept_for_later)
    loop.carried[place] = later if later.size(top) and rest != "drop" else None
    left = whole.size(axis) - now.size(axis)
    if rest == "later":
        loop.metrics[f"{name}.later"] = float(left)
    elif rest == "drop" or attr(node, "once"):
        loop.metrics[f"{name}.dropped"] = float(left if rest == "drop" else left - later.size(axis))
    now.values.update({value.name: now.values[inner] for inner, value in node.exported})
    return now


def _body(node: Node) -> Graph:
    """What a loop runs; fresh rows need not be asked whether they are too old."""
    return replace(node.region, nodes=tuple(each for each in node.region.nodes if each.op != "recent"))


def _kept_names(node: Node) -> list[str]:
    """The values of its region that a `collect` keeps, and those by which it tells whether rows are too old."""
    columns = [table for column, _ in _ages(node) for table in column.inputs]
    return list(dict.fromkeys([*(inner for inner, _ in node.exported), *columns]))


def _ages(node: Node) -> list[tuple[Node, Node]]:
    """What tells whether rows that a `collect` carries over are too old: a column of theirs, and who chooses by it."""
    makers = {value.name: each for each in node.region.nodes for value in each.outputs}
    return [(makers[each.inputs[0]], each) for each in node.region.nodes if each.op == "recent"]


def _recent(loop: Loop, waiting: Frame) -> tuple[Frame, Frame]:
    """Of rows that were carried over those that are not too old, and of the others their rows of the data."""
    node, names = loop.node, _kept_names(loop.node)
    axis, data = node.attr("axis"), _data(node)
    late = []
    for column, choosing in _ages(node):
        found = loop.frame.child()
        found.append([waiting], names)
        loop.execute(Graph((), (column,), ()), [found], ())
        recent = loop.choose(choosing, found)
        waiting, _ = found.slice(axis, recent, names)
        late.append(found.slice(axis, np.setdiff1d(np.arange(found.size(axis)), recent), [data])[0])
    old = loop.frame.child()
    old.append(late, [data])
    return waiting, old


def _data(node: Node) -> str:
    """The rows of the data that a `collect` keeps, by the name of their table in its region."""
    tables = ((inner, value.type) for inner, value in node.exported if isinstance(value.type, Table))
    return next(inner for inner, kind in tables if kind.axis.key == node.attr("axis") and kind.token is None)


def _asked_again(loop: Loop, rows: Frame) -> Frame:
    """A batch of rows of the data that were read before, instead of the next ones."""
    node, body = loop.node, loop.frame.child()
    read = next(each for each in node.region.nodes if NODES[each.op].place("cursor") is not None)
    table, cursor = read.outputs
    assert isinstance(table.type, Table)
    body.add_rows(replace(rows.rows[node.attr("axis")], axis=table.type.axis))
    body.values[table.name] = rows.values[_data(node)]
    carried = [value.name for value in node.region.inputs]
    body.values[cursor.name] = loop.carried[carried.index(read.inputs[0])]
    return body


def _on(steps: OnSteps) -> Policy:
    return Policy(once, lambda node, step: steps.when(step.number, node.attr("steps")))


LOOPS: Mapping[str, Policy] = {
    "minibatch": Policy(minibatch),
    "collect": Policy(collect),
    **{name: _on(op.on_steps) for name, op in NODES.items() if op.on_steps},
}
"""By operation."""


def _surplus(name: str) -> bool:
    return name.rsplit("@", 1)[0].endswith(".surplus")


def _row_axes(kind: Any) -> list[Axis]:
    return [axis for own in axes_of(kind) for axis in own.path()]
