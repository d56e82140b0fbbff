"""The time limit of a search, and the progress that it shows on a terminal."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from time import monotonic
from typing import Literal, NamedTuple

from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError

QUIET_S = 1.0
"""Seconds after which a search shows its progress."""

EVERY_S = 0.2
"""Seconds between two updates of a terminal's line, each in place of the one before."""

LOGGED_S = 30.0
"""Seconds between two lines where the output is no terminal, after the first one: all of them stay."""


class OutOfTime(Exception):
    """Raised where the search has to end with what it has."""


class OutOfWork(OutOfTime):
    """Raised where a search with a plan has done as much as it may."""


class ProgressLine:
    """The progress of something that takes long: a line that is erased at the end on a terminal, otherwise a line now
    and then. It is updated often, and has to be closed."""

    def __init__(self, name: str) -> None:
        """name: what takes long, `searching`."""
        self.name, self.began = name, monotonic()
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._next = QUIET_S
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


class SearchControl:
    """What several searches have in common: they end together on Ctrl-C, and may show their progress in one line."""

    def __init__(self, line: ProgressLine | None = None) -> None:
        """line: shows how far all of them are; None: each search has a line of its own."""
        self.line = line
        self.doing = ""
        """What the search at work is for."""
        self.stopped = False
        """Whether the user has asked for the best that there is by now."""

    def stop(self, said: str) -> None:
        """End these searches with what they have, and say so."""
        if not self.stopped:
            self.stopped = True
            if self.line is not None:
                self.line.close()
            print(f"interrupted: {said}", file=sys.stderr, flush=True)

    def remaining_seconds(self, ends: float) -> float:
        """Return the seconds that are left until a monotonic time; 0 for searches that were stopped."""
        return 0.0 if self.stopped else ends - monotonic()


class Work(NamedTuple):
    """How much work a search may do."""

    near: float = math.inf
    far: float = math.inf
    """The work after which it ends if the gap of its plan is larger than `gap` after the other."""
    gap: float = math.inf


UNLIMITED = Work()
"""The work of a search that ends where it is done."""


class SearchProgress(ProgressLine):
    """The progress and the time limit of one search."""

    def __init__(
        self,
        seconds: float,
        control: SearchControl | None = None,
        goal: Literal["time", "cost"] = "time",
        most_work: Work = UNLIMITED,
        work_done: Callable[[], float] = float,
    ) -> None:
        """seconds: the time after which the search ends. control: of the searches that end together with it. goal: what
        is minimized. most_work: the work after which it ends once there is a plan, counted by `work_done`: one problem
        then has one plan, however busy a machine is."""
        super().__init__("searching")
        self.seconds, self.control = seconds, control or SearchControl()
        self.goal = goal
        self.most_work, self.work_done = most_work, work_done
        self.share = 1.0
        """The share of that work after which it ends for now."""
        self.steps = 0
        """How often `check_time` was called."""

    def check_time(self, state: Callable[[], tuple[float | None, float]]) -> None:
        """Show what is minimized of the best plan, and its gap, which `state` returns. Raises OutOfTime, and OutOfWork
        where there is a plan."""
        self.steps += 1
        if self.work_done() > self.share * self.most_work.near:
            value, gap = state()
            if value is not None and gap > self.most_work.gap:
                self.most_work = Work(self.most_work.far)
            elif value is not None:
                raise OutOfWork
        elapsed = self.elapsed_seconds()
        if elapsed >= self.seconds or self.control.stopped:
            raise OutOfTime
        line, doing = self.control.line, self.control.doing
        if line is None:
            self.show(elapsed, lambda: self._described(*state()))
        else:
            line.show(line.elapsed_seconds(), lambda: f"{doing}: {self._described(*state())}")

    def out_of_time_error(self) -> ProgramError:
        """Return the error for a search whose time is over before there is a plan."""
        message = f"no plan was found in {self.seconds:g} s"
        return ProgramError(Diagnostic("E0938", message, NO_SPAN, "give the search more time with `--search-seconds`"))

    def interrupt(self, best: float | None, gap: float) -> None:
        """End the search on Ctrl-C, and all that end together with it, with the best plan, and say what that is and how
        to get such a one again. Raises KeyboardInterrupt where there is no plan, and OutOfTime otherwise."""
        elapsed = self.elapsed_seconds()
        if best is None:
            raise KeyboardInterrupt(f"interrupted after {elapsed:.1f} s of searching: no plan yet")
        self.close()
        again = f"`--search-seconds {math.ceil(elapsed)}` gives such a plan"
        self.control.stop(
            f"after {elapsed:.1f} s of searching this plan is taken: {self._described(best, gap)}; {again}"
        )
        raise OutOfTime

    def _described(self, best: float | None, gap: float) -> str:
        if best is None:
            return "no plan yet"
        value = format_seconds(best) if self.goal == "time" else f"${best:.3g}"
        if gap >= 1:
            return f"{value} a step, and nothing is proven of others yet"
        return f"{value} a step, at most {gap:.1%} from the best there is"
