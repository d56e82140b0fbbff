"""This module lets time pass in a simulation, and logs what it passed with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rlgraph.backends.sim.works import TimelineWriter, Work
from rlgraph.backends.steps import Observer
from rlgraph.backends.virtual_clock import VirtualClock
from rlgraph.ir.plan import Group
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.fused_pipelines import FusedPipeline
from rlgraph.passes.cost.sampling import EpisodeRows, SamplingResult


class CostPredictor(Protocol):
    """What each piece of work takes; `rlgraph.passes.cost.predict.Predictor` is one."""

    def work_cost(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
        """Predict work of a whole group, or of so many of its data-parallel replicas, which share the rows."""
        ...

    def fused_pipeline(self, works: Sequence[tuple[str, Sequence[Batch]]]) -> FusedPipeline:
        """Predict trainings that share a pipeline: their models, each with its rows. A training alone takes what it has
        by itself."""
        ...

    def sampling_result(
        self,
        model: str,
        operation: str,
        prompts: Sequence[float],
        answers: Sequence[float],
        samples: int,
        copy: int,
        played: EpisodeRows | None = None,
    ) -> SamplingResult:
        """Predict one replica that samples, with its rows alone: tokens of each row, so many samples for each
        prompt. played: how they are episodes."""
        ...

    def host_work_cost(self, op: str, count: float) -> Cost:
        """Predict work on so many rows by a process that has no model."""
        ...

    def weight_sync_cost(self, model: str, source: str, target: str, copies: int | None = None) -> Cost:
        """Predict a transfer of a model's weights from one group to another, or to so many of its replicas."""
        ...

    def row_transfer_cost(self, source: str, target: str, tokens: float, copies: int | None = None) -> Cost:
        """Predict a transfer of rows from one group to another, or to so many of its replicas."""
        ...

    def offload_round_trip_cost(self, model: str, group: str, operation: str, batches: Sequence[Batch]) -> Cost:
        """Predict the way of a model to the devices and back, which is off-loaded while its group does not work with
        it."""
        ...

    def request_cost(self, group: str, copies: int | None = None) -> Cost:
        """Predict the time until a group, or so many of its replicas, has its request, and has answered."""
        ...


@dataclass(frozen=True, slots=True)
class ReadyWork:
    """A work that has all its inputs, and waits for its turn."""

    ready_at: float
    last_input: Work | None
    """The work that made the last of them."""


class WorkLog:
    """Lets time pass, and keeps what was done in it."""

    def __init__(self, clock: VirtualClock, predictor: CostPredictor, observer: Observer) -> None:
        self.clock, self.predictor, self.observer = clock, predictor, observer
        self.works: list[Work] = []
        self._teller = TimelineWriter(observer)

    def ready_work(self) -> ReadyWork:
        """Return a work whose inputs have just come."""
        return ReadyWork(self.clock.now, self._cause())

    def _cause(self) -> Work | None:
        cause = self.clock.wait_cause
        assert cause is None or isinstance(cause, Work)
        return cause

    def do_work(
        self,
        name: str,
        op: str,
        groups: Sequence[Group],
        step: int,
        fired: ReadyWork,
        parts: Mapping[str, float],
        counts: tuple[int, int] = (0, 0),
        later: dict[str, float] | None = None,
        idle: Callable[[], float] = lambda: 0.0,
        stages: Callable[[], FusedPipeline] | None = None,
    ) -> Work:
        """Do a work of groups whose pools the caller has: it begins now, and is over when this returns. `counts`: rows
        and tokens. `later`: what others add to its parts meanwhile. `idle`: returns at the end for how many seconds
        a replica had nothing to do. `stages`: returns what the stages of a pipeline do."""
        clock = self.clock
        start, after = clock.now, self._cause()
        clock.sleep(sum(parts.values()))
        while later:
            added = dict(later)
            later.clear()
            clock.sleep(sum(added.values()))
            parts = {name: parts.get(name, 0.0) + added.get(name, 0.0) for name in {**parts, **added}}
        names, pools = tuple(group.name for group in groups), tuple(group.pool for group in groups)
        times, remaining = (fired.ready_at, start, clock.now, fired.last_input, after), (idle(), dict(parts))
        work = Work(name, op, names, pools, step, *times, *counts, *remaining, stages=stages)
        clock.note_wait_cause(work)
        self.note_work(work)
        return work

    def note_work(self, work: Work) -> None:
        """Note a work that is done."""
        self.works.append(work)
        self._teller.write_work(work)
