"""What groups do in a simulation: the time it takes, and stand-ins for what comes out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from rlgraph.backends.clocks import Queues
from rlgraph.backends.executor import Made
from rlgraph.backends.frame import Frame
from rlgraph.backends.ray.orders import numbered
from rlgraph.backends.rows import Rows
from rlgraph.backends.sim.held import Held
from rlgraph.backends.sim.log import Log
from rlgraph.backends.step import Step
from rlgraph.cost.predict import Batch, Cost
from rlgraph.cost.tasks import Workload
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.ir.graph import Node, Program, carried
from rlgraph.ir.plan import Group
from rlgraph.ir.types import Handle, Type, axes_of, axis_of
from rlgraph.ops.nodes import DRAWING, MODEL_CALLS


class SimOrders:
    """Fires nodes in the time of a log's clock."""

    def __init__(self, program: Program, queues: Queues, workload: Workload, seed: int, log: Log) -> None:
        self.program, self.queues, self.workload, self.seed, self.log = program, queues, workload, seed, log
        self.nodes = {id(node): place for place, (_, node) in enumerate(numbered(program))}
        self.rows, self.tokens = 0, 0
        """That were sampled or encoded in this step; tokens with their prompts."""
        self._onloaded: dict[str, tuple[str, str]] = {}
        """For each pool the model, and its group, that it worked with last."""
        self._sent: dict[tuple[str, str], np.ndarray] = {}
        """For each value and group the numbers of the rows that have come there."""

    def end_step(self) -> dict[str, float]:
        """Rows and tokens that the step was about."""
        told = {"rows": float(self.rows), "tokens": float(self.tokens)}
        self._sent = {}
        self.rows, self.tokens = 0, 0
        return told

    # Nodes

    def fire(self, node: Node, frame: Frame, group: Group) -> Made:
        made = self.made(node, frame, group)
        self.work(node, frame, group, made)
        self.count(node, made)
        return made

    def count(self, node: Node, made: Made) -> None:
        """What the step is about."""
        if node.op in (*DRAWING, "encode"):
            rows = made.values[node.name]
            self.rows, self.tokens = self.rows + rows.rows, self.tokens + int(rows.prompt.sum() + rows.response.sum())

    def work(self, node: Node, frame: Frame, group: Group, made: Made) -> None:
        """Waits for the group's pool, and until the work is done."""
        fired = self.log.clock.now
        with self.queues.turn(group.pool):
            self.log.observer.firing(node, group.pool)
            batches = _batches(node, frame, made)
            spent = self.begun(node, frame, group, batches) | _parts(self.cost(node, frame, made, batches))
            work = self.log.take(_title(node), node.op, [group], fired, spent, _counts(node, frame, made))
            self.log.observer.fired(node, work.seconds, work.tokens, group.pool)

    def parts(self, node: Node, frame: Frame, group: Group, sizes: Sequence[int]) -> Iterator[Made]:
        """All rows are sampled side by side: a part is there when its longest row is, and the parts before are."""
        assert node.unit is not None and node.unit.axis is not None
        fired = self.log.clock.now
        with self.queues.turn(group.pool):
            self.log.observer.firing(node, group.pool)
            model, whole = frame.values[node.inputs[0]], self.made(node, frame, group)
            [batch] = _batches(node, frame, whole)
            spent, began, tokens = self.begun(node, frame, group, [batch]), self.log.clock.now, 0
            there, longest = 0.0, 0
            for start, stop in pairwise(accumulate(sizes, initial=0)):
                part, _ = frame.slice(node.unit.axis, torch.arange(start, stop), node.inputs)
                made = self.made(node, part, group)
                longest = max(longest, int(made.values[node.name].response.max(initial=0)))
                cut = replace(batch, response=batch.response.capped(longest))
                until = self.log.predictor.work(model, node.op, [cut]).seconds
                spent["sampling"] = max(0.0, until - there)
                work = self.log.take(_title(node), node.op, [group], fired, spent, _counts(node, part, made))
                there, tokens = max(there, until), tokens + work.tokens
                # The next part goes on where this one ended.
                spent, fired = {}, self.log.clock.now
                self.count(node, made)
                yield made
            self.log.observer.fired(node, self.log.clock.now - began, tokens, group.pool)

    def choose(self, node: Node, frame: Frame, host: Group) -> torch.Tensor:
        """Which rows `keep` or `pick` takes: a share of them, and one of each group."""
        self.work(node, frame, host, Made())
        if node.op == "keep":
            mask, axis = frame.values[node.inputs[0]], axis_of(frame.types[node.inputs[0]])
            assert axis is not None
            kept = torch.from_numpy(mask.shares(self.key(node, frame.step)) < self.workload.kept)
            return kept[frame.index(node.attr("axis"), axis.key)].nonzero()[:, 0]
        table, chosen = axis_of(frame.types[node.inputs[0]]), axis_of(node.outputs[0].type)
        assert table is not None and chosen is not None
        counts = torch.bincount(frame.index(table.key, chosen.key), minlength=frame.size(chosen.key))
        if bool((counts == 0).any()):
            message = "a group has no rows left to pick from"
            raise ProgramError(Diagnostic("E0961", message, node.span, "assume that more are kept"))
        places = frame.values[node.inputs[1]].shares(self.key(node, frame.step)) * counts.numpy()
        return counts.cumsum(0) - counts + torch.from_numpy(places.astype(np.int64))

    def key(self, node: Node, step: Step) -> str:
        """Of what is drawn for a node in this step."""
        return f"{self.seed}/{step.number}/{node.name}"

    # Time

    def begun(self, node: Node, frame: Frame, group: Group, batches: Sequence[Batch]) -> dict[str, float]:
        """What passes before the work itself: the order, the model's way back to the devices, the rows' way to the
        group."""
        predictor, model = self.log.predictor, _model(node, frame)
        spent = {"order": predictor.order(group.name).seconds}
        if model is not None:
            if self._onloaded.get(group.pool) != (model, group.name):
                spent["onload"] = predictor.onload(model, group.name, node.op, batches).seconds
            self._onloaded[group.pool] = (model, group.name)
        sent: dict[str, float] = {}
        for name in _needed(node):
            value, kind = frame.values.get(name), frame.types[name]
            if isinstance(value, Held) and value.where != group.name and not isinstance(kind, Handle):
                # What is computed for a row travels with it: a token's bytes are those of all of its values.
                sent[value.where] = max(sent.get(value.where, 0.0), self.fresh(value, group.name).entries(kind))
        spent["transfer"] = sum(
            predictor.rows(source, group.name, tokens).seconds for source, tokens in sent.items() if tokens
        )
        return {name: seconds for name, seconds in spent.items() if seconds}

    def fresh(self, value: Held, group: str) -> Held:
        """The rows that the group does not have yet; now it has them."""
        there = self._sent.get((value.name, group), np.zeros(0, dtype=np.int64))
        self._sent[value.name, group] = np.union1d(there, value.numbers)
        return value.take(~np.isin(value.numbers, there))

    def cost(self, node: Node, frame: Frame, made: Made, batches: Sequence[Batch]) -> Cost:
        """Of the work itself."""
        model = _model(node, frame)
        if model is None:
            return self.log.predictor.host(node.op, _counts(node, frame, made)[0])
        return self.log.predictor.work(model, node.op, batches)

    # What comes out

    def made(self, node: Node, frame: Frame, group: Group) -> Made:
        if node.op == "read":
            return self.read(node, frame, group)
        if node.op in DRAWING:
            return self.sampled(node, frame, group)
        if node.op == "sample":
            return self.drawn_from_buffer(node, frame, group)
        values: dict[str, Any] = {}
        for value in node.outputs:
            if isinstance(value.type, Handle):
                values[value.name] = self.handle(node, frame, value.type, group)
            else:
                values[value.name] = self.like(value.name, value.type, node, frame, group)
        if node.op == "encode":
            name, found = node.name, values[node.name]
            prompts = found.drawn(self.workload.prompt, f"{self.seed}/prompt")
            answers = found.drawn(self.workload.response or self.workload.prompt, f"{self.seed}/{name}")
            values[name] = replace(found, prompt=prompts, response=answers)
        return Made(values)

    def read(self, node: Node, frame: Frame, group: Group) -> Made:
        """A cursor is the number of rows that were read."""
        table, cursor = node.outputs
        axis, first = axis_of(table.type), frame.values[node.inputs[0]]
        assert axis is not None
        source = next(each for each in self.program.outside if each.kind == "data" and each.name == axis.name)
        batch = source.record.option("batch") or 1
        rows = _rows(table.name, group.name, np.arange(first, first + batch), batch)
        rows = replace(rows, prompt=rows.drawn(self.workload.prompt, f"{self.seed}/prompt"))
        return Made({table.name: rows, cursor.name: first + batch}, [Rows(axis, batch)])

    def sampled(self, node: Node, frame: Frame, group: Group) -> Made:
        asked, above = frame.values[node.inputs[1]], axis_of(frame.types[node.inputs[1]])
        axis, count = axis_of(node.outputs[0].type), node.attr("n")
        assert axis is not None and above is not None
        numbers = (asked.numbers[:, None] * count + np.arange(count)).reshape(-1)
        made = replace(
            _rows(node.name, group.name, numbers, asked.period * count), prompt=np.repeat(asked.prompt, count)
        )
        made = replace(
            made, response=made.drawn(self.workload.answers(node.attr("max_tokens")), self.key(node, frame.step))
        )
        rows = []
        if axis.key != above.key:
            rows.append(Rows(axis, made.rows, torch.repeat_interleave(torch.arange(asked.rows), count)))
        return Made({node.name: made}, rows)

    def drawn_from_buffer(self, node: Node, frame: Frame, group: Group) -> Made:
        held, axis = frame.values[node.inputs[0]], axis_of(node.outputs[0].type)
        assert axis is not None
        count = min(node.attr("rows"), held.rows)
        taken = random.Random(self.key(node, frame.step)).sample(range(held.rows), count)
        return Made({node.name: replace(held.take(np.sort(taken)), name=node.name)}, [Rows(axis, count)])

    def handle(self, node: Node, frame: Frame, kind: Handle, group: Group) -> Any:
        """What lives across steps, after a node."""
        if kind.kind == "model":
            return kind.name
        if node.op != "push":
            return Held(kind.name, group.name)
        held, table = (frame.values[name] for name in node.inputs[:2])
        full = replace(held.join([table]), name=kind.name, where=group.name)
        rule = next(each for each in self.program.outside if each.name == kind.name)
        return full.take(np.arange(full.rows)[-int(rule.record.option("capacity")) :])

    def like(self, name: str, kind: Type, node: Node, frame: Frame, group: Group) -> Held:
        """A value with the rows of an input that lies on the same axis, or else on the same rows."""
        axis = axis_of(kind)
        if axis is None:
            return Held(name, group.name)
        given = [(axes_of(frame.types[each]), frame.values.get(each)) for each in node.inputs]
        known = [(axes, value) for axes, value in given if isinstance(value, Held)]
        for near in (axis, axis.row):
            for axes, value in known:
                if any(near.key == own.key for own in axes):
                    return replace(value, name=name, where=group.name, column=None)
        size = frame.size(axis.row.key)
        return _rows(name, group.name, np.arange(size), max(1, size))


def _rows(name: str, group: str, numbers: np.ndarray, period: int) -> Held:
    """Rows without tokens."""
    return Held(name, group, numbers, np.zeros_like(numbers), np.zeros_like(numbers), period)


def _title(node: Node) -> str:
    """As people know the work: an update by its model, all else by what it makes."""
    if node.op != "train":
        return node.name
    trained = node.outputs[0].type
    assert isinstance(trained, Handle)
    return f"train {trained.name}"


def _needed(node: Node) -> Sequence[str]:
    """The values that a group needs: rows that are only chosen from stay where they are."""
    if node.op == "keep":
        return node.inputs[:1]
    if node.op == "pick":
        return node.inputs[1:]
    return node.inputs[carried(node) :] if node.regions else node.inputs


def _model(node: Node, frame: Frame) -> str | None:
    """The model that a node works with."""
    if node.op not in (*DRAWING, "train", *MODEL_CALLS):
        return None
    found: str = frame.values[node.inputs[0]]
    return found


def _batches(node: Node, frame: Frame, made: Made) -> list[Batch]:
    """The rows that are sampled, or read; of an update, the tables that its calls read."""
    if node.op in DRAWING:
        return [made.values[node.name].batch(node.attr("n"))]
    calls = [call for call in (node.regions[0].nodes if node.op == "train" else [node]) if call.op in MODEL_CALLS]
    return [frame.values[table].batch() for table in dict.fromkeys(call.inputs[1] for call in calls)]


def _counts(node: Node, frame: Frame, made: Made) -> tuple[int, int]:
    """The rows that a node worked on, and the tokens that it sampled."""
    values = (*made.values.values(), *(frame.values.get(name) for name in node.inputs))
    rows = max((value.rows for value in values if isinstance(value, Held)), default=0)
    tokens = int(made.values[node.name].response.sum()) if node.op in DRAWING else 0
    return rows, tokens


def _parts(cost: Cost) -> dict[str, float]:
    named = ("compute", "memory", "communication", "bubble", "overhead")
    return {name: getattr(cost, name) for name in named if getattr(cost, name)}
