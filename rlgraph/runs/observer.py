"""The observer of a run: it makes events of what a backend tells, writes the trace, and lets Ctrl-C end a run between
two updates."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlgraph.errors.lookups import ByName
from rlgraph.ir.graph import Node
from rlgraph.ir.work_names import work_key
from rlgraph.ops import NODES
from rlgraph.runs.events import (
    Event,
    EventStream,
    Note,
    Opening,
    RunStarted,
    StepDone,
    WeightsSent,
    WorkDone,
    WorkProgress,
    WorkStarted,
)
from rlgraph.runs.options import LOCAL
from rlgraph.runs.progress import Display
from rlgraph.runs.row_ages import RowAges
from rlgraph.runs.step_measures import THIS_PROCESS, StepMeter
from rlgraph.runs.timeline import Timeline

if TYPE_CHECKING:
    from rlgraph.backends.steps import StepResult


class InterruptHandler:
    """A handler of Ctrl-C, SIGTERM and SIGHUP: they end a run after an update, not within it; a second one at once."""

    def __init__(self, shown: Display) -> None:
        self.display = shown
        self.updates = 0
        """The number of weight updates in progress; several at once if there are several pools."""
        self.signal = int(signal.SIGINT)
        """The last signal that came."""
        self.seen = False
        self.again = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> InterruptHandler:
        # Only the main thread may handle signals; in another thread they are left to whoever has them.
        if threading.current_thread() is threading.main_thread():
            # A terminal that is closed, or a connection that breaks, sends SIGHUP; under `nohup` it is ignored.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signal(self, number: int, frame: FrameType | None) -> None:
        self.again, self.seen, self.signal = self.seen, True, number
        if not self.again:
            self.display.show_note("interrupted: once more to leave at once, without saving")
        if self.again or not self.updates:
            raise KeyboardInterrupt

    def raise_if_signalled(self) -> None:
        """End the run if a signal asked for it and was put off, or was lost."""
        if self.seen:
            raise KeyboardInterrupt


BETWEEN_SAMPLES_S = 30.0
"""The least seconds between the samples that are shown of two steps."""


class RunObserver:
    """The observer of a run, which publishes what it is told. Pools report their nodes from different threads."""

    def __init__(
        self,
        shown: Display,
        interrupts: InterruptHandler,
        trace: Timeline | None = None,
        *,
        stream: EventStream | None = None,
        show_samples: int = 0,
        ages: RowAges | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """stream: where events go; to the display alone if not given. show_samples: how many samples of a step the
        display shows every so often. ages: counts those of rows, where they have some. now: returns the seconds by
        which it is decided when samples are shown."""
        self._show_samples, self._clock = show_samples, now
        self._samples_shown_s: float | None = None
        self._last = 0
        self.display, self.interrupts, self.trace = shown, interrupts, trace
        self.stream = stream or EventStream([shown])
        self._meter, self._ages = StepMeter(), ages
        self._open: list[tuple[Node, float]] = []
        """The nodes at work in this process with their start times, the innermost last."""
        self._inner_s: list[float] = []
        """For each of them the seconds of the nodes in it, as those of a loop."""
        self._number = 1
        self._lock = threading.RLock()
        # Clocks may be set during a run, but times of a trace must not go back.
        self._epoch = time.time() - time.perf_counter()
        self._began = self._now()

    def report_progress(self, what: str) -> None:
        self.publish(Opening(step=self._number, what=what))

    def show_note(self, text: str) -> None:
        self.publish(Note(step=self._number, text=text))

    def publish(self, event: Event) -> None:
        """Hand an event to all readers."""
        self.stream.publish(event)

    def node_started(self, node: Node, pool: str = "") -> None:
        self._interrupt()
        with self._lock:
            # After half of an update a model would be neither old nor new.
            self.interrupts.updates += NODES[node.op].updates
            self._meter.work_started(pool, self._now())
            if not pool:
                self._open.append((node, self._now()))
                self._inner_s.append(0.0)
            self.publish(WorkStarted(step=self._number, node=node, pool=pool))

    def node_done(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        with self._lock:
            inner_s = 0.0
            if not pool:
                _, start = self._open.pop()
                inner_s = self._inner_s.pop()
                if self._inner_s:
                    self._inner_s[-1] += seconds
                args = {"tokens": tokens} if tokens else {}
                self.add_span(LOCAL.name, 0, node.name, node.op, start, self._now(), seconds=seconds, **args)
            self._meter.work_done(work_key(node.name, node.op), max(seconds - inner_s, 0.0), pool, self._now())
            self.publish(WorkDone(step=self._number, node=node, seconds=seconds, tokens=tokens, pool=pool))
            self.interrupts.updates -= NODES[node.op].updates
        self._interrupt()

    def node_progress(self, node: Node, done: int, total: int, unit: str, tokens: int, pool: str = "") -> None:
        self.publish(
            WorkProgress(step=self._number, node=node, done=done, total=total, unit=unit, tokens=tokens, pool=pool)
        )

    def processes_worked(self, node: Node, pool: str, received_bytes: int, peaks: Mapping[str, int]) -> None:
        with self._lock:
            self._meter.rows_received(work_key(node.name, node.op), received_bytes)
            self._meter.memory_peaks(pool, peaks)

    def weights_sent(
        self, model: str, source: str, destination: str, seconds: float, sent_bytes: int, peak_bytes: int
    ) -> None:
        with self._lock:
            self._meter.weights_sent(model, destination, seconds, sent_bytes)
        self.publish(
            WeightsSent(
                step=self._number,
                model=model,
                source=source,
                destination=destination,
                seconds=seconds,
                sent_bytes=sent_bytes,
                peak_bytes=peak_bytes,
            )
        )

    def run_started(
        self,
        phases: Mapping[str, int],
        done: int = 0,
        program: str = "",
        predicted_s: Mapping[str, float] | None = None,
    ) -> None:
        """Begin the run, with the number of steps of each phase. done: the steps that a resumed run had before;
        predicted_s: the seconds of a step by piece of work."""
        self.publish(
            RunStarted(step=done + 1, program=program, phases=phases, done=done, predicted_s=predicted_s or {})
        )
        self._began, self._number = self._now(), done + 1
        self._last = sum(phases.values())

    def step_done(self, step: StepResult, record: Mapping[str, Any] | None = None) -> None:
        """Take note of a finished step and its record. Raise KeyboardInterrupt if an interruption was put off until
        now, and RunError if a reader of the run does."""
        now = self._now()
        self.add_span("run", "steps", f"{step.phase} {step.number}", "step", self._began, now)
        with self._lock:
            if self._meter.has_one_process:
                from rlgraph.backends.worker.memory import peak_memory_bytes

                self._meter.memory_peaks(LOCAL.name, {THIS_PROCESS: peak_memory_bytes()})
            measures = self._meter.take()
        self._began, self._number = now, step.number + 1
        self.publish(
            StepDone(
                step=step.number,
                phase=step.phase,
                seconds=step.seconds,
                metrics=record or {},
                work_s=ByName(measures.work_s, "the step", "work"),
                result=step,
                measures=measures,
                ages={} if self._ages is None or step.trace is None else self._ages.add_step(step.trace),
            )
        )
        if self._show_samples and step.samples and self._samples_are_due(step.number):
            self._samples_shown_s = self._clock()
            self.display.show_samples(step, self._show_samples)
        self.interrupts.raise_if_signalled()

    def _samples_are_due(self, number: int) -> bool:
        """Return whether samples of a step are shown: of the first one and the last one, and in between when none were
        for a while."""
        before = self._samples_shown_s
        return before is None or number == self._last or self._clock() - before >= BETWEEN_SAMPLES_S

    def _interrupt(self) -> None:
        """Raise an interruption that came during an update, or that was lost: Python raises it wherever the main thread
        is, and an exception in `__del__`, or during garbage collection, reaches nobody."""
        if self.interrupts.again or not self.interrupts.updates:
            self.interrupts.raise_if_signalled()

    def go_on_after(self, trace: Path) -> None:
        """Count the ages of rows behind those steps of a resumed run whose trace this is."""
        if self._ages is not None:
            self._ages.go_on_after(trace)

    # The trace

    @property
    def draws_timeline(self) -> bool:
        return self.trace is not None

    def add_span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        """Record work of a rank in the present step, in seconds of `time.time()`, and return its id for `add_flow`."""
        with self._lock:
            if self.trace is None:
                return 0
            return self.trace.add_span(pool, rank, name, category, start, end, step=self._number, **args)

    def add_flow(self, source: int, target: int, name: str, sent_bytes: int) -> None:
        """Record that rows or weights went from one piece of work to another."""
        if self.trace is not None:
            self.trace.add_flow(source, target, name, sent_bytes)

    def write_timeline(self, path: Path | None) -> None:
        """Write the trace, including work that was cut off. Raise RunError."""
        while self._open:
            node, start = self._open.pop()
            self.add_span(LOCAL.name, 0, node.name, node.op, start, self._now(), cut="off")
        trace, self.trace = self.trace, None
        if trace is not None and path is not None and len(trace):
            trace.write_file(path)

    def _now(self) -> float:
        return self._epoch + time.perf_counter()
