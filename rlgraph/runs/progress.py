"""The displays that show a person the progress of a run.

On a terminal a bar with the node at work, in a notebook one line that is written over, elsewhere a line for
each step on stderr:

    step 3/30  reward 0.41  length 12.1  1.2 s  3,400 tok/s
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from rlgraph.errors import escape_controls
from rlgraph.ir.graph import Node
from rlgraph.runs.jsonlines import print_record, with_metrics

if TYPE_CHECKING:
    from rlgraph.backends.steps import StepResult


class Display:
    """A display of a run, which by itself shows nothing; its first four methods are those of the backend's observer."""

    def report_progress(self, what: str) -> None: ...
    def node_started(self, node: Node, pool: str = "") -> None: ...
    def node_done(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None: ...
    def weights_sent(
        self, model: str, source: str, destination: str, seconds: float, sent_bytes: int, peak_bytes: int
    ) -> None: ...
    def run_started(self, phases: Mapping[str, int]) -> None:
        """Begin the run, with the number of steps of each phase."""

    def step_done(self, done: StepResult) -> None:
        """Show a finished step."""

    def show_note(self, text: str) -> None: ...
    def close(self) -> None: ...


class QuietDisplay(Display):
    """A display that shows nothing."""


class JsonDisplay(Display):
    """A display that prints a line of JSON on stdout for each step."""

    def step_done(self, done: StepResult) -> None:
        fields = {"type": "step", "step": done.number, "phase": done.phase, "seconds": round(done.seconds, 6)}
        print_record(with_metrics(fields, done.metrics))

    def show_note(self, text: str) -> None:
        print_record({"type": "note", "text": text})


class StepCounts:
    """A count of where in its phase a step is, what it has generated, and what its weights cost to transfer."""

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

    def step_line(self, done: StepResult) -> str:
        """Return a finished step as one line, and reset the counts to 0."""
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


def format_bytes(count: int) -> str:
    """Return a number of bytes as a short text."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class CountingDisplay(Display):
    """A display that counts tokens and transfers."""

    count: StepCounts | None = None

    def node_done(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        if self.count is not None:
            self.count.tokens += tokens

    def weights_sent(
        self, model: str, source: str, destination: str, seconds: float, sent_bytes: int, peak_bytes: int
    ) -> None:
        if self.count is not None:
            self.count.synced_s += seconds
            self.count.synced_bytes += sent_bytes

    def run_started(self, phases: Mapping[str, int]) -> None:
        self.count = StepCounts(phases)


class LinesDisplay(CountingDisplay):
    """A display that prints a line for each step."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def report_progress(self, what: str) -> None:
        # Later openings are about the rounds of a `collect`.
        if self.count is None:
            self.show_note(what)

    def step_done(self, done: StepResult) -> None:
        assert self.count is not None
        self.show_note(self.count.step_line(done))

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

    def report_progress(self, what: str) -> None:
        self._show(what)

    def step_done(self, done: StepResult) -> None:
        assert self.count is not None
        self._show(self.count.step_line(done))

    def close(self) -> None:
        self._show(self.line, least_s=0)

    def _show(self, line: str, least_s: float = 0.1) -> None:
        """Show a line, at most one per `least_s` seconds: a browser that draws each quick step falls behind."""
        self.line = line
        if time.monotonic() - self.shown_s >= least_s:
            self.handle.update({"text/plain": line}, raw=True)
            self.shown_s = time.monotonic()
