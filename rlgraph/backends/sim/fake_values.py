"""This module makes fake values for those of a program: rows with lengths, and which of them are kept, drawn by a
seed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import Rows
from rlgraph.backends.sim.fake_rows import FakeRows, length_at_quantiles, quantiles_to_z_scores, z_scores_to_quantiles
from rlgraph.backends.step import Step
from rlgraph.backends.weight_versions import WeightVersions
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import Group
from rlgraph.ir.types import StateHandle, Table, Type, axes_of, axis_of
from rlgraph.ops.nodes import NODES, expected_lengths_of, rows_per_input
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.tasks import max_turns
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.memo import get_or_compute


class FakeValues:
    """Makes fake values for a program whose texts are as long as a workload says."""

    def __init__(self, program: Program, workload: Workload, versions: WeightVersions, seed: int) -> None:
        self.program, self.workload, self.versions, self.seed = program, workload, versions, seed
        self.samplers = {
            (phase.name, expected_lengths_of(node)): node
            for phase in program.phases
            for node in phase.graph.walk()
            if expected_lengths_of(node)
        }
        """Nodes that sample, by phase and the value that says how long their rows are expected to be."""
        self.prompts = f"{seed}/prompts"
        """The key of what the answers to one prompt have in common, whenever it is asked."""
        self._answers: dict[int, Lengths] = {}
        """Lengths of answers, by the most tokens of an answer."""

    def random_key(self, node: Node, step: Step) -> str:
        """Return the key of what is random about a node in this step."""
        return f"{self.seed}/{step.number}/{node.name}"

    def make_output(self, order: NodeRequest) -> NodeOutput:
        """Return the fake output of a node."""
        node, frame, group = order.node, order.frame, order.group
        if node.op == "read":
            return self.read_rows(node, frame, group)
        if NODES[node.op].generates:
            return self.sample_rows(order)
        if node.op == "sample":
            return self.sample_from_buffer(node, frame, group)
        if node.op == "recall":
            return self.recall_rows(node, frame, group)
        if node.op == "pairs":
            return self.pair_rows(node, frame, group)
        if NODES[node.op].nests:
            # Nobody knows how many lines an episode has: one.
            axis, lines = axis_of(node.outputs[0].type), frame.values[node.inputs[0]]
            assert axis is not None
            made = replace(lines, name=node.name, where=group.name)
            return NodeOutput({node.name: made}, [Rows(axis, lines.row_count, np.arange(lines.row_count))])
        values: dict[str, Any] = {}
        for value in node.outputs:
            if isinstance(value.type, StateHandle):
                values[value.name] = self.step_state_after(node, frame, value.type, group)
            else:
                values[value.name] = self.value_like_input(value.name, value.type, node, frame, group)
        if node.op == "prefix":
            limit, whole = node.attr("tokens"), values[node.name]
            # Nobody knows how many tokens a program computes: half of them.
            cut = whole.response // 2 if limit is None else np.minimum(whole.response, limit)
            values[node.name] = replace(whole, response=cut)
        if node.op == "encode":
            name, encoded = node.name, values[node.name]
            prompts = encoded.sample_lengths(self.workload.prompt, f"{self.seed}/prompt")
            answers = encoded.sample_lengths(self.workload.response or self.workload.prompt, f"{self.seed}/{name}")
            values[name] = replace(encoded, prompt=prompts, response=answers)
        return NodeOutput(values)

    def read_rows(self, node: Node, frame: Frame, group: Group) -> NodeOutput:
        """Return the next rows of the data. A cursor is the number of rows that were read."""
        table, cursor = node.outputs
        axis, first = axis_of(table.type), frame.values[node.inputs[0]]
        assert axis is not None
        source = next(
            outside for outside in self.program.outside if outside.kind == "data" and outside.name == axis.name
        )
        batch = source.record.option("batch") or 1
        rows = _rows(table.name, group.name, np.arange(first, first + batch), batch)
        rows = replace(rows, prompt=rows.sample_lengths(self.workload.prompt, f"{self.seed}/prompt"))
        return NodeOutput({table.name: rows, cursor.name: first + batch}, [Rows(axis, batch)])

    def pair_rows(self, node: Node, frame: Frame, group: Group) -> NodeOutput:
        """Return fake pairs of rows."""
        axis = axis_of(node.outputs[0].type)
        assert axis is not None and axis.parent is not None
        first, _ = frame.row_pairs(axis.parent.key, node.attr("axis"))
        made = _rows(node.name, group.name, np.arange(len(first)), max(1, len(first)))
        return NodeOutput({node.name: made}, [Rows(axis, len(first), first)])

    def sample_rows(self, order: NodeRequest) -> NodeOutput:
        """Return the fake rows that a model samples."""
        node, frame, group = order.node, order.frame, order.group
        asked, asked_axis = frame.values[node.inputs[1]], axis_of(frame.types[node.inputs[1]])
        axis, count = axis_of(node.outputs[0].type), node.attr("n")
        assert axis is not None and asked_axis is not None
        asked_kind = frame.types[node.inputs[1]]
        goes_on = int(isinstance(asked_kind, Table) and asked_kind.start == "row")
        numbers = (asked.numbers[:, None] * count + np.arange(count)).reshape(-1)
        made = replace(
            _rows(node.name, group.name, numbers, asked.period * count),
            prompt=np.repeat(asked.prompt + asked.response * goes_on, count),
            version=np.full_like(numbers, order.version or 0),
        )
        if order.expected_lengths is not None:
            made = replace(made, expected=np.repeat(np.asarray(order.expected_lengths, dtype=float), count))
        answers, key = self.answer_lengths(node.attr("max_tokens")), self.random_key(node, frame.step)
        made = replace(made, response=made.sample_lengths(answers, key, count, self.workload.alike, self.prompts))
        if limit := max_turns(node):
            turns = made.sample_lengths(self.workload.turn_counts(limit), f"{key}/turns")
            observed = np.rint(self.workload.observed_tokens * (turns - 1)).astype(np.int64)
            made = replace(made, turns=turns, prompt=made.prompt + observed)
        rows, first = [], rows_per_input(node)
        if first < count:
            made = made.shortest_rows_of_groups(first, count)
        if axis.key != asked_axis.key:
            rows.append(Rows(axis, made.row_count, np.repeat(np.arange(asked.row_count), first)))
        return NodeOutput({node.name: made}, rows)

    def episode_seconds(self, rows: FakeRows, key: str) -> list[list[float | None]]:
        """Return for each episode the seconds that its environment takes after each turn; None: nobody knows."""
        if self.workload.environment_s is None:
            return [[None] * turns for turns in rows.turns.tolist()]
        taken = [
            length_at_quantiles(self.workload.environment_s, rows.uniform_quantiles(f"{key}/answer {turn}"))
            for turn in range(rows.turns.max(initial=0))
        ]
        return [[float(taken[turn][row]) for turn in range(turns)] for row, turns in enumerate(rows.turns.tolist())]

    def expected_lengths(self, order: NodeRequest) -> list[float]:
        """Return how long the answers to each prompt are expected to be that is going to be asked: what they will be,
        as far as the workload says that one can know."""
        asked, step = order.frame.values[order.node.inputs[0]], order.step
        node = self.samplers[step.phase, order.node.name]
        count, knows = node.attr("n"), self.workload.foresight
        numbers = (asked.numbers[:, None] * count + np.arange(count)).reshape(-1)
        rows = _rows(node.name, order.group.name, numbers, asked.period * count)
        scores = (
            quantiles_to_z_scores(
                rows.uniform_quantiles(self.random_key(node, step), count, self.workload.alike, self.prompts)
            )
            .reshape(-1, count)
            .mean(axis=1)
        )
        # Scale the means, so that they vary as much as the scores of single rows do.
        scores /= np.sqrt(self.workload.alike + (1 - self.workload.alike) / count)
        chance = quantiles_to_z_scores(asked.uniform_quantiles(f"{self.random_key(node, step)}/expected"))
        lengths = length_at_quantiles(
            self.answer_lengths(node.attr("max_tokens")),
            z_scores_to_quantiles(knows * scores + np.sqrt(1 - knows**2) * chance),
        )
        return [float(length) for length in lengths]

    def answer_lengths(self, limit: int) -> Lengths:
        """Return the lengths of what is sampled with at most so many tokens."""
        return get_or_compute(self._answers, limit, lambda: self.workload.answer_lengths(limit))

    def sample_from_buffer(self, node: Node, frame: Frame, group: Group) -> NodeOutput:
        """Return fake rows of a buffer."""
        held, axis = frame.values[node.inputs[0]], axis_of(node.outputs[0].type)
        assert axis is not None
        count = min(node.attr("rows"), held.row_count)
        taken = random.Random(self.random_key(node, frame.step)).sample(range(held.row_count), count)
        # Of an empty buffer none.
        places = np.sort(np.array(taken, dtype=np.int64))
        return NodeOutput({node.name: replace(held.pick(places), name=node.name)}, [Rows(axis, count)])

    def recall_rows(self, node: Node, frame: Frame, group: Group) -> NodeOutput:
        """Return fake rows of a buffer for each row of a key: as many as there may be, or as the buffer has."""
        held, axis = frame.values[node.inputs[0]], axis_of(node.outputs[0].type)
        assert axis is not None and axis.parent is not None
        kind = frame.types[node.inputs[0]]
        assert isinstance(kind, StateHandle)
        record = next(outside.record for outside in self.program.outside if outside.name == kind.name)
        parents = frame.row_count(axis.parent.key)
        count = min(int(record.option("last") or 1), held.row_count)
        places = np.arange(parents * count) % max(1, held.row_count)
        rows = Rows(axis, parents * count, np.repeat(np.arange(parents), count))
        return NodeOutput({node.name: replace(held.pick(places), name=node.name, where=group.name)}, [rows])

    def step_state_after(self, node: Node, frame: Frame, kind: StateHandle, group: Group) -> Any:
        """Return step state (a model, a cursor, a buffer) as a node leaves it."""
        if kind.kind == "model":
            return kind.name
        if node.op != "push":
            return FakeRows(kind.name, group.name)
        rows, table = (frame.values[name] for name in node.inputs[:2])
        full = replace(rows.concat([table]), name=kind.name, where=group.name)
        rule = next(thing for thing in self.program.outside if thing.name == kind.name)
        return full.pick(np.arange(full.row_count)[-int(rule.record.option("capacity")) :])

    def value_like_input(self, name: str, kind: Type, node: Node, frame: Frame, group: Group) -> FakeRows:
        """Return a value with the rows of an input that lies on the same axis, or else on the same rows."""
        axis = axis_of(kind)
        if axis is None:
            return FakeRows(name, group.name)
        given = [(axes_of(frame.types[input_name]), frame.values.get(input_name)) for input_name in node.inputs]
        fakes = [(axes, value) for axes, value in given if isinstance(value, FakeRows)]
        for near in (axis, axis.row_axis):
            for axes, value in fakes:
                if any(near.key == value_axis.key for value_axis in axes):
                    return replace(value, name=name, where=group.name, column=None)
        size = frame.row_count(axis.row_axis.key)
        return _rows(name, group.name, np.arange(size), max(1, size))

    def choose_rows(self, order: NodeRequest) -> np.ndarray:
        """Choose rows: a share of them for `keep`, one of each group for `pick`, for `recent` those that are, for
        `aged` all of them, the oldest first, and for `soonest` all of them, those first whose longest is the
        shortest. Conditions hold, and no loop stops."""
        node, frame = order.node, order.frame
        if node.op == "keep":
            mask, axis = frame.values[node.inputs[0]], axis_of(frame.types[node.inputs[0]])
            assert axis is not None
            kept = mask.uniform_quantiles(self.random_key(node, frame.step)) < self.workload.kept
            return np.flatnonzero(kept[frame.ancestor_rows(node.attr("axis"), axis.key)])
        if node.op == "recent":
            value_axis = axis_of(frame.types[node.inputs[0]])
            assert value_axis is not None
            age = self.versions.version_at(node.attr("model"), frame.step) - frame.values[node.inputs[0]].version
            old = frame.ancestor_rows(value_axis.row_axis.key, node.attr("axis"))[age > node.attr("oldest")]
            return np.setdiff1d(np.arange(frame.row_count(node.attr("axis"))), old)
        if node.op == "aged":
            sampled = zip(node.inputs, node.attr("models"), strict=True)
            ages = [
                (name, self.versions.version_at(model, frame.step) - frame.values[name].version)
                for name, model in sampled
            ]
            return np.argsort(-frame.max_per_row(node.attr("axis"), ages), kind="stable")
        if node.op == "soonest":
            tokens = [(name, frame.values[name].response) for name in node.inputs]
            ended = [(name, np.where(lengths > 0, lengths, np.inf)) for name, lengths in tokens]
            return np.argsort(frame.max_per_row(node.attr("axis"), ended), kind="stable")
        if node.op == "resample":
            return self.drawn_rows(node, frame)
        if node.op in ("when", "stop"):
            # What depends on numbers that nobody computes is taken to happen, so that no work is left out.
            return np.arange(int(node.op == "when"))
        table, chosen = axis_of(frame.types[node.inputs[0]]), axis_of(node.outputs[0].type)
        assert table is not None and chosen is not None
        counts = np.bincount(frame.ancestor_rows(table.key, chosen.key), minlength=frame.row_count(chosen.key))
        if bool((counts == 0).any()):
            message = "a group has no rows left to pick from"
            raise ProgramError(Diagnostic("E0961", message, node.span, "assume that more are kept"))
        places = frame.values[node.inputs[1]].uniform_quantiles(self.random_key(node, frame.step)) * counts
        positions: np.ndarray = counts.cumsum() - counts + places.astype(np.int64)
        return positions

    def drawn_rows(self, node: Node, frame: Frame) -> np.ndarray:
        """Return which rows `resample` draws: each is as likely as any other of its group."""
        axis, group = node.attr("axis"), node.attr("group")
        above = np.zeros(frame.row_count(axis), dtype=np.int64) if group is None else frame.ancestor_rows(axis, group)
        rng, drawn = random.Random(self.random_key(node, frame.step)), list[int]()
        for place in np.unique(above):
            members = np.flatnonzero(above == place).tolist()
            count = node.attr("rows")
            drawn += (
                rng.choices(members, k=count) if node.attr("replace") else rng.sample(members, min(count, len(members)))
            )
        return np.sort(np.array(drawn, dtype=np.int64))


def _rows(name: str, group: str, numbers: np.ndarray, period: int) -> FakeRows:
    """Return rows without tokens."""
    zeros = np.zeros_like(numbers)
    return FakeRows(
        name, group, numbers, zeros, zeros, np.zeros(zeros.shape), zeros, period, given_up=zeros, turns=zeros
    )
