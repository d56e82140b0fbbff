"""This module has the backend whose work is done by the groups of a plan: it decides which of them does a node's work,
and with what weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlgraph.backends.clocks import Clock
from rlgraph.backends.collect_batches import last_settled_step
from rlgraph.backends.distributed.transport import NodeRequest, RemoteRows, Transport
from rlgraph.backends.distributed.weights import WeightLedger
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.executor import Executor, FusedTrainings
from rlgraph.backends.frame import Frame, NodeOutput, Part
from rlgraph.backends.in_flight import Things
from rlgraph.backends.row_blocks import BlockSizes, block_tables_by_node
from rlgraph.backends.selection import select_rows
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer, StepRunner
from rlgraph.ir.graph import Graph, Node, Program
from rlgraph.ir.plan import HOST, Group, Plan, TailMove
from rlgraph.ir.types import Type
from rlgraph.ops.nodes import NODES, model_of, models_beside, placement_operation, user_code_of, works_on_shares
from rlgraph.ops.program_work import other_players_models

HANDS = 2
"""Blocks that a replica has at a time where they go to free replicas and it samples rows of several requests together:
those of the second block come in where rows of the first have ended."""


class DistributedBackend(StepRunner):
    """A backend on groups of processes. In its frames stand remote rows for those that the groups have."""

    values_are_remote = True

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
        """program: a numbered one. first: remote values for the things that live across steps, by name. block: rows of
        its unit that every node takes at a time; None: what the plan says of tables. replays: what is generated
        comes from a recording."""
        self.program, self.plan, self.transport, self.observer = program, plan, transport, observer
        self.seed, self.replays = seed, replays
        # The value of a model is its name, wherever it is; the surplus of a `collect` is a frame, and none at first.
        named: dict[str, Any] = {model.name: model.name for model in program.models}
        surplus = {thing.name: None for thing in program.outside if thing.record.name == "surplus"}
        self.initial_things = {**first, **named, **surplus}
        self.weights = WeightLedger(program, plan, transport, clock, observer, self.weight_versions)
        blocks = BlockSizes(block) if block else BlockSizes(tables=dict(plan.blocks))
        self._to_free_replica = _nodes_for_free_replicas(program, plan)
        self._copies = {
            (group.name, together): clock.new_lock(group.mesh.axis_size("dp") * (HANDS if together else 1))
            for group in plan.groups
            for together in (False, True)
        }
        most = (
            HANDS * max((group.mesh.axis_size("dp") for group in plan.groups), default=1)
            if self._to_free_replica
            else 1
        )
        together = (
            FusedTrainings([fused.models for fused in plan.fused], self.run_fused_trainings) if plan.fused else None
        )
        self.executor = Executor(
            self, blocks, clock, max(most, *(pool.concurrent_requests for pool in plan.pools)), together
        )

    def finish_step(self, step: Step, things: Things) -> dict[str, float]:
        return self.weights.pop_step_costs(step, last_settled_step(step, things)) | self.transport.finish_step(
            step, things
        )

    def optimizer_step_counts(self) -> dict[str, int]:
        """Return for each model how many optimizer steps it took."""
        return dict(self.weights.updates)

    def save(self, model: str, folder: Path) -> None:
        """Write a folder that a model source can name; also after a failure, if the model is whole."""
        self.transport.save(model, self.plan.owner(model), folder.resolve())

    def fail_pending_work(self, why: BaseException) -> None:
        self.trace_notes.clear()
        self.mismatches.clear()
        self.transport.fail_pending_work(why)

    def close(self) -> None:
        """Stop the transport."""
        self.transport.end_processes()

    # Nodes

    def streams_output(self, node: Node, frame: Frame) -> bool:
        """Whether rows leave the engine as soon as they end; a recording is read at once."""
        if not NODES[node.op].streams or self.replays:
            return False
        return engine(self._group(node, frame).engine).streams

    def max_concurrent_blocks(self, node: Node, frame: Frame) -> int:
        """Return how many ranks that run the user's code take rows by themselves, or how many replicas of a model,
        where the plan says so."""
        if NODES[node.op].uses_model:
            if node.id not in self._to_free_replica:
                return 1
            group = self._group(node, frame)
            copies = group.mesh.axis_size("dp")
            if copies == 1:
                return 1
            return copies * (HANDS if self._together(node, frame, group) else 1)
        runner = self.plan.group_of_code(user_code_of(node))
        return runner.mesh.rank_count if runner else 1

    def run_in_parts(self, node: Node, frame: Frame, sizes: Sequence[int]) -> Iterator[Part]:
        with ExitStack() as stack:
            request = self._request(node, frame, stack)
            tail = None if request.refresh_state else self._tail(node, request.group)
            yield from self.transport.run_in_parts(replace(request, tail=tail), sizes)

    def do_node_work(self, node: Node, frame: Frame) -> NodeOutput:
        op = NODES[node.op]
        if op.uses_model:
            return self._compute(node, frame)
        if op.updates:
            target, source = (frame.values[name] for name in node.inputs)
            self.weights.update_from_model(target, source, node, frame.step)
            return NodeOutput({node.name: target})
        if op.counts and node.attr("axis") in frame.rows:
            return NodeOutput({node.name: frame.row_count(node.attr("axis"))})
        # An age depends on the step, which the process that has the rows does not learn when these are fetched.
        if op.is_column and node.attr("name") != "age":
            table = frame.values[node.inputs[0]]
            if isinstance(table, RemoteRows):
                assert node.id is not None
                return NodeOutput({node.name: table.select_column(node.id)})
        if op.weighs:
            return NodeOutput({node.name: list(self.transport.row_loads(self._request_without_model(node, frame)))})
        if op.chooses is not None:
            return select_rows(node, frame, self.choose_rows(node, frame))
        return self.transport.run_request(self._request_without_model(node, frame))

    def choose_rows(self, node: Node, frame: Frame) -> np.ndarray:
        return self.transport.choose_rows(self._request_without_model(node, frame))

    def _request_without_model(self, node: Node, frame: Frame) -> NodeRequest:
        """Return the request for a node that needs no weights. Of several processes of the host the first does all but
        mathematics on the rows of a unit, which all of them share."""
        group = self._group(node, frame)
        alone = group.name == HOST and group.mesh.rank_count > 1 and not works_on_shares(node)
        return NodeRequest(node, frame, group, copy=0 if alone else None)

    def run_fused_trainings(self, nodes: Sequence[Node], frame: Frame) -> Sequence[NodeOutput]:
        """Do the work of trainings that share a pipeline, all of one group."""
        made = self._fire_with_weights(nodes, frame, self.transport.run_fused_trainings)
        for node, output in zip(nodes, made, strict=True):
            self.mismatches.add(frame.step, output.mismatches)
            self.note_changed_models(node, frame)
        return made

    def _compute(self, node: Node, frame: Frame) -> NodeOutput:
        """Do work with a model's weights, where the plan puts it, once the weights have come."""
        [made] = self._fire_with_weights([node], frame, lambda requests: [self.transport.run_request(requests[0])])
        return made

    def _fire_with_weights(
        self, nodes: Sequence[Node], frame: Frame, fire: Callable[[Sequence[NodeRequest]], Sequence[NodeOutput]]
    ) -> Sequence[NodeOutput]:
        """Fire nodes with their models' weights, and note which models have other weights then."""
        updated = [frame.values[model_of(node)] for node in nodes if NODES[node.op].updates]
        with ExitStack() as stack:
            requests = [self._request(node, frame, stack) for node in nodes]
            try:
                made = fire(requests)
            except KeyboardInterrupt:
                # It is raised at the end of an update, whose weights are new ones: they are worth saving.
                for model in updated:
                    self.weights.note_update(model, frame.step)
                raise
        for model in updated:
            self.weights.note_update(model, frame.step)
        return made

    def _request(self, node: Node, frame: Frame, stack: ExitStack) -> NodeRequest:
        """Return the request for a node, with the weights that it works with, which are lent until the stack is
        closed."""
        group, model = self._group(node, frame), frame.values[model_of(node)]
        refreshes = self._refreshes(node, model, group)
        together = self._together(node, frame, group)
        replica = None
        if node.id in self._to_free_replica and group.mesh.axis_size("dp") > 1:
            place = stack.enter_context(self._copies[group.name, together].acquire(frame.step.number))
            replica = place % group.mesh.axis_size("dp")
        lent = stack.enter_context(
            self.weights.lend_weights(model, group, node, frame.step, refreshes, replica, together)
        )
        beside = [*(frame.values[name] for name in models_beside(node)), *other_players_models(node, frame.types)]
        others = {
            other: stack.enter_context(self.weights.lend_weights(other, group, node, frame.step, copy=replica))
            for other in dict.fromkeys(beside)
        }
        shifting = self.weights.beds.offload_change_for(model, group, replica, [*others])

        def wait_for_arrival() -> None:
            for weights in (lent, *others.values()):
                weights.wait_for_arrival()

        sampled = lent.version, lent.refresh_state, replica, wait_for_arrival, lent.weights_key, shifting
        versions = {other: weights.version for other, weights in others.items()}
        return NodeRequest(node, frame, group, *sampled, other_versions=versions)

    def _refreshes(self, node: Node, model: str, group: Group) -> bool:
        """Whether newer weights come to a group while it does a node's work: the program lets rows span versions, and
        the plan says so."""
        if node.attr("span", "row") == "row" or self.replays or not self.executor.clock.concurrent:
            return False
        return self.plan.holding(model, group.name).refreshes_while_sampling

    def _together(self, node: Node, frame: Frame, group: Group) -> bool:
        """Whether a group takes rows of other requests that may have the same weights while it does a node's work."""
        if not NODES[node.op].generates or self.replays or not self.executor.clock.concurrent:
            return False
        if other_players_models(node, frame.types):
            return False
        # Newer weights that come at the beginning of a turn would wait for other rows that are in the middle of one.
        turns = node.attr("span", "row") == "turn" and self._refreshes(node, frame.values[model_of(node)], group)
        return engine(group.engine).admits and not turns

    def _tail(self, node: Node, group: Group) -> TailMove | None:
        """Return what becomes of the last rows of a node: nothing where they get new weights meanwhile, or where models
        take turns in a device's memory."""
        holdings = (holding for holding in self.plan.holdings if self.plan.group(holding.group).pool == group.pool)
        return None if any(holding.offload for holding in holdings) else self.plan.tail_of(node.name.split(".")[0])

    def note_unchanged(self, model: str, step: Step) -> None:
        super().note_unchanged(model, step)
        self.weights.note_unchanged(model, step)

    def publish_weights(self, model: str) -> None:
        """Send a new version of a model to the groups that sample with it."""
        self.weights.refresh_samplers(model)

    def _group(self, node: Node, frame: Frame) -> Group:
        """Return the group that does the work of a node."""
        if operation := NODES[node.op].done_where:
            return self.plan.group_for(str(node.attr("model")), operation, "")
        model = frame.values[model_of(node)] if NODES[node.op].uses_model else ""
        return self.plan.group_for(model, placement_operation(node.op), user_code_of(node))


def _nodes_for_free_replicas(program: Program, plan: Plan) -> frozenset[int]:
    """Return the nodes, by number, whose rows go to the data-parallel replica that is free. In training all replicas
    work together, and a table with a tail has its rows distributed from the beginning, and the last ones move."""
    free = {table: rows for table, rows in plan.blocks if table in plan.free}
    phases = program.phases if free else ()
    return frozenset(
        node.id
        for phase in phases
        for node in _working_with_model(phase.graph, phase.graph.value_types(), free)
        if node.id is not None and plan.tail_of(node.name.split(".")[0]) is None
    )


def _working_with_model(graph: Graph, types: Mapping[str, Type], tables: Mapping[str, int]) -> Iterator[Node]:
    """Yield the nodes that work with a model, without training it, on blocks of these tables."""
    for node, node_cuts in zip(graph.nodes, block_tables_by_node(graph, types, tables), strict=True):
        op = NODES[node.op]
        if node_cuts and op.uses_model and not op.trains:
            yield node
        for region in node.regions if not op.trains else ():
            yield from _working_with_model(region, types, tables)
