"""This module says what a request takes: the work itself, and what passes before it, as predicted."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.frame import NodeOutput
from rlgraph.backends.sim.batching import ReplicaRows
from rlgraph.backends.sim.counters import StepCounters
from rlgraph.backends.sim.fake_rows import FakeRows
from rlgraph.backends.sim.fake_values import FakeValues
from rlgraph.backends.sim.request_work import model_used, row_and_token_counts, shard_fake_rows
from rlgraph.backends.sim.woken_models import WokenByWeights
from rlgraph.backends.sim.work_log import WorkLog
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Plan
from rlgraph.ir.types import StateHandle
from rlgraph.ops.nodes import inputs_read, model_of, rows_per_input, user_code_of, works_on_shares
from rlgraph.passes.cost.batch import ROW_BYTES, Batch
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.kept_tokens import kept_bytes
from rlgraph.passes.cost.sampling import EpisodeRows
from rlgraph.passes.cost.tasks import node_episodes


class RequestTimes:
    """The times of the requests of one simulation."""

    def __init__(self, program: Program, plan: Plan, standins: FakeValues, counts: StepCounters, log: WorkLog) -> None:
        self.program, self.plan, self.standins, self.counts, self.log = program, plan, standins, counts, log
        self.kept_bytes = {
            name: size
            for phase in program.phases
            for name, size in kept_bytes(phase, standins.workload.kept_tokens).of_values.items()
        }
        """The bytes in a place of each value that is kept tokens."""
        self.woken = WokenByWeights()

    def seconds_before_work(self, order: NodeRequest, batches: Sequence[Batch]) -> dict[str, float]:
        """Return what passes before the work itself: the request, the model's way back to the devices, the rows' way to
        the group."""
        node, frame, group = order.node, order.frame, order.group
        predictor, model = self.log.predictor, model_used(node, frame)
        spent = {"order": predictor.request_cost(group.name, order.replica_count).seconds}
        if model is not None:
            with order.offload_change() as shift:
                if self.woken.take(model, group.name, order.copy) or shift.wake:
                    spent["onload"] = predictor.offload_round_trip_cost(model, group.name, node.op, batches).seconds
        sent: dict[str, float] = {}
        kept: dict[str, float] = {}
        for name in inputs_read(node):
            value, kind = frame.values.get(name), frame.types[name]
            if isinstance(value, FakeRows) and value.where != group.name and not isinstance(kind, StateHandle):
                tokens = self.counts.take_unsent_rows(value, order).sent_token_count(kind)
                # What is computed for a row travels with it: a token's bytes are those of all of its values, but for
                # tokens that are kept beside it.
                sent[value.where] = max(sent.get(value.where, 0.0), tokens)
                beside = tokens * self.kept_bytes.get(name, 0.0) / ROW_BYTES
                kept[value.where] = kept.get(value.where, 0.0) + beside
        spent["transfer"] = sum(
            predictor.row_transfer_cost(source, group.name, tokens + kept[source], order.replica_count).seconds
            for source, tokens in sent.items()
            if tokens
        )
        return {name: seconds for name, seconds in spent.items() if seconds}

    def work_cost(self, order: NodeRequest, made: NodeOutput, batches: Sequence[Batch]) -> Cost:
        """Return the cost of the work itself."""
        node, frame = order.node, order.frame
        model = model_used(node, frame)
        if model is None:
            rows = row_and_token_counts(node, frame, made)[0]
            if self.plan.group_of_code(user_code_of(node)) is None:
                rows = ceil(rows / self.program.worker_count(user_code_of(node)))
            if order.copy is None and works_on_shares(node):
                rows = ceil(rows / order.group.mesh.rank_count)
            return self.log.predictor.host_work_cost(node.op, rows)
        return self.log.predictor.work_cost(model, node.op, batches, order.replica_count)

    def rows_by_replica(
        self, order: NodeRequest, shared: Sequence[FakeRows], first_copy: int, player: str = ""
    ) -> list[ReplicaRows]:
        """Return for each replica of a group, from one of them on, the rows that it samples, in the order in which they
        begin; replicas without rows take no time. player: the model that samples; "": the node's first one."""
        node, replica_rows = order.node, list[ReplicaRows]()
        model, kept, samples = player or order.frame.values[model_of(node)], rows_per_input(node), node.attr("n")
        cpus = self.plan.cpus_of_code.get(user_code_of(node), 0)
        episodes = None if player else node_episodes(node, self.program, self.standins.workload, cpus)
        replicas = order.group.mesh.axis_size("dp")
        for copy, rows in enumerate(shared, first_copy):
            first, played = rows.prompt_begin_order(kept), None
            prompts, answers = (
                tokens[first].reshape(-1).tolist() for tokens in rows.lengths_with_given_up(kept, samples)
            )
            if episodes is not None:
                key = self.standins.random_key(node, order.step)
                taken = self.standins.episode_seconds(rows, key)
                asked = rows.prompt - np.rint(episodes.observation * (rows.turns - 1)).astype(np.int64)
                places = np.arange(rows.row_count).reshape(-1, kept)[first].reshape(-1).tolist()
                prompts = asked[places].tolist()
                played = EpisodeRows(episodes, [taken[place] for place in places], replicas)
            alone = self.log.predictor.sampling_result(model, node.op, prompts, answers, samples, copy, played)
            replica_rows.append(ReplicaRows(alone, prompts, answers))
        return replica_rows

    def other_players_seconds(self, order: NodeRequest, made: NodeOutput) -> dict[str, float]:
        """Return the seconds of the players of episodes besides the first one, each in a sequence of its own, as a part
        of its order; nothing for work without players."""
        if not (models := order.node.attr("models", ())):
            return {}
        shared = shard_fake_rows(made.values[order.node.name], order)
        seconds = [
            max(rows.result_alone.cost.seconds for rows in self.rows_by_replica(order, shared, order.copy or 0, model))
            for model in models[1:]
        ]
        return {"other players": sum(seconds)}
