"""Runs a program on a cluster: the controller fires nodes on groups of processes, and sees references and counts, never
rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlgraph.backends.clocks import InlineClock, ThreadClock
from rlgraph.backends.device_queues import DeviceQueues
from rlgraph.backends.distributed.backend import DistributedBackend
from rlgraph.backends.enginespec.registry import embedded_engine
from rlgraph.backends.enginespec.start_demand import StartDemand
from rlgraph.backends.finish_order import FinishOrder
from rlgraph.backends.frame import Frame
from rlgraph.backends.hard.node import HardNodes
from rlgraph.backends.in_flight import Coming, Things
from rlgraph.backends.ray.agent_placement import agent_placement_errors
from rlgraph.backends.ray.cluster import start_processes
from rlgraph.backends.ray.cluster_checkpoints import ClusterCheckpoints
from rlgraph.backends.ray.failures import CallContext, is_process_lost
from rlgraph.backends.ray.progress_poll import ProgressPoll
from rlgraph.backends.ray.retries import RepeatableSteps, can_replace
from rlgraph.backends.ray.row_refs import PieceRef, ValueRef
from rlgraph.backends.ray.shown_rows import ShownRowReader
from rlgraph.backends.ray.stop_text_errors import stop_text_errors
from rlgraph.backends.ray.transport import RayTransport
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.samples import ShownSamples
from rlgraph.backends.saved_models import PendingSave, SavedModel
from rlgraph.backends.steps import Observer, SilentObserver
from rlgraph.backends.trace_notes import TraceNotes
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import ProgramError, RunError
from rlgraph.ir.graph import Program, with_node_ids
from rlgraph.ir.plan import HOST, Plan
from rlgraph.passes.placement.shared_processes import groups_of_work, shared_process_errors
from rlgraph.passes.rewrites.accumulate import with_accumulation
from rlgraph.passes.rewrites.admission_order import with_admission

HISTORY = "the history of lengths"
"""The key of the history of answer lengths in checkpoints."""


class RayBackend(DistributedBackend):
    """Runs a program by its plan, in Ray actors or in this process."""

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
        repeats: int = 0,
        verify_every: int = 1,
        say: Callable[[str], None] = lambda text: None,
        hard: HardNodes | None = None,
        demands: Mapping[tuple[str, str], StartDemand] | None = None,
    ) -> None:
        """Start every process of the plan and load its models.

        address: of a Ray cluster; None starts Ray on this machine. debug: all processes are objects in this one, one
        for each group, with the embedded engine. seconds: longest wait for an answer. memory: bytes that the processes
        need together at least. repeats: how often steps are run again automatically after processes that only sample
        were lost. verify_every: of so many transfers of the same weights one is verified; 0: none. say: receives a
        message about each such repeat. hard: devices that the processes are held to.
        demands: what engines want of them when they start, by group and model.

        Raises ProgramError for what cannot be opened, RunError for a cluster that cannot hold the plan.
        """
        plan = plan.one_rank_plan(embedded_engine().name) if debug else plan
        if problems := [
            *agent_placement_errors(program, plan),
            *shared_process_errors(program, groups_of_work(plan)),
            *stop_text_errors(program, plan, settings.folders),
        ]:
            raise ProgramError(problems)
        program = with_node_ids(with_admission(with_accumulation(program, plan), plan))
        observer = observer or SilentObserver()
        self.processes = start_processes(
            program,
            plan,
            settings,
            address=address,
            debug=debug,
            seconds=seconds,
            memory=memory,
            note=observer.report_progress,
            hard=hard,
            demands=demands,
        )
        try:
            observer.report_progress("models")
            things = self.processes.load_models(plan)
        except BaseException:
            self.processes.stop()
            raise
        # With everything in this process nodes run one after the other, which a debugger can follow.
        clock = InlineClock() if debug else ThreadClock()
        self.trace_notes, self.record = TraceNotes(program), settings.record
        self.finish_order = FinishOrder(settings.record, settings.replay)
        queues = DeviceQueues(plan, clock)
        self.saves, self._broken = ClusterCheckpoints(plan, self.processes), False
        self.repeats, self.say = repeats, say
        self.orders = RayTransport(
            program, plan, self.processes, queues, observer, self.trace_notes, settings.record, verify_every
        )
        self.processes.waited = ProgressPoll(plan, self.processes, observer).poll_progress
        self.orders.losses.allowed, self.orders.losses.say = self._once_more, say
        super().__init__(
            program,
            plan,
            self.orders,
            clock,
            observer,
            {name: ValueRef(PieceRef((0, 0, name), (HOST, 0), 0)) for name in things},
            seed=settings.seed,
            block=settings.block,
            replays=settings.replay is not None,
        )

    def fail_pending_work(self, why: BaseException) -> None:
        self._broken = True
        super().fail_pending_work(why)

    def remote_row_reader(self) -> ShownRowReader:
        return ShownRowReader(self.processes)

    def shown_samples(self, frame: Frame) -> ShownSamples:
        try:
            return super().shown_samples(frame)
        except RunError:
            # The step is over: what was lost with a process is seen where the next step needs it.
            return ShownSamples()

    # Lost processes

    def _once_more(self) -> bool:
        """Return whether the run may go on automatically after processes were lost, and count it."""
        may = self.repeats > 0
        self.repeats -= may
        return may

    def iter_finished_steps(self, coming: Iterable[Coming]) -> Iterator[tuple[Frame, Things]]:
        steps = RepeatableSteps(coming)
        while True:
            try:
                for frame, left in super().iter_finished_steps(steps.unfinished_steps()):
                    steps.drop_first()
                    yield frame, left
                return
            except RunError as error:
                if not self.repeats or not is_process_lost(error) or not self._replaced(error):
                    raise
                self.repeats -= 1

    def _replaced(self, error: RunError) -> bool:
        """Return whether the steps in flight can be run again: no model has changed in them, all that was lost can be
        rebuilt, and new processes have taken the places of the lost ones."""
        if not self.models_are_at_step_end():
            return False
        lost = {group for group, _ in self.processes.gone}
        things = self.initial_things if self.last_things is None else self.last_things
        if not lost or not can_replace(self.plan, lost, self.weights.changing, things):
            return False
        try:
            left = tuple(who for who in self.processes.who if who[0] not in lost)
            request = CallContext(left, "the end of what has failed")
            ready = self.processes.call_idle(
                left, lambda answers: False, request, Worker.wait_until_idle, self._flights.failed
            )
            # A process that was told to change a model earlier may have begun to do so meanwhile.
            if len(ready) < len(left) or not self.models_are_at_step_end():
                return False
            self.processes.replace_groups(self.plan, lost)
        except RunError:
            return False
        self.orders.forget_groups(lost)
        self.weights.forget_held_weights()
        self._broken = False
        groups = ", ".join(f"`{name}`" for name in sorted(lost))
        self.say(f"{error}\nother processes have taken the places of {groups}: step {self.done + 1} begins again")
        return True

    # Checkpoints

    @property
    def extra_state_names(self) -> Sequence[str]:  # type: ignore[override]
        return (HISTORY,) if any(admission.by == "longest" for admission in self.plan.admits) else ()

    def source_row_counts(self) -> dict[str, int | None]:
        """Return how many rows each data source has, where that is known."""
        return self.saves.source_row_counts()

    def overlong_notes(self) -> list[str]:
        """Return sentences that say what was done with rows that are too long."""
        return self.saves.overlong_notes()

    def models_are_at_step_end(self) -> bool:
        """Return whether the models are as the last finished step left them: no later step has begun to change one, and
        all processes that hold them are alive."""
        if self._broken:
            self.processes.allow_calls()
        try:
            return self.saves.last_changed_step() <= self.done
        except RunError:
            return False

    def hold_weights(self, model: str) -> PendingSave | None:
        """Hold what the last step left of a model, in the processes that have it; None if it is as it was loaded.
        Raises HalfUpdatedModel, RunError."""
        if model not in dict(self.plan.owners):
            return None
        return self.saves.hold_weights(
            model, self.plan.owner(model), self.done, self.weight_versions.version_after(model, self.done)
        )

    def last_state_value(self, name: str) -> Any:
        if name == HISTORY:
            return self.saves.answer_lengths()
        return self.saves.fetch_value(super().last_state_value(name))

    def resume(self, number: int, things: Things, models: Mapping[str, SavedModel]) -> None:
        """Go on after step `number`, in place of the first one. Raises EngineError for weights of another model."""
        for name, saved in models.items():
            self.saves.restore_model(name, self.plan.owner(name), saved)
            self.weights.note_restored(name, saved.updates, saved.past)
        things = dict(things)
        if HISTORY in things:
            self.saves.set_answer_lengths(things.pop(HISTORY))
        placed = {
            name: self.saves.place_value(name, value, self.initial_things[name]) for name, value in things.items()
        }
        self.resume_after(number, placed)
