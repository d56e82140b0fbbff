"""A backend whose work is done by the groups of a plan: which of them does a node's work, and with what weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from rlgraph.backends.blocks import Blocks, cuts
from rlgraph.backends.clocks import Clock
from rlgraph.backends.distributed.transport import Order, StandIn, Transport
from rlgraph.backends.distributed.weights import Weights
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.executor import Executor, Made, Part, Together
from rlgraph.backends.frame import Frame, all_over
from rlgraph.backends.in_flight import Things
from rlgraph.backends.selection import selected
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer, Steps
from rlgraph.ir.graph import Graph, Node, Program
from rlgraph.ir.plan import Group, Plan, Tail
from rlgraph.ir.types import Type
from rlgraph.ops.nodes import NODES, code_of, model_of, planned_as

HANDS = 2
"""Blocks that a copy has in hand which is dealt freely, where it samples rows of several orders together: those of the
second one come in where rows of the first have ended."""


class Placed(Steps):
    """Its frames have stand-ins for the rows that its groups have."""

    elsewhere = True

    def __init__(
        self,
        program: Program,
        plan: Plan,
        transport: Transport,
        clock: Clock,
        observer: Observer,
        first: Things,
        *,
        seed: int,
        block: int | None = None,
        replays: bool = False,
    ) -> None:
        """program: a numbered one. first: stand-ins for the things that live across steps, by name. block: rows of its
        unit that every node takes at a time; None: what the plan says of tables. replays: what is generated comes from
        a recording."""
        self.program, self.plan, self.transport, self.observer = program, plan, transport, observer
        self.seed, self.replays = seed, replays
        # A model is known by its name, wherever it is; what `collect` has left over is a frame.
        named: dict[str, Any] = {model.name: model.name for model in program.models}
        surplus = {each.name: None for each in program.outside if each.record.name == "surplus"}
        self.first = {**first, **named, **surplus}
        self.weights = Weights(program, plan, transport, clock, observer, self.versions)
        blocks = Blocks(block) if block else Blocks(tables=dict(plan.blocks))
        self._dealt = _dealt(program, plan)
        self._copies = {
            (group.name, together): clock.lock(group.mesh.length("dp") * (HANDS if together else 1))
            for group in plan.groups
            for together in (False, True)
        }
        most = HANDS * max((group.mesh.length("dp") for group in plan.groups), default=1) if self._dealt else 1
        together = Together([each.models for each in plan.fused], self.fire_together) if plan.fused else None
        self.executor = Executor(self, blocks, clock, max(most, *(pool.places for pool in plan.pools)), together)

    def finish(self, step: Step, things: Things) -> dict[str, float]:
        return self.weights.finish(step, all_over(step, things)) | self.transport.finish(step, things)

    def trained(self) -> dict[str, int]:
        """For each model how many optimizer steps it took."""
        return dict(self.weights.updates)

    def save(self, model: str, folder: Path) -> None:
        """Writes a folder that a model source can name; also after a failure, if the model is whole."""
        self.transport.save(model, self.plan.owner(model), folder.resolve())

    def abort(self, why: BaseException) -> None:
        self.notes.clear()
        self.transport.abort(why)

    def close(self) -> None:
        self.transport.stop()

    # Nodes

    def streams(self, node: Node, frame: Frame) -> bool:
        """Rows leave some engines as soon as they end; a recording is there at once."""
        if not NODES[node.op].streams or self.replays:
            return False
        return engine(self._group(node, frame).engine).streams

    def lanes(self, node: Node, frame: Frame) -> int:
        """Ranks that run the user's code take rows each by itself, and copies of a model where the plan says so."""
        if NODES[node.op].with_model:
            if node.id not in self._dealt:
                return 1
            group = self._group(node, frame)
            copies = group.mesh.length("dp")
            if copies == 1:
                return 1
            return copies * (HANDS if self._together(node, frame, group) else 1)
        runner = self.plan.runs(code_of(node))
        return runner.mesh.size if runner else 1

    def parts(self, node: Node, frame: Frame, sizes: Sequence[int]) -> Iterator[Part]:
        group, model = self._group(node, frame), frame.values[model_of(node)]
        refreshes = self._refreshes(node, model, group)
        together = self._together(node, frame, group)
        with self.weights.lent(model, group, node, frame.step, refreshes, together=together) as lent:
            yield from self.transport.parts(
                Order(
                    node,
                    frame,
                    group,
                    lent.version,
                    lent.sampling,
                    arrived=lent.arrived,
                    key=lent.key,
                    shifting=self.weights.beds.shifting(model, group),
                    tail=None if lent.sampling else self._tail(node, group),
                ),
                sizes,
            )

    def work(self, node: Node, frame: Frame) -> Made:
        op = NODES[node.op]
        if op.with_model:
            return self._compute(node, frame)
        if op.updates:
            target, source = (frame.values[name] for name in node.inputs)
            self.weights.update(target, source, node, frame.step)
            return Made({node.name: target})
        if op.counts and node.attr("axis") in frame.rows:
            return Made({node.name: frame.size(node.attr("axis"))})
        # An age is that of a step, which who has the rows is not told when he is asked for them.
        if op.selects and op.chooses is None and node.attr("name") != "age":
            table = frame.values[node.inputs[0]]
            if isinstance(table, StandIn):
                assert node.id is not None
                return Made({node.name: table.select(node.id)})
        if op.weighs:
            return Made({node.name: list(self.transport.weigh(Order(node, frame, self._group(node, frame))))})
        if op.chooses is not None:
            return selected(node, frame, self.choose(node, frame))
        return self.transport.fire(Order(node, frame, self._group(node, frame)))

    def choose(self, node: Node, frame: Frame) -> np.ndarray:
        return self.transport.choose(Order(node, frame, self._group(node, frame)))

    def fire_together(self, nodes: Sequence[Node], frame: Frame) -> Sequence[Made]:
        """Does the work of trainings that share a pipeline, all of one group."""
        made = self._trained(nodes, frame, self.transport.fire_together)
        for node in nodes:
            self.changed(node, frame)
        return made

    def _compute(self, node: Node, frame: Frame) -> Made:
        """Work with a model's weights, where the plan puts it, once the weights are there."""
        [made] = self._trained([node], frame, lambda orders: [self.transport.fire(orders[0])])
        return made

    def _trained(
        self, nodes: Sequence[Node], frame: Frame, fire: Callable[[Sequence[Order]], Sequence[Made]]
    ) -> Sequence[Made]:
        """Has nodes fired with their models' weights; then some have other ones."""
        updated = [frame.values[model_of(node)] for node in nodes if NODES[node.op].updates]
        with ExitStack() as held:
            orders = [self._order(node, frame, held) for node in nodes]
            try:
                made = fire(orders)
            except KeyboardInterrupt:
                # It comes at the end of an update, whose weights are new ones: they are worth saving.
                for model in updated:
                    self.weights.trained(model, frame.step)
                raise
        for model in updated:
            self.weights.trained(model, frame.step)
        return made

    def _order(self, node: Node, frame: Frame, held: ExitStack) -> Order:
        """With the weights that it works with, which are lent meanwhile."""
        group, model = self._group(node, frame), frame.values[model_of(node)]
        refreshes = self._refreshes(node, model, group)
        together = self._together(node, frame, group)
        copy = None
        if node.id in self._dealt and group.mesh.length("dp") > 1:
            place = held.enter_context(self._copies[group.name, together].take(frame.step.number))
            copy = place % group.mesh.length("dp")
        lent = held.enter_context(self.weights.lent(model, group, node, frame.step, refreshes, copy, together))
        shifting = self.weights.beds.shifting(model, group, copy)
        sampled = lent.version, lent.sampling, copy, lent.arrived, lent.key, shifting
        return Order(node, frame, group, *sampled)

    def _refreshes(self, node: Node, model: str, group: Group) -> bool:
        """Newer weights come to a group while it does a node's work: the program lets rows span versions, and the plan
        says so."""
        if node.attr("span", "row") == "row" or self.replays or not self.executor.clock.together:
            return False
        return self.plan.holding(model, group.name).refreshes

    def _together(self, node: Node, frame: Frame, group: Group) -> bool:
        """A group takes rows of other orders that may have the same weights while it does a node's work."""
        if not NODES[node.op].generates or self.replays or not self.executor.clock.together:
            return False
        # Where newer weights come at the beginning of a turn, those of others that are in the middle of one would wait.
        turns = node.attr("span", "row") == "turn" and self._refreshes(node, frame.values[model_of(node)], group)
        return engine(group.engine).admits and not turns

    def _tail(self, node: Node, group: Group) -> Tail | None:
        """What becomes of the last rows of a node; of those that get new weights meanwhile nothing, nor where models
        take turns in a device's memory."""
        here = (each for each in self.plan.holdings if self.plan.group(each.group).pool == group.pool)
        return None if any(each.offload for each in here) else self.plan.tail(node.name.split(".")[0])

    def published(self, model: str) -> None:
        self.weights.refresh(model)

    def _group(self, node: Node, frame: Frame) -> Group:
        model = frame.values[model_of(node)] if NODES[node.op].with_model else ""
        return self.plan.doer(model, planned_as(node.op), code_of(node))


def _dealt(program: Program, plan: Plan) -> frozenset[int]:
    """The nodes, by number, whose rows go to the data-parallel copy that is free. All copies train together, and have
    rows from the beginning whose last ones move."""
    free = {table: rows for table, rows in plan.blocks if table in plan.free}
    phases = program.phases if free else ()
    return frozenset(
        node.id
        for phase in phases
        for node in _taking(phase.graph, phase.graph.values(), free)
        if node.id is not None and plan.tail(node.name.split(".")[0]) is None
    )


def _taking(graph: Graph, types: Mapping[str, Type], tables: Mapping[str, int]) -> Iterator[Node]:
    for node, own in zip(graph.nodes, cuts(graph, types, tables), strict=True):
        op = NODES[node.op]
        if own and op.with_model and not op.trains:
            yield node
        for region in node.regions if not op.trains else ():
            yield from _taking(region, types, tables)
