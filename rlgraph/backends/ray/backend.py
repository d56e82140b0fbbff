"""A run on a cluster: the controller fires nodes on groups of processes. It sees references and counts, never rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlgraph.backends.clocks import InLine, Queues, Threads
from rlgraph.backends.executor import Executor
from rlgraph.backends.local.session import Settings, width
from rlgraph.backends.placed import Placed, block_of
from rlgraph.backends.ray.cluster import start
from rlgraph.backends.ray.dispatch import Dispatch
from rlgraph.backends.ray.processes import What
from rlgraph.backends.ray.remote import PieceRef, Single
from rlgraph.backends.ray.rows import live
from rlgraph.backends.ray.weights import Weights
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer, Silent, Things
from rlgraph.enginespec.registry import embedded
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import HOST, Plan


class RayBackend(Placed):
    """Runs a program by a plan."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        settings: Settings,
        observer: Observer | None = None,
        *,
        address: str | None = None,
        debug: bool = False,
        seconds: float = 1800.0,
        memory: int = 0,
    ) -> None:
        """Starts every process of the plan and loads its models.

        address: of a Ray cluster; None starts Ray on this machine. debug: all processes are objects in this one, one
        for each group, with the embedded engine. seconds: longest wait for an answer. memory: bytes that the
        processes need together at least. Raises ProgramError for what cannot be opened, RunError for a cluster that
        cannot hold the plan.
        """
        plan = plan.alone(embedded().name) if debug else plan
        self.program, self.plan, self.seed, self.replays = program, plan, settings.seed, settings.replay is not None
        self.observer = observer or Silent()
        self.dtype = width(program)
        self.processes = start(
            program,
            plan,
            settings,
            address=address,
            debug=debug,
            seconds=seconds,
            memory=memory,
            note=self.observer.opening,
        )
        try:
            self.observer.opening("models")
            things = self.processes.open(plan)
            # In this process a call is a call: nodes that are fired in line come out in the order of a debugger.
            clock = InLine() if debug else Threads()
            queues = Queues(plan, clock)
            self.dispatch = Dispatch(program, self.processes, queues, self.observer)
            self.weights = Weights(program, plan, self.processes, queues, self.observer)
        except BaseException:
            self.processes.stop()
            raise
        self.first: dict[str, Any] = {model.name: model.name for model in program.models}
        self.first |= {name: Single(PieceRef((0, 0, name), (HOST, 0), 0)) for name in things}
        # What `collect` has left over is a frame of references: the controller keeps it itself.
        self.first |= {each.name: None for each in program.outside if each.record.name == "surplus"}
        self.executor = Executor(self, settings.block or block_of(plan), clock)

    # Steps

    def finish(self, step: Step, things: Things) -> dict[str, float]:
        told = self.weights.end_step()
        self.dispatch.end_step()
        needed = live(things.values())
        who = self.processes.who
        references = [self.processes.call(each, "retain", step, sorted(needed.get(each, ()))) for each in who]
        self.processes.get(references, What(who, "the end of the step"))
        return told

    def trained(self) -> dict[str, int]:
        """For each model how many optimizer steps it took."""
        return dict(self.weights.updates)

    def save(self, model: str, folder: Path) -> None:
        """Writes a folder that a model source can name; also after a failure, if the model is whole."""
        self.processes.go_on()
        self.weights.save(model, folder.resolve())

    def abort(self, why: BaseException) -> None:
        """Whoever waits for an answer gives up."""
        self.processes.give_up(why)

    def close(self) -> None:
        self.processes.stop()
