"""The displays that show a person the progress of a run.

On a terminal a bar with the node at work, in a notebook one line that is written over, elsewhere a line for
each step on stderr, and one every so often while a step goes on:

    step 3/30  reward 0.41  length 12.1  1.2 s  3,400 tok/s
    step 4/30  rollout: 212 of 512 rows, 1,830 tok/s  40 s, about 12 min left
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from rlgraph.errors import count_phrase, escape_controls
from rlgraph.ir.graph import Node
from rlgraph.ops import NODES, model_of
from rlgraph.runs.events import (
    EventReader,
    Note,
    Opening,
    Restarted,
    RunStarted,
    StepDone,
    WeightsSent,
    WorkDone,
    WorkProgress,
    WorkStarted,
)
from rlgraph.runs.jsonlines import print_record, with_metrics

if TYPE_CHECKING:
    from rlgraph.backends.steps import StepResult


class Display(EventReader):
    """A reader of a run's events that shows them to a person; by itself it shows nothing."""

    def show_samples(self, step: StepResult, most: int) -> None:
        """Show so many samples of a finished step, the best and the worst."""

    def show_note(self, text: str) -> None:
        """Show a sentence."""

    def note(self, event: Note) -> None:
        self.show_note(event.text)

    def restarted(self, event: Restarted) -> None:
        self.show_note(f"{event.error}\n{event.text}")

    def close(self) -> None: ...


class QuietDisplay(Display):
    """A display that shows nothing."""


class JsonDisplay(Display):
    """A display that prints a line of JSON on stdout for each step."""

    def step_done(self, event: StepDone) -> None:
        fields = {"type": "step", "step": event.step, "phase": event.phase, "seconds": round(event.seconds, 6)}
        print_record(with_metrics(fields, event.result.metrics))

    def show_samples(self, step: StepResult, most: int) -> None:
        from rlgraph.runs.samples import best_and_worst, to_json

        for word, sample in best_and_worst(step.samples, most):
            print_record({"type": "sample", "which": word, **to_json(step.number, sample)})

    def show_note(self, text: str) -> None:
        print_record({"type": "note", "text": text})


class ProgressCounts:
    """Counts the steps of a phase, the tokens generated, and the bytes and seconds of weight transfers, for a
    display."""

    def __init__(self, phases: Mapping[str, int]) -> None:
        self.phases = phases
        self.tokens = 0
        self.synced_s = 0.0
        self.synced_bytes = 0
        self._before = dict.fromkeys(phases, 0)
        so_far = 0
        for name, steps in phases.items():
            self._before[name] = so_far
            so_far += steps
        self.total = so_far
        self.done = 0
        """The number of the last step that is over."""
        self.began_s: float | None = None
        """When the first step of this run began."""
        self.steps_done = 0

    def position_text(self, number: int) -> str:
        """Return where in its phase a step is, as "step 3/30"."""
        for phase, steps in self.phases.items():
            if number <= self._before[phase] + steps:
                return f"{phase} {number - self._before[phase]}/{steps}"
        return f"step {number}"

    def time_left(self, now_s: float, step_began_s: float) -> str:
        """Return about how long the rest of the run takes, by the steps that are over; empty if there are none."""
        if not self.steps_done or self.began_s is None:
            return ""
        each_s = (step_began_s - self.began_s) / self.steps_done
        left_s = each_s * (self.total - self.done) - (now_s - step_began_s)
        return f"about {format_duration(max(left_s, 0.0))} left"

    def step_line(self, done: StepResult) -> str:
        """Return a finished step as one line, and reset the counts to 0."""
        self.done, self.steps_done = done.number, self.steps_done + 1
        phase, seconds = done.phase, done.seconds
        at = f"{phase} {done.number - self._before[phase]}/{self.phases[phase]}"
        parts = [at, *(f"{name} {format_number(value)}" for name, value in done.metrics.items()), f"{seconds:.2g} s"]
        if seconds >= 100:
            parts[-1] = f"{seconds:,.0f} s"
        if self.tokens:
            parts.append(format_rate(self.tokens, seconds))
        if self.synced_bytes:
            parts.append(f"sync {self.synced_s:.2g} s, {format_bytes(self.synced_bytes)}")
        self.tokens, self.synced_s, self.synced_bytes = 0, 0.0, 0
        return "  ".join(parts)


def format_number(value: Any) -> str:
    """Return a number as a short text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_rate(tokens: int, seconds: float) -> str:
    """Return tokens per second as text."""
    return f"{tokens / max(seconds, 1e-9):,.0f} tok/s"


def format_duration(seconds: float) -> str:
    """Return a time as a short text: "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def format_progress(event: WorkProgress, seconds: float) -> str:
    """Return how far a node is: "212 of 512 rows, 1,830 tok/s", "micro-batch 3 of 8"."""
    if event.unit != "row":
        return f"{event.unit} {event.done:,} of {event.total:,}"
    rate = f", {format_rate(event.tokens, seconds)}" if event.tokens else ""
    return f"{event.done:,} of {count_phrase(event.total, event.unit)}{rate}"


def work_name(node: Node) -> str:
    """Return the name of a node's work: its operation and, where that is not in it, its name."""
    return node.op if node.name.startswith(node.op) else f"{node.op} {node.name}"


def format_bytes(count: int) -> str:
    """Return a number of bytes as a short text."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class CountingDisplay(Display):
    """A display that counts tokens and transfers."""

    count: ProgressCounts | None = None

    def work_done(self, event: WorkDone) -> None:
        if self.count is not None:
            self.count.tokens += event.tokens

    def weights_sent(self, event: WeightsSent) -> None:
        if self.count is not None:
            self.count.synced_s += event.seconds
            self.count.synced_bytes += event.sent_bytes

    def run_started(self, event: RunStarted) -> None:
        self.count = ProgressCounts(event.phases)
        self.count.done = event.done

    def show_samples(self, step: StepResult, most: int) -> None:
        from rlgraph.runs.samples import best_and_worst
        from rlgraph.runs.shown_samples import format_sample

        width = shutil.get_terminal_size().columns
        for word, sample in best_and_worst(step.samples, most):
            self.show_note(format_sample(word, sample, width))


BETWEEN_LINES_S = 30.0
"""The least seconds between two lines of a step that goes on."""


class LinesDisplay(CountingDisplay):
    """A display that prints a line for each step, and one every so often while a step goes on."""

    def __init__(self, stream: IO[str], now: Callable[[], float] = time.monotonic) -> None:
        """now: returns the seconds by which it is decided what is worth a line."""
        self.stream, self.now = stream, now
        self._shown_s = self._step_began_s = now()
        self._node_began_s: dict[tuple[str, str], float] = {}
        """When each node that is at work began, by its name and its pool."""

    def run_started(self, event: RunStarted) -> None:
        super().run_started(event)
        assert self.count is not None
        self._shown_s = self._step_began_s = self.count.began_s = self.now()

    def work_started(self, event: WorkStarted) -> None:
        self._node_began_s[event.node.name, event.pool] = self.now()
        # The rest is done at once, and has names that no program has.
        if model_of(event.node) or NODES[event.node.op].foreign:
            self._while_it_goes_on(work_name(event.node))

    def work_progress(self, event: WorkProgress) -> None:
        now = self.now()
        seconds = now - self._node_began_s.get((event.node.name, event.pool), now)
        self._while_it_goes_on(f"{work_name(event.node)}: {format_progress(event, seconds)}")

    def _while_it_goes_on(self, what: str) -> None:
        """Print what a step is doing, if nothing was printed for a while."""
        now = self.now()
        if self.count is None or now - self._shown_s < BETWEEN_LINES_S:
            return
        self._shown_s = now
        ages = [f"{format_duration(now - self._step_began_s)}", self.count.time_left(now, self._step_began_s)]
        self.show_note("  ".join([self.count.position_text(self.count.done + 1), what, ", ".join(filter(None, ages))]))

    def opening(self, event: Opening) -> None:
        # Later openings are about the rounds of a `collect`.
        if self.count is None:
            self.show_note(event.what)

    def step_done(self, event: StepDone) -> None:
        assert self.count is not None
        self.show_note(self.count.step_line(event.result))
        self._shown_s = self._step_began_s = self.now()

    def show_note(self, text: str) -> None:
        # A run must not end because its output is closed.
        with suppress(OSError):
            self.stream.write(f"{escape_controls(text)}\n")
            self.stream.flush()


class CellDisplay(LinesDisplay):
    """A display in the output of a notebook's cell, whose last line is the newest step."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.handle = sys.modules["IPython"].display.display({"text/plain": "opening"}, raw=True, display_id=True)
        self.line = ""
        self.shown_s = 0.0

    def opening(self, event: Opening) -> None:
        self._show(event.what)

    def step_done(self, event: StepDone) -> None:
        assert self.count is not None
        self._show(self.count.step_line(event.result))

    def _while_it_goes_on(self, what: str) -> None:
        if self.count is not None:
            self._show(f"{self.count.position_text(self.count.done + 1)}  {what}")

    def close(self) -> None:
        self._show(self.line, least_s=0)

    def _show(self, line: str, least_s: float = 0.1) -> None:
        """Show a line, at most one per `least_s` seconds: a browser that draws each quick step falls behind."""
        self.line = line
        if time.monotonic() - self.shown_s >= least_s:
            self.handle.update({"text/plain": line}, raw=True)
            self.shown_s = time.monotonic()
