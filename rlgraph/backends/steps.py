"""This module runs phases and steps, the same on every backend, and says what observers of a run are told."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlgraph.backends.executor import Executor
from rlgraph.backends.finish_order import FinishOrder
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.in_flight import Coming, InFlightSteps, Things
from rlgraph.backends.loops import LOOPS
from rlgraph.backends.mismatch import Mismatches
from rlgraph.backends.recording_cleanup import drop_unfinished_steps
from rlgraph.backends.regions import LoopPolicy, run_loop
from rlgraph.backends.samples import RowReader, Sample, SampledTable, ShownSamples, read_shown_samples, sampled_tables
from rlgraph.backends.step import Ended, Step
from rlgraph.backends.trace_notes import TraceNotes
from rlgraph.backends.weight_versions import WeightVersions
from rlgraph.ir.graph import Node, Phase, Program
from rlgraph.ir.types import is_model


class TimelineWatcher(Protocol):
    """What a timeline is drawn by: an observer, a trace."""

    def add_span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        """A process has done some work, in seconds since 1970. Returns its number, for `add_flow`."""
        ...

    def add_flow(self, source: int, target: int, name: str, sent_bytes: int) -> None:
        """Rows or weights that one piece of work made went to another one."""
        ...


class Observer(TimelineWatcher, Protocol):
    """An observer of a run. Pools are named where there are several."""

    @property
    def draws_timeline(self) -> bool:
        """Whether it wants `add_span` and `add_flow` of every process: there may be thousands in a step."""
        ...

    def report_progress(self, what: str) -> None:
        """Tell what the run does now, or how far it is."""
        ...

    def show_note(self, text: str) -> None:
        """Tell a sentence to whoever looks after the run."""
        ...

    def node_started(self, node: Node, pool: str = "") -> None:
        """A node begins to work on a block."""
        ...

    def node_done(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        """A node was done with a block; `tokens`: those that it generated."""
        ...

    def node_progress(self, node: Node, done: int, total: int, unit: str, tokens: int, pool: str = "") -> None:
        """A node has done a part of its block. unit: what is counted, as "row" or "micro-batch"; `tokens`: those that
        it has generated. It comes from any thread, every so often, and not from every engine."""
        ...

    def processes_worked(self, node: Node, pool: str, received_bytes: int, peaks: Mapping[str, int]) -> None:
        """Processes have done their part of a node's work. received_bytes: of rows that others sent them; `peaks`: the
        most memory that each has used since it began."""
        ...

    def weights_sent(
        self, model: str, source: str, destination: str, seconds: float, sent_bytes: int, peak_bytes: int
    ) -> None:
        """A model's weights went from one group of processes to another; `peak_bytes`: buffers of the fullest
        process."""
        ...


class SilentObserver:
    """An observer that does nothing."""

    draws_timeline = True

    def report_progress(self, what: str) -> None: ...

    def show_note(self, text: str) -> None: ...

    def node_started(self, node: Node, pool: str = "") -> None: ...

    def node_done(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None: ...

    def node_progress(self, node: Node, done: int, total: int, unit: str, tokens: int, pool: str = "") -> None: ...

    def processes_worked(self, node: Node, pool: str, received_bytes: int, peaks: Mapping[str, int]) -> None: ...

    def weights_sent(
        self, model: str, source: str, destination: str, seconds: float, sent_bytes: int, peak_bytes: int
    ) -> None: ...

    def add_span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        return 0

    def add_flow(self, source: int, target: int, name: str, sent_bytes: int) -> None: ...


@dataclass(frozen=True)
class StepResult:
    """What one step reported."""

    number: int
    """The number of the step, counted from 1 over all phases."""
    phase: str
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)
    """Numbers about the machine, not about the algorithm: `sync/seconds`, `sync/bytes`, `sync/peak_bytes`;
    `mismatch/kl`, `mismatch/max`."""
    trace: Mapping[str, Any] | None = None
    """Where steps may overlap, what became of its rows: see `rlgraph.backends.trace_notes`."""
    samples: Sequence[Sample] = ()
    """Some of its rows, as a person reads them."""
    spreads: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """How the scores of all its rows spread, as `rlgraph.backends.samples.quantiles` says."""


class StepRunner:
    """Runs a program's phases one after the other. A backend says what nodes do, and what there is to do after a step.

    All that a step has is in its frame; what it leaves to the next one are the values of things.
    """

    program: Program
    seed: int
    executor: Executor
    observer: Observer
    finish_order = FinishOrder()
    values_are_remote = False
    """Whether the values of its frames are in other processes."""
    initial_things: Things
    """The things as they are before the first step."""
    loops: Mapping[str, LoopPolicy] = LOOPS
    """The policy of each loop, by its operation."""
    extra_state_names: Sequence[str] = ()
    """Names of what it keeps from step to step beside the program's things: `last_state_value` has it, and a run that
    goes on gets it."""
    done = 0
    """The number of the last step that was run."""
    last_things: Things | None = None
    """The things as that step left them; None before the first one."""
    record: Path | None = None
    """A folder for all that is sampled."""
    most_samples = 0
    """How many rows of a step it gathers to be shown, at most."""

    def run_steps(self, wanted: int | None) -> Generator[StepResult]:
        """Run phase after phase, then the main step `wanted` times (None: for ever). Called again, it goes on: phases
        that are over do not come again.

        A step's seconds are those from the end of the one before, without the time that the caller takes.
        """
        began = self.now()
        for frame, extra in self.iter_step_frames(self.upcoming_steps(wanted)):
            seconds, step, shown = self.now() - began, frame.step, frame.shown or ShownSamples()
            notes = self.trace_notes.pop_step_trace(step)
            yield StepResult(
                step.number, step.phase, seconds, frame.metrics, extra, notes, shown.samples, shown.spreads
            )
            began = self.now()

    def upcoming_steps(self, wanted: int | None) -> Iterator[Coming]:
        """Yield the steps after the last one that was run."""
        first, before = self.done + 1, 0
        for phase in self.program.phases:
            if phase.steps is not None:
                numbers: Iterable[int] = range(max(first, before + 1), before + phase.steps + 1)
                before += phase.steps
            else:
                numbers = islice(count(max(first, before + 1)), wanted)
            yield from ((phase, number) for number in numbers)

    def iter_step_frames(self, coming: Iterable[Coming]) -> Generator[tuple[Frame, dict[str, float]]]:
        """Run steps, as many at a time as the program lets. Yields for each, in order, its frame, and numbers about the
        machine."""
        for frame, left in self.iter_finished_steps(coming):
            self.done, self.last_things = frame.step.number, left
            frame.shown = self.shown_samples(frame)
            yield frame, self.finish_step(frame.step, left) | self.mismatches.pop_metrics(frame.step)

    def shown_samples(self, frame: Frame) -> ShownSamples:
        """Return what is shown of a finished step's rows. They are read before the step's rows are forgotten."""
        if not self.most_samples:
            return ShownSamples()
        return read_shown_samples(self._sampled[frame.step.phase], frame, self.most_samples, self.remote_row_reader())

    @cached_property
    def _sampled(self) -> Mapping[str, Sequence[SampledTable]]:
        """The tables of each phase that have samples."""
        return {phase.name: sampled_tables(phase.graph) for phase in self.program.phases}

    def iter_finished_steps(self, coming: Iterable[Coming]) -> Iterator[tuple[Frame, Things]]:
        """Run steps, and yield for each, in order, its frame and what it left."""
        things, flights = self.initial_things if self.last_things is None else self.last_things, self._flights
        if self.record is not None and not flights.under_way:
            drop_unfinished_steps(self.record, self.done, things, flights.failed)
        return flights.run(coming, things)

    @cached_property
    def _flights(self) -> InFlightSteps:
        return InFlightSteps(self.program, self.executor, self.new_frame, self.weight_versions, self.publish_weights)

    @cached_property
    def weight_versions(self) -> WeightVersions:
        """The versions of all models."""
        return WeightVersions(self.program, self.loops)

    @cached_property
    def trace_notes(self) -> TraceNotes:
        """The notes on the rows of this process."""
        return TraceNotes(self.program)

    @cached_property
    def mismatches(self) -> Mismatches:
        """What was compared with samplers' log-probabilities in the steps that are not over."""
        return Mismatches()

    def new_frame(self, phase: Phase, number: int) -> Frame:
        """Return a frame for a step of a phase."""
        return Frame(
            phase.graph.value_types(), Step(number, phase.name, self.seed, self._flights.failed), self.values_are_remote
        )

    def fire(self, node: Node, frame: Frame) -> NodeOutput:
        """Do the work of a node on the rows of a frame."""
        policy = self.loops.get(node.op)
        if policy is not None:
            return run_loop(policy, node, frame, self)
        made = self.do_node_work(node, frame)
        self.mismatches.add(frame.step, made.mismatches)
        self.note_changed_models(node, frame)
        return made

    def note_changed_models(self, node: Node, frame: Frame) -> None:
        """Note, when a node is done, the models that have other weights now."""
        for value in node.outputs:
            if is_model(value.type):
                self.trace_notes.note_weights_changed(frame.step, value.type.name)

    def note_unchanged(self, model: str, step: Step) -> None:
        """Note that a model stays as it is where a step might have changed it. The step makes a version all the same:
        which step makes which is read off the program."""
        self.trace_notes.note_weights_changed(step, model, times=0)

    def report_progress(self, text: str) -> None:
        """Tell the observer how far the run is."""
        self.observer.report_progress(text)

    def report_ended_batches(self, step: Step, data: str, begun: int, batches: Sequence[Ended]) -> None:
        """Note and record the batches of a `collect` that ended in a step."""
        self.trace_notes.note_batches_ended(step, data, batches)
        self.finish_order.record_collect(step.number, data, begun, batches)

    def last_state_value(self, name: str) -> Any:
        """Return the value of a part of the step state as the last step that is over left it, in this process."""
        assert self.last_things is not None
        return self.last_things[name]

    def resume_after(self, number: int, things: Things) -> None:
        """Take a step for the last one that was run, which left these things."""
        self.done, self.last_things = number, {**self.initial_things, **things}
        for name in self.weight_versions.newest:
            self.weight_versions.newest[name] = self.weight_versions.version_after(name, number)

    # What a backend defines

    def do_node_work(self, node: Node, frame: Frame) -> NodeOutput:
        """Do the work of a node that is no loop."""
        raise NotImplementedError

    def choose_rows(self, node: Node, frame: Frame) -> np.ndarray:
        """Return which rows of a frame a node that chooses rows leaves, int64."""
        raise NotImplementedError

    def finish_step(self, step: Step, things: Things) -> dict[str, float]:
        """Note that a step is over, and left these things; all else that it made can be forgotten. Returns numbers
        about the machine."""
        raise NotImplementedError

    def remote_row_reader(self) -> RowReader:
        """Return what reads the values of a frame."""
        raise NotImplementedError

    def publish_weights(self, model: str) -> None:
        """Note that there is a new version of a model, while steps are in flight."""

    def now(self) -> float:
        """Return the time in seconds."""
        return time.perf_counter()
