"""The observer of a run: it informs the display, writes the trace, and lets Ctrl-C end a run between two updates."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlgraph.ir.graph import Node
from rlgraph.ops import NODES
from rlgraph.runs.options import LOCAL
from rlgraph.runs.progress import Display
from rlgraph.runs.timeline import Timeline

if TYPE_CHECKING:
    from rlgraph.backends.steps import Observer, StepResult


class InterruptHandler:
    """A handler of Ctrl-C, SIGTERM and SIGHUP: they end a run after an update, not within it; a second one at once."""

    def __init__(self, shown: Display) -> None:
        self.display = shown
        self.updates = 0
        """The number of weight updates in progress; several at once if there are several pools."""
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
        self.again, self.seen = self.seen, True
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
    """The observer of a run, which informs all others. Different pools report their nodes from different threads."""

    def __init__(
        self,
        shown: Display,
        interrupts: InterruptHandler,
        observer: Observer | None,
        trace: Timeline | None,
        *,
        show_samples: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """show_samples: how many samples of a step the display shows every so often. now: returns the seconds by which
        that is decided."""
        self._show_samples, self._clock = show_samples, now
        self._samples_shown_s: float | None = None
        self._last = 0
        self.display, self.interrupts, self.trace = shown, interrupts, trace
        self._listeners: list[Display | Observer] = [shown, observer] if observer else [shown]
        self._open: list[tuple[Node, float]] = []
        """The nodes at work in this process with their start times, the innermost last."""
        self._number = 1
        self._lock = threading.RLock()
        # Clocks may be set during a run, but times of a trace must not go back.
        self._epoch = time.time() - time.perf_counter()
        self._began = self._now()

    def report_progress(self, what: str) -> None:
        for listener in self._listeners:
            listener.report_progress(what)

    def node_started(self, node: Node, pool: str = "") -> None:
        self._interrupt()
        with self._lock:
            # After half of an update a model would be neither old nor new.
            self.interrupts.updates += NODES[node.op].updates
            if not pool:
                self._open.append((node, self._now()))
            for listener in self._listeners:
                listener.node_started(node, pool)

    def node_done(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        with self._lock:
            if not pool:
                _, start = self._open.pop()
                args = {"tokens": tokens} if tokens else {}
                self.add_span(LOCAL.name, 0, node.name, node.op, start, self._now(), seconds=seconds, **args)
            for listener in self._listeners:
                listener.node_done(node, seconds, tokens, pool)
            self.interrupts.updates -= NODES[node.op].updates
        self._interrupt()

    def node_progress(self, node: Node, done: int, total: int, unit: str, tokens: int, pool: str = "") -> None:
        with self._lock:
            # An observer that was written for less is told less.
            for listener in self._listeners:
                if hasattr(listener, "node_progress"):
                    listener.node_progress(node, done, total, unit, tokens, pool)

    def weights_sent(
        self, model: str, source: str, destination: str, seconds: float, sent_bytes: int, peak_bytes: int
    ) -> None:
        with self._lock:
            for listener in self._listeners:
                listener.weights_sent(model, source, destination, seconds, sent_bytes, peak_bytes)

    def run_started(self, phases: Mapping[str, int], done: int = 0) -> None:
        """Begin the run, with the number of steps of each phase. done: the steps that a resumed run had before."""
        self.display.run_started(phases, done)
        self._began, self._number = self._now(), done + 1
        self._last = sum(phases.values())

    def step_done(self, step: StepResult) -> None:
        """Take note of a finished step. Raise KeyboardInterrupt if an interruption was put off until now."""
        now = self._now()
        self.add_span("run", "steps", f"{step.phase} {step.number}", "step", self._began, now)
        self._began, self._number = now, step.number + 1
        self.display.step_done(step)
        if self._show_samples and step.samples and self._samples_are_due(step.number):
            self._samples_shown_s = self._clock()
            self.display.samples(step, self._show_samples)
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

    # The trace

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

    def write_trace(self, path: Path | None) -> None:
        """Write the trace, including work that was cut off. Raise RunError."""
        while self._open:
            node, start = self._open.pop()
            self.add_span(LOCAL.name, 0, node.name, node.op, start, self._now(), cut="off")
        trace, self.trace = self.trace, None
        if trace is not None and path is not None and len(trace):
            trace.write_file(path)

    def _now(self) -> float:
        return self._epoch + time.perf_counter()
