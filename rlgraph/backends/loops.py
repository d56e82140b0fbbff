"""Nodes with a body: how often it runs, on which rows, and what comes out. The same on every backend."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from rlgraph.backends.executor import Executor, Made
from rlgraph.backends.frame import Frame
from rlgraph.backends.rows import Rows
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node, carried
from rlgraph.ir.types import axes_of


def minibatch(node: Node, frame: Frame, run: Executor, seed: str) -> Made:
    """The body for each slice of an axis, in every epoch. Exports are the rows of the last epoch."""
    axis, region = node.attr("axis"), node.regions[0]
    handles = [frame.values[name] for name in node.inputs[: carried(node)]]
    size = frame.size(axis)
    captured = node.inputs[carried(node) :]
    made: list[tuple[Frame, dict[str, torch.Tensor]]] = []
    for epoch in range(node.attr("epochs")):
        order = torch.arange(size)
        if node.attr("shuffle"):
            places = list(range(size))
            random.Random(f"{seed}/{node.attr('key')}/{epoch}").shuffle(places)
            order = torch.tensor(places, dtype=torch.long)
        made = []
        for part in torch.tensor_split(order, max(1, min(node.attr("parts"), size))):
            body, places_of = frame.slice(axis, part.sort().values, captured)
            body.values.update(zip((value.name for value in region.inputs), handles, strict=True))
            run.run(region, body)
            handles = [body.values[name] for name in region.outputs[: len(handles)]]
            made.append((body, places_of))
    return exported(node, frame, made, axis, handles)


def exported(
    node: Node, frame: Frame, parts: list[tuple[Frame, dict[str, torch.Tensor]]], axis: str, handles: list[object]
) -> Made:
    """The outputs of a region node whose body ran on slices of an axis."""
    count, region = carried(node), node.regions[0]
    names = dict(zip(region.outputs[count:], (value.name for value in node.outputs[count:]), strict=True))
    whole = frame.child()
    if names:
        whole.assemble(parts, axis, names)
    return _made(node, frame, whole, handles)


def _made(node: Node, frame: Frame, whole: Frame, handles: list[object]) -> Made:
    count = carried(node)
    values = dict(zip((value.name for value in node.outputs[:count]), handles, strict=True))
    values.update({value.name: whole.values[value.name] for value in node.outputs[count:]})
    rows: dict[str, Rows] = {}
    for value in node.outputs[count:]:
        for own in axes_of(value.type):
            for axis in own.path():
                if axis.key not in frame.rows and frame.counts(axis):
                    rows[axis.key] = whole.rows[axis.key]
    return Made(values, sorted(rows.values(), key=lambda found: found.axis.depth))


def every(node: Node, frame: Frame, run: Executor, step: int) -> Made:
    """The body on every so many steps, counted from 1."""
    region = node.regions[0]
    handles = [frame.values[name] for name in node.inputs[: carried(node)]]
    if step % node.attr("steps") == 0:
        body = frame.child()
        body.values.update(zip((value.name for value in region.inputs), handles, strict=True))
        run.run(region, body)
        handles = [body.values[name] for name in region.outputs[: len(handles)]]
    return _made(node, frame, frame, handles)


def collect(node: Node, frame: Frame, run: Executor, note: Callable[[str], None]) -> Made:
    """The body on fresh batches until enough rows are kept; the surplus begins the next step's."""
    region, axis, wanted = node.regions[0], node.attr("axis"), node.attr("rows")
    count = carried(node)
    handles = [frame.values[name] for name in node.inputs[:count]]
    place = next(at for at, value in enumerate(region.inputs) if value.name.rsplit("@", 1)[0].endswith(".surplus"))
    inner, outer = region.outputs[count:], [value.name for value in node.outputs[count:]]
    parts: list[Frame] = [handles[place]] if handles[place] is not None else []  # type: ignore[list-item]
    kept = sum(part.size(axis) for part in parts)
    rounds = 0
    while kept < wanted:
        if rounds == node.attr("rounds"):
            raise RunError(
                Diagnostic(
                    "E0737",
                    f"{kept} of {wanted} rows were kept after {rounds} batches",
                    node.span,
                    "keep more of them, raise `rounds`, or lower the number of rows",
                )
            )
        body = frame.child()
        body.values.update(zip((value.name for value in region.inputs), handles, strict=True))
        run.run(region, body)
        handles = [body.values[name] for name in region.outputs[:count]]
        parts.append(body)
        kept, rounds = kept + body.size(axis), rounds + 1
        note(f"{kept} of {wanted} rows kept")
    whole = frame.child()
    whole.append(parts, inner)
    root = next(own for name in inner for own in _row_axes(frame, name) if own.key == axis)
    top = list(root.path())[-1].key
    last = int(whole.index(axis, top)[wanted - 1]) + 1
    now, _ = whole.slice(top, torch.arange(last), inner)
    later, _ = whole.slice(top, torch.arange(last, whole.size(top)), inner)
    handles[place] = later if later.size(top) else None
    for name, new in zip(inner, outer, strict=True):
        now.values[new] = now.values[name]
    return _made(node, frame, now, handles)


def _row_axes(frame: Frame, name: str) -> list:  # type: ignore[type-arg]
    return [axis for own in axes_of(frame.types[name]) for axis in own.path()]
