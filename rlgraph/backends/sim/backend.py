"""This module runs a plan without doing its work: its nodes fire in the order of a run, and it tells when each would
begin and end."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from rlgraph.backends.device_queues import DeviceQueues, DeviceSet, HeldDevices
from rlgraph.backends.distributed.backend import DistributedBackend
from rlgraph.backends.in_flight import state_name
from rlgraph.backends.sim.fake_rows import FakeRows
from rlgraph.backends.sim.transport import SimTransport
from rlgraph.backends.sim.work_log import CostPredictor, WorkLog
from rlgraph.backends.sim.works import Work
from rlgraph.backends.steps import Observer, SilentObserver
from rlgraph.backends.virtual_clock import VirtualClock
from rlgraph.ir.graph import Program, Value, with_node_ids
from rlgraph.ir.plan import HOST, Plan
from rlgraph.ir.types import StateHandle
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.rewrites.accumulate import with_accumulation
from rlgraph.passes.rewrites.admission_order import with_admission


class SimBackend(DistributedBackend):
    """Runs a program by a plan in virtual time. Its steps take the seconds that a predictor says."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        predictor: CostPredictor,
        workload: Workload,
        seed: int = 0,
        observer: Observer | None = None,
        turns: bool = True,
    ) -> None:
        """turns: whether works of a pool take turns; without, a work waits only for what it needs."""
        program, observer = (
            with_node_ids(with_admission(with_accumulation(program, plan), plan)),
            observer or SilentObserver(),
        )
        self.clock = VirtualClock()
        self.log = WorkLog(self.clock, predictor, observer)
        queues = DeviceQueues(plan, self.clock) if turns else NoQueues(plan, self.clock)
        transport = SimTransport(program, plan, queues, workload, seed, self.log)
        things = (value for phase in program.phases for value in phase.graph.inputs)
        first = {state_name(value): _first(value) for value in things}
        super().__init__(program, plan, transport, self.clock, observer, first, seed=seed)

    @property
    def works(self) -> list[Work]:
        """What was done in all steps, in the order in which it ended."""
        return self.log.works

    def now(self) -> float:
        return self.clock.now


class NoQueues(DeviceQueues):
    """Queues that never wait: a pool does all works at the same time, as if each had devices of its own."""

    @contextmanager
    def acquire_devices(self, *wanted: DeviceSet, rank: int = 0, key: Hashable = None) -> Iterator[HeldDevices]:
        yield HeldDevices({})

    @contextmanager
    def acquire_cpu(self, pool: str, rank: int = 0) -> Iterator[int]:
        yield 0


def _first(thing: Value) -> Any:
    """Return the value of a thing that lives across steps before the first one."""
    if isinstance(thing.type, StateHandle):
        return 0 if thing.type.kind == "cursor" else FakeRows(thing.type.name, HOST)
    return FakeRows(thing.name, HOST)
