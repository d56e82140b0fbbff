"""The transport of a Ray cluster: requests go to processes, rows and weights from process to process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from rlgraph.backends.batches import last_settled_step
from rlgraph.backends.distributed.transport import Coming, NodeRequest, TransferCost, WeightTransfer
from rlgraph.backends.frame import NodeOutput, Part
from rlgraph.backends.in_flight import Things
from rlgraph.backends.notes import TraceNotes
from rlgraph.backends.ray.calls import Calls, replicas_of
from rlgraph.backends.ray.dispatch import Dispatcher
from rlgraph.backends.ray.folders import ModelFolders
from rlgraph.backends.ray.fused import fire_fused
from rlgraph.backends.ray.losses import LostReplicas
from rlgraph.backends.ray.offload import OffloadCoordinator
from rlgraph.backends.ray.parts import fire_parts
from rlgraph.backends.ray.processes import Processes
from rlgraph.backends.ray.rows import live_pieces
from rlgraph.backends.ray.transfers import Transfers
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer
from rlgraph.backends.turns import DeviceQueues
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
    ) -> None:
        self.plan, self.processes = plan, processes
        self.sleeping = OffloadCoordinator(processes, observer)
        self.losses = LostReplicas(program, plan, record)
        self.dispatch = Dispatcher(program, plan, processes, queues, observer, notes, self.sleeping, self.losses)
        self.transfers = Transfers(plan, processes, queues, observer, self.sleeping, self.losses)
        self.losses.lost = lambda group: self.transfers.forget()
        self.folders = ModelFolders(program, plan, processes, queues)
        self._forgetting: Calls[None] | None = None
        """Calls to forget the rows of the last finished step."""
        self._over: list[Step] = []
        """Finished steps whose rows have not been forgotten."""

    def fire(self, order: NodeRequest) -> NodeOutput:
        return self.dispatch.fire(order)

    def fire_together(self, orders: Sequence[NodeRequest]) -> Sequence[NodeOutput]:
        return fire_fused(self.dispatch, orders)

    def parts(self, order: NodeRequest, sizes: Sequence[int]) -> Iterator[Part]:
        return fire_parts(self.dispatch, order, sizes)

    def choose(self, order: NodeRequest) -> np.ndarray:
        return self.dispatch.choose(order)

    def row_weights(self, order: NodeRequest) -> Sequence[float]:
        return self.dispatch.row_weights(order)

    def send_weights(self, move: WeightTransfer) -> Coming:
        return self.transfers.move(move)

    def connect(self, move: WeightTransfer) -> None:
        self.transfers.connect(move)

    def refresh(self, move: WeightTransfer, going: AbstractContextManager[int | None]) -> TransferCost | None:
        return self.transfers.refresh(move, going)

    def assign_weights(self, move: WeightTransfer) -> None:
        self.transfers.adopt(move)

    def finish(self, step: Step, things: Things) -> dict[str, float]:
        self.losses.things = things
        metrics = self.sleeping.finish(step)
        self._over.append(step)
        step = last_settled_step(step, things)
        for finished in [finished for finished in self._over if finished.number <= step.number]:
            self.dispatch.finish(finished)
            self._over.remove(finished)
        if self._forgetting is not None:
            # Processes that were lost since then have forgotten everything anyway.
            self._forgetting.get("the end of the step before", losing=lambda dead: None)
        needed, calls = live_pieces(things.values()), Calls[None](self.processes)
        for group in self.plan.groups:
            for leader, others in [replicas_of(group)[replica] for replica in self.losses.living_replicas(group)]:
                calls.call_one(leader, Worker.retain, step, sorted(needed.get(leader, ())))
                for who in others:
                    if who in needed:
                        calls.call_others((leader, (who,)), Worker.retain, step, sorted(needed[who]))
                if rest := tuple(who for who in others if who not in needed):
                    calls.call_others((leader, rest), Worker.retain, step, [])
        # The next step does not wait for these calls: their answers are taken at its end.
        self._forgetting = calls
        return metrics

    def forget(self, groups: Collection[str]) -> None:
        """Forget what the replaced processes of some groups had. No step is in flight."""
        self._forgetting = None
        self.losses.count_as_living(groups)
        self.dispatch.ledger.forget(groups)
        self.dispatch.links.clear()
        self.transfers.forget()

    def save(self, model: str, owner: Group, folder: Path) -> None:
        self.processes.allow_calls()
        self.folders.save(model, owner, folder)

    def abort(self, why: BaseException) -> None:
        self.processes.fail_waiters(why)

    def end_processes(self) -> None:
        self.processes.stop()
