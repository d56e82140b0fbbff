"""A run that takes no time: the nodes of a plan in the order of a run, and when each would begin and end."""

from __future__ import annotations

from typing import Any

import torch

from rlgraph.backends.clocks import Queues, Virtual
from rlgraph.backends.executor import Executor
from rlgraph.backends.placed import Placed, block_of
from rlgraph.backends.sim.held import Held
from rlgraph.backends.sim.log import Log, Prediction
from rlgraph.backends.sim.orders import SimOrders
from rlgraph.backends.sim.weights import Counted
from rlgraph.backends.sim.works import Work
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer, Silent, Things
from rlgraph.cost.tasks import Workload
from rlgraph.ir.graph import Program, Value
from rlgraph.ir.plan import HOST, Plan
from rlgraph.ir.types import Handle


class SimBackend(Placed):
    """Runs a program by a plan in virtual time. Its steps take the seconds that a predictor says."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        predictor: Prediction,
        workload: Workload,
        seed: int = 0,
        observer: Observer | None = None,
    ) -> None:
        self.program, self.plan, self.seed = program, plan, seed
        self.observer = observer or Silent()
        self.dtype = torch.float32
        self.clock = Virtual()
        self.log = Log(self.clock, predictor, self.observer)
        queues = Queues(plan, self.clock)
        self.dispatch = self.orders = SimOrders(program, queues, workload, seed, self.log)
        self.weights = Counted(program, plan, queues, self.log)
        things = (value for phase in program.phases for value in phase.graph.inputs)
        self.first = {_name(value): self._first(value) for value in things}
        self.executor = Executor(self, block_of(plan), self.clock)

    @property
    def works(self) -> list[Work]:
        """What was done in all steps, in the order in which it ended."""
        return self.log.works

    def now(self) -> float:
        return self.clock.now

    def finish(self, step: Step, things: Things) -> dict[str, float]:
        """Rows and tokens that the step was about."""
        return self.weights.end_step() | self.orders.end_step()

    def abort(self, why: BaseException) -> None:
        """The clock ends what waits."""

    def _first(self, thing: Value) -> Any:
        """What lives across steps, as it is before the first one."""
        if not isinstance(thing.type, Handle):
            return Held(thing.name, HOST)
        if thing.type.kind == "model":
            return thing.type.name
        if thing.type.kind == "cursor":
            return 0
        surplus = any(each.name == thing.type.name and each.record.name == "surplus" for each in self.program.outside)
        return None if surplus else Held(thing.type.name, HOST)


def _name(thing: Value) -> str:
    return thing.type.name if isinstance(thing.type, Handle) else thing.name.rsplit("@", 1)[0]
