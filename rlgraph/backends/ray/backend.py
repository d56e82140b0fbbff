"""A run on a cluster: the controller fires nodes on groups of processes. It sees references and counts, never rows."""

from __future__ import annotations

from rlgraph.backends.clocks import InLine, Threads
from rlgraph.backends.endings import Endings
from rlgraph.backends.notes import Notes
from rlgraph.backends.placed.backend import Placed
from rlgraph.backends.process.session import Settings
from rlgraph.backends.ray.cluster import start
from rlgraph.backends.ray.remote import PieceRef, Single
from rlgraph.backends.ray.transport import RayTransport
from rlgraph.backends.steps import Observer, Silent
from rlgraph.backends.turns import Queues
from rlgraph.enginespec.registry import embedded
from rlgraph.ir.graph import Program, numbered
from rlgraph.ir.plan import HOST, Plan
from rlgraph.passes.accumulate import accumulated


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
        program = numbered(accumulated(program, plan))
        observer = observer or Silent()
        self.processes = start(
            program,
            plan,
            settings,
            address=address,
            debug=debug,
            seconds=seconds,
            memory=memory,
            note=observer.opening,
        )
        try:
            observer.opening("models")
            things = self.processes.open(plan)
        except BaseException:
            self.processes.stop()
            raise
        # In this process a call is a call: nodes that are fired in line come out in the order of a debugger.
        clock = InLine() if debug else Threads()
        self.notes = Notes(program)
        self.endings = Endings(settings.record, settings.replay)
        super().__init__(
            program,
            plan,
            RayTransport(program, plan, self.processes, Queues(plan, clock), observer, self.notes),
            clock,
            observer,
            {name: Single(PieceRef((0, 0, name), (HOST, 0), 0)) for name in things},
            seed=settings.seed,
            block=settings.block,
            replays=settings.replay is not None,
        )
