"""The time limit of a search, and the progress that it shows on a terminal."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from time import monotonic

from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError

QUIET_S = 1.0
"""Seconds after which a search shows its progress."""

EVERY_S = 0.2
"""Seconds between two updates of a terminal's line, each in place of the one before."""

LOGGED_S = 30.0
"""Seconds between two lines where the output is no terminal: all of them stay."""


class OutOfTime(Exception):
    """Raised where the search has to end with what it has."""


class ProgressLine:
    """The progress of something that takes long: a line that is erased at the end on a terminal, otherwise a line now
    and then. It is updated often, and has to be closed."""

    def __init__(self, name: str) -> None:
        """name: what takes long, `searching`."""
        self.name, self.began = name, monotonic()
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._next = QUIET_S if self._terminal else LOGGED_S
        self._shown = False

    def elapsed_seconds(self) -> float:
        """Return the seconds since it began."""
        return monotonic() - self.began

    def show(self, elapsed: float, told: Callable[[], str]) -> None:
        """Show the progress after so many seconds, now and then."""
        if elapsed >= self._next:
            self._next = elapsed + (EVERY_S if self._terminal else LOGGED_S)
            self._write(f"{self.name}, {elapsed:.0f} s: {told()}")

    def close(self) -> None:
        """Erase the line from the terminal."""
        if self._shown:
            self._write("")

    def _write(self, text: str) -> None:
        if not self._terminal:
            print(text, file=sys.stderr, flush=True)
            return
        # A carriage return, and the rest of the line erased.
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        self._shown = bool(text)


class SearchProgress(ProgressLine):
    """The progress and the time limit of one search."""

    def __init__(self, seconds: float) -> None:
        """seconds: the time after which the search ends."""
        super().__init__("searching")
        self.seconds = seconds
        self.steps = 0
        """How often `check_time` was called."""

    def check_time(self, state: Callable[[], tuple[float | None, float]]) -> None:
        """Show the seconds of the best plan's step and its gap. Raises OutOfTime."""
        self.steps += 1
        elapsed = self.elapsed_seconds()
        if elapsed >= self.seconds:
            raise OutOfTime
        self.show(elapsed, lambda: _described(*state()))

    def out_of_time_error(self) -> ProgramError:
        """Return the error for a search whose time is over before there is a plan."""
        message = f"no plan was found in {self.seconds:g} s"
        return ProgramError(Diagnostic("E0938", message, NO_SPAN, "give the search more time with `--search-seconds`"))

    def interrupt_error(self, best: float | None, gap: float) -> KeyboardInterrupt:
        """Return the exception for Ctrl-C, which says what would have been found, and how to get it."""
        elapsed = self.elapsed_seconds()
        again = f"; `--search-seconds {math.ceil(elapsed)}` gives such a plan" if best is not None else ""
        return KeyboardInterrupt(f"interrupted after {elapsed:.1f} s of searching: {_described(best, gap)}{again}")


def _described(best: float | None, gap: float) -> str:
    return "no plan yet" if best is None else f"{format_seconds(best)} a step, at most {gap:.1%} from the best there is"
