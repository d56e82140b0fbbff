"""The transport of a Ray cluster: requests go to processes, rows and weights from process to process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from rlgraph.backends.collect_batches import last_settled_step
from rlgraph.backends.device_queues import DeviceQueues
from rlgraph.backends.distributed.transport import Coming, NodeRequest, TransferCost, WeightTransfer
from rlgraph.backends.frame import NodeOutput, Part
from rlgraph.backends.in_flight import Things
from rlgraph.backends.ray.calls import Calls, replicas_of
from rlgraph.backends.ray.dispatch import Dispatcher
from rlgraph.backends.ray.fused_trainings import run_fused_trainings
from rlgraph.backends.ray.lost_replicas import LostReplicas
from rlgraph.backends.ray.model_folders import ModelFolders
from rlgraph.backends.ray.offload import OffloadCoordinator
from rlgraph.backends.ray.processes import Processes
from rlgraph.backends.ray.request_parts import run_in_parts
from rlgraph.backends.ray.row_ledger import live_pieces
from rlgraph.backends.ray.transfers import Transfers
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer
from rlgraph.backends.trace_notes import TraceNotes
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Plan


class RayTransport:
    """Carries requests, rows and weights."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        processes: Processes,
        queues: DeviceQueues,
        observer: Observer,
        notes: TraceNotes,
        record: Path | None = None,
        verify_every: int = 1,
    ) -> None:
        self.plan, self.processes = plan, processes
        self.sleeping = OffloadCoordinator(processes, observer)
        self.losses = LostReplicas(program, plan, record)
        self.dispatch = Dispatcher(program, plan, processes, queues, observer, notes, self.sleeping, self.losses)
        self.transfers = Transfers(plan, processes, queues, observer, self.sleeping, self.losses, verify_every)
        self.losses.lost = lambda group: self.transfers.forget_plans()
        self.folders = ModelFolders(program, plan, processes, queues)
        self._forgetting: Calls[None] | None = None
        """Calls to forget the rows of the last finished step."""
        self._over: list[Step] = []
        """Finished steps whose rows have not been forgotten."""

    def run_request(self, order: NodeRequest) -> NodeOutput:
        return self.dispatch.run_request(order)

    def run_fused_trainings(self, orders: Sequence[NodeRequest]) -> Sequence[NodeOutput]:
        return run_fused_trainings(self.dispatch, orders)

    def run_in_parts(self, order: NodeRequest, sizes: Sequence[int]) -> Iterator[Part]:
        return run_in_parts(self.dispatch, order, sizes)

    def choose_rows(self, order: NodeRequest) -> np.ndarray:
        return self.dispatch.choose_rows(order)

    def row_loads(self, order: NodeRequest) -> Sequence[float]:
        return self.dispatch.row_loads(order)

    def send_weights(self, move: WeightTransfer) -> Coming:
        return self.transfers.send_weights(move)

    def prepare_weight_transfer(self, move: WeightTransfer) -> None:
        self.transfers.prepare_weight_transfer(move)

    def refresh_weights(self, move: WeightTransfer, going: AbstractContextManager[int | None]) -> TransferCost | None:
        return self.transfers.refresh_weights(move, going)

    def assign_weights(self, move: WeightTransfer) -> None:
        self.transfers.assign_weights(move)

    def finish_step(self, step: Step, things: Things) -> dict[str, float]:
        self.losses.things = things
        metrics = self.sleeping.take_step_metrics(step)
        self._over.append(step)
        step = last_settled_step(step, things)
        for finished in [finished for finished in self._over if finished.number <= step.number]:
            self.dispatch.forget_step(finished)
            self._over.remove(finished)
        if self._forgetting is not None:
            # Processes that were lost since then have forgotten everything anyway.
            self._forgetting.get("the end of the step before", losing=lambda dead: None)
        needed, calls = live_pieces(things.values()), Calls[None](self.processes)
        for group in self.plan.groups:
            for leader, others in [replicas_of(group)[replica] for replica in self.losses.living_replicas(group)]:
                calls.call_one(leader, Worker.forget_step_except, step, sorted(needed.get(leader, ())))
                for who in others:
                    if who in needed:
                        calls.call_other_ranks((leader, (who,)), Worker.forget_step_except, step, sorted(needed[who]))
                if rest := tuple(who for who in others if who not in needed):
                    calls.call_other_ranks((leader, rest), Worker.forget_step_except, step, [])
        # The next step does not wait for these calls: their answers are taken at its end.
        self._forgetting = calls
        return metrics

    def forget_groups(self, groups: Collection[str]) -> None:
        """Forget what the replaced processes of some groups had. No step is in flight."""
        self._forgetting = None
        self.losses.count_as_living(groups)
        self.dispatch.ledger.forget_groups(groups)
        self.dispatch.links.clear()
        self.transfers.forget_plans()

    def save(self, model: str, owner: Group, folder: Path) -> None:
        self.processes.allow_calls()
        self.folders.save(model, owner, folder)

    def fail_pending_work(self, why: BaseException) -> None:
        self.processes.fail_waiters(why)

    def end_processes(self) -> None:
        self.processes.stop()
