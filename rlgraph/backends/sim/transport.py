"""This module has the transport of a simulation: requests take the time that is predicted, and fake rows come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from rlgraph.backends.device_queues import DeviceQueues, device_set
from rlgraph.backends.distributed.length_limit import LengthLimit
from rlgraph.backends.distributed.row_balancing import blocks_by_replica
from rlgraph.backends.distributed.tails import TailMoves
from rlgraph.backends.distributed.transport import Coming, NodeRequest, TransferCost, WeightTransfer
from rlgraph.backends.frame import Frame, NodeOutput, Part
from rlgraph.backends.in_flight import Things
from rlgraph.backends.sim.batching import BatchedRequest, Ends, ReplicaRows, SharedBatches
from rlgraph.backends.sim.counters import StepCounters
from rlgraph.backends.sim.fake_values import FakeValues
from rlgraph.backends.sim.request_times import RequestTimes
from rlgraph.backends.sim.request_work import (
    batches_worked_on,
    cost_parts,
    deferred_stage_work,
    row_and_token_counts,
    shard_fake_rows,
    work_title,
)
from rlgraph.backends.sim.rereading import reread_unfinished_seconds, rereading_seconds
from rlgraph.backends.sim.sampling_rows import PartEnds, ReplicaParts, SamplingRequest, SamplingRows, last_end
from rlgraph.backends.sim.tail_moves import ends_after_move
from rlgraph.backends.sim.work_log import WorkLog
from rlgraph.backends.sim.works import Work, worker_name
from rlgraph.backends.step import Step
from rlgraph.backends.weight_versions import WeightVersions
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ops.nodes import (
    NODES,
    model_of,
    rows_per_input,
    user_code_of,
)
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.sampling import NOTHING, SamplingResult
from rlgraph.passes.cost.workload import Workload


class SimTransport:
    """Does requests, and moves weights, in the time of a log's clock."""

    def __init__(
        self, program: Program, plan: Plan, queues: DeviceQueues, workload: Workload, seed: int, log: WorkLog
    ) -> None:
        self.program, self.plan, self.queues, self.log = program, plan, queues, log
        self.versions = WeightVersions(program)
        self.standins = FakeValues(program, workload, self.versions, seed)
        self.counts = StepCounters(self.versions)
        self.together = SharedBatches()
        self.times = RequestTimes(program, plan, self.standins, self.counts, log)
        self._sampling: list[SamplingRequest] = []
        """Requests to which newer weights come meanwhile."""

    # Orders

    def run_request(self, order: NodeRequest) -> NodeOutput:
        made = self.standins.make_output(order)
        self.spend_work_time(order, made)
        self.counts.count_request(order, made)
        return made

    def run_fused_trainings(self, orders: Sequence[NodeRequest]) -> Sequence[NodeOutput]:
        made = [self.standins.make_output(order) for order in orders]
        group, step = orders[0].group, orders[0].step.number
        fired = self.log.ready_work()
        with self.queues.acquire_devices(orders[0].devices, rank=step):
            works, spent = list[tuple[str, list[Batch]]](), dict[str, float]()
            for order, output in zip(orders, made, strict=True):
                self.log.observer.node_started(order.node, group.pool)
                works.append(
                    (order.frame.values[model_of(order.node)], batches_worked_on(order.node, order.frame, output))
                )
                for name, seconds in self.times.seconds_before_work(order, works[-1][1]).items():
                    # The trainings come as one request.
                    spent[name] = (
                        max(spent.get(name, 0.0), seconds) if name == "order" else spent.get(name, 0.0) + seconds
                    )
            fusion = self.log.predictor.fused_pipeline(works)
            spent |= cost_parts(fusion.cost)
            rows = max(
                row_and_token_counts(order.node, order.frame, output)[0]
                for order, output in zip(orders, made, strict=True)
            )
            title = "train " + ", ".join(model for model, _ in works)
            op, counts = orders[0].node.op, (rows, 0)
            groups = [*{order.group.name: order.group for order in orders}.values()]
            work = self.log.do_work(title, op, groups, step, fired, spent, counts, stages=lambda: fusion)
            for order in orders:
                self.log.observer.node_done(order.node, work.seconds, work.tokens, group.pool)
        for order, output in zip(orders, made, strict=True):
            self.counts.count_request(order, output)
        return made

    def spend_work_time(self, order: NodeRequest, made: NodeOutput) -> None:
        """Wait for the group's pool, and until the work is done."""
        node, frame, group = order.node, order.frame, order.group
        fired = self.log.ready_work()
        with ExitStack() as stack:
            if group.code:
                # Each place of a pool of cpus is a worker by itself, which works for one request alone.
                copy: int | None = stack.enter_context(self.queues.acquire_cpu(group.pool, order.step.number))
            else:
                copy = order.copy
                stack.enter_context(
                    self.queues.acquire_devices(order.devices, rank=order.step.number, key=order.weights_key)
                )
            self.log.observer.node_started(node, group.pool)
            batches = batches_worked_on(node, frame, made)
            spent = self.times.seconds_before_work(order, batches)
            rows: SamplingRows | None = None
            if NODES[node.op].generates:
                replica_rows = self.times.rows_by_replica(
                    order, shard_fake_rows(made.values[node.name], order), order.copy or 0
                )
                slowest = max((shard.result_alone.cost for shard in replica_rows), key=lambda cost: cost.seconds)
                rows = SamplingRows(replica_rows, last_end, slowest.seconds)
                answering = self.times.other_players_seconds(order, made)
                alone = cost_parts(slowest) | answering
            else:
                alone = cost_parts(self.times.work_cost(order, made, batches))
            worker_group = group if copy is None else replace(group, name=worker_name(group.name, copy))
            counts = row_and_token_counts(node, frame, made)
            with (
                self.allow_newer_weights(order, made, rows),
                self.sample_concurrently(order, rows, sum(spent.values())),
            ):
                if rows is not None and rows.delays_s:
                    # Its rows were sampled with those of others.
                    alone = {"sampling": rows.waits_until} | answering
                    rows.delays_s.clear()
                idle, later = (rows.idle_seconds, rows.delays_s) if rows is not None else (lambda: 0.0, None)
                title, step, stages = work_title(node), order.step.number, deferred_stage_work(order, batches, self.log)
                work = self.log.do_work(
                    title, node.op, [worker_group], step, fired, spent | alone, counts, later, idle, stages
                )
            self.log.observer.node_done(node, work.seconds, work.tokens, group.pool)
            runner = self.plan.group_of_code(user_code_of(node))
            if runner is not None and NODES[node.op].uses_model:
                self.note_environment_pool(order, runner, work, made)

    @contextmanager
    def sample_concurrently(self, order: NodeRequest, rows: SamplingRows | None, after: float) -> Iterator[None]:
        """Sample rows of a request in the context, from so many seconds on, together with those of others."""
        if rows is None or order.weights_key is None:
            yield
            return
        with self.together.sample_in_batch(
            order.devices, BatchedRequest(self.log.clock.now + after, rows.copies, rows.reschedule)
        ):
            yield

    def note_environment_pool(self, order: NodeRequest, runner: Group, acted: Work, made: NodeOutput) -> None:
        """Note what a pool of an environment has done meanwhile."""
        taken = self.standins.episode_seconds(
            made.values[order.node.name], self.standins.random_key(order.node, order.step)
        )
        known = self.log.predictor.host_work_cost(order.node.op, 1).seconds
        busy = min(len(taken), runner.mesh.rank_count)
        names = tuple(worker_name(runner.name, place) for place in range(busy))
        seconds = sum(known if each is None else each for row in taken for each in row) / max(1, busy)
        times = acted.fired, acted.start, acted.end, acted.last_input, acted.waited_for
        counts = acted.rows, 0, max(0.0, acted.seconds - seconds), {"environment": acted.seconds}
        pools = (runner.pool,) * busy
        self.log.note_work(Work(order.node.attr("env"), "call", names, pools, acted.step, *times, *counts))

    def run_in_parts(self, order: NodeRequest, sizes: Sequence[int]) -> Iterator[Part]:
        """Distribute parts to the group's replicas in turn; one is done when its last row has ended on its replica."""
        node, frame, group = order.node, order.frame, order.group
        fired = self.log.ready_work()
        turn = self.queues.acquire_devices(order.devices, rank=order.step.number, key=order.weights_key)
        with turn as devices, ExitStack() as sampling:
            self.log.observer.node_started(node, group.pool)
            output = self.standins.make_output(order)
            spent, began, tokens = (
                self.times.seconds_before_work(order, batches_worked_on(node, frame, output)),
                self.log.clock.now,
                0,
            )
            bounds = list(pairwise(accumulate(sizes, initial=0)))
            slices = [self.slice_frame(node, frame, *bound) for bound in bounds]
            made = [self.standins.make_output(replace(order, frame=part)) for part in slices]
            output, *made = self.give_up_long_rows(order, [output, *made])
            shares = blocks_by_replica(order.expected_lengths, sizes, group.mesh.axis_size("dp"))
            part_rows = [part.values[node.name] for part in made]
            dealt = [
                ReplicaParts(numbers, [part_rows[number] for number in numbers], rows_per_input(node))
                for numbers in shares
            ]
            copies = [
                ReplicaRows(NOTHING, (), ())
                if shard.rows is None
                else self.times.rows_by_replica(order, [shard.rows], copy)[0]
                for copy, shard in enumerate(dealt)
            ]
            rows, ends = SamplingRows(copies, last_end), PartEnds(dealt, rows_per_input(node), node.attr("n"))
            sampling.enter_context(self.allow_newer_weights(order, output, rows))
            sampling.enter_context(self.sample_concurrently(order, rows, sum(spent.values())))
            left, groups = list(range(len(sizes))), [group]
            ending = TailMoves.for_request(order, devices, [part.values[node.name].row_count for part in made], shares)
            while left:
                number = min(left, key=ends(rows.ends).__getitem__)
                left.remove(number)
                rows.begin_part_wait(lambda row_ends, number=number: ends(row_ends)[number])  # type: ignore[misc]
                spent["sampling"] = rows.waits_until - rows.waited_until
                counts, step = row_and_token_counts(node, slices[number], made[number]), order.step.number
                work = self.log.do_work(
                    work_title(node), node.op, groups, step, fired, spent, counts, rows.delays_s, rows.idle_seconds
                )
                rows.waited_until, tokens = rows.waits_until, tokens + work.tokens
                # The next part goes on where this one ended.
                spent, fired = {}, self.log.ready_work()
                self.counts.count_request(order, made[number])
                if ending is not None and (destinations := ending.end_block(number)) is not None:
                    rows.note_rows_moved(ending.here, self.ends_after_move(order, dealt, rows, destinations))
                    groups = [replace(group, name=worker_name(group.name, copy)) for copy in ending.here]
                if not left:
                    sampling.close()
                yield number, made[number]
            self.log.observer.node_done(node, self.log.clock.now - began, tokens, group.pool)

    def give_up_long_rows(self, order: NodeRequest, made: list[NodeOutput]) -> list[NodeOutput]:
        """Return the rows of a request, and of its parts, of which those are given up that are longer than what is
        wanted."""
        if order.wanted_row_count is None:
            return made
        race, name = LengthLimit(order.wanted_row_count), order.node.name
        race.note_ended_rows(made[0].values[name].longest_tokens_of_groups(rows_per_input(order.node)).tolist())
        if race.token_limit is None:
            return made
        return [replace(output, values={name: output.values[name].give_up_longer(race.token_limit)}) for output in made]

    def ends_after_move(
        self, order: NodeRequest, dealt: Sequence[ReplicaParts], rows: SamplingRows, to: Mapping[int, int]
    ) -> Ends:
        """Return when the rows of each replica end, where blocks of them go to other replicas now."""
        model, samples = order.frame.values[model_of(order.node)], order.node.attr("n")
        places: dict[tuple[int, int], int] = {}
        for copy, shard in enumerate(dealt):
            for part, groups in shard.places:
                if part in to:
                    going = (int(group) * samples + sample for group in groups for sample in range(samples))
                    places |= {(copy, row): to[part] for row in going if rows.ends[copy][row] > rows.waited_until}

        def sampling_result(copy: int, prompts: Sequence[float], answers: Sequence[float]) -> SamplingResult:
            return self.log.predictor.sampling_result(model, order.node.op, prompts, answers, 1, copy)

        return ends_after_move(rows.copies, rows.ends, rows.waited_until, places, sampling_result)

    def slice_frame(self, node: Node, frame: Frame, start: int, stop: int) -> Frame:
        """Return a frame with some rows of a node's unit."""
        assert node.unit is not None and node.unit.axis is not None
        return frame.slice_rows(node.unit.axis, np.arange(start, stop), node.inputs)[0]

    def row_loads(self, order: NodeRequest) -> Sequence[float]:
        self.spend_work_time(order, NodeOutput())
        return self.standins.expected_lengths(order)

    def choose_rows(self, order: NodeRequest) -> np.ndarray:
        self.spend_work_time(order, NodeOutput())
        return self.standins.choose_rows(order)

    def finish_step(self, step: Step, things: Things) -> dict[str, float]:
        return self.counts.pop_step_totals(step)

    # Weights

    def send_weights(self, move: WeightTransfer) -> Coming:
        fired = self.log.ready_work()
        with self.queues.acquire_devices(*move.devices):
            with move.offload_change() as shift:
                # To load the model back counts as part of its work, and these weights do not come from the host.
                self.times.woken.add(shift)
            ends = move.sender.name, move.receiver.name
            seconds = self.log.predictor.weight_sync_cost(move.source, *ends, move.replica_count).seconds
            taking = move.receiver
            if move.copy is not None:
                taking = replace(taking, name=worker_name(taking.name, move.copy))
            groups = (move.sender, taking)
            work = self.log.do_work(f"sync {move.source}", "sync", groups, move.step.number, fired, {"sync": seconds})
        moved = TransferCost(work.seconds)
        return lambda: moved

    def prepare_weight_transfer(self, move: WeightTransfer) -> None:
        """Do nothing: a simulation has no connections."""

    def refresh_weights(self, move: WeightTransfer, going: AbstractContextManager[int | None]) -> TransferCost | None:
        """Pause the group until the weights have come, and read its rows again."""
        fired = self.log.ready_work()
        with self.queues.acquire_devices(device_set(move.sender)), going as version:
            if version is None:
                return None
            ends = move.sender.name, move.receiver.name
            seconds = self.log.predictor.weight_sync_cost(move.source, *ends, move.replica_count).seconds
            at_work = self.requests_to_refresh(move)
            # Replicas that take them one after the other pause once each, at about the same time.
            if at_work and (at_work[0].order.copy is not None or not move.copy):
                self.pause_requests(at_work, seconds, self.plan.holding(move.target, move.receiver.name).keep)
            # For the receiver the transfer is part of its work.
            self.log.do_work(f"sync {move.source}", "sync", [move.sender], move.step.number, fired, {"sync": seconds})
        return TransferCost(seconds)

    def requests_to_refresh(self, move: WeightTransfer) -> list[SamplingRequest]:
        """Return the requests that are sampled where weights come."""
        receiver = move.devices[1]
        seated = [(sampling.order.devices, sampling) for sampling in self._sampling]
        return [
            sampling
            for devices, sampling in seated
            if devices.pool == receiver.pool and receiver.places <= devices.places
        ]

    @contextmanager
    def allow_newer_weights(self, order: NodeRequest, made: NodeOutput, rows: SamplingRows | None) -> Iterator[None]:
        """Let newer weights come while a request is done, where they can."""
        if order.refresh_state is None or rows is None:
            yield
            return
        sampling = SamplingRequest(order, made.values[order.node.name], self.log.clock.now, rows.delays_s)
        self._sampling.append(sampling)
        try:
            yield
        finally:
            self._sampling = [other for other in self._sampling if other is not sampling]

    def pause_requests(self, at_work: Sequence[SamplingRequest], seconds: float, kept: bool) -> None:
        """Make requests wait for new weights, and read again what is not kept."""
        order = at_work[0].order
        going = self.together.unfinished_row_tokens(order.devices, self.log.clock.now)
        if going is None:
            reading = 0.0 if kept else sum(reread_unfinished_seconds(self.log, sampling) for sampling in at_work)
        else:
            reading = 0.0 if kept else rereading_seconds(self.log, order, going)
        why = {"sync": seconds, "reading again": reading}
        if going is not None:
            self.together.pause_sampling(order.devices, self.log.clock.now, why)
            return
        for sampling in at_work:
            for name, seconds_more in why.items():
                sampling.delays_s[name] = sampling.delays_s.get(name, 0.0) + seconds_more

    def assign_weights(self, move: WeightTransfer) -> None:
        assert move.update_step is not None
        with self.queues.acquire_devices(device_set(move.receiver), rank=move.update_step.number):
            pass  # This takes no virtual time.

    # The end

    def save(self, model: str, owner: Group, folder: Path) -> None:
        raise NotImplementedError("a simulation has no weights")

    def fail_pending_work(self, why: BaseException) -> None:
        """Do nothing: the clock ends all that wait."""

    def end_processes(self) -> None: ...
