"""The first failure of each function of the program that a run goes on without, and what else a run's processes find
out while it goes on: each is said once in a run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The first call of a function that failed in one process."""

    function: str
    """The function, or what a warning is about."""
    sentence: str
    """What failed: `on prompts row 3: ...`."""
    warns: bool = False
    """Whether nothing failed, and the sentence is a whole warning."""


class FirstFailures:
    """The first failures of this process, or of a run's processes where these are told to it."""

    def __init__(self, *, prints: bool) -> None:
        """prints: whether they are printed here; otherwise somebody takes them."""
        self.prints = prints
        self._known: set[str] = set()
        """The functions that have failed, and what was warned of."""
        self._new: list[FirstFailure] = []
        self._lock = threading.Lock()

    def add_first(self, function: str, failures: Sequence[str]) -> None:
        """Take in the failures of a call."""
        if failures:
            self.add([FirstFailure(function, failures[0])])

    def add(self, failures: Iterable[FirstFailure]) -> None:
        """Take in failures, of which those of functions that have failed before are left out."""
        for failure in failures:
            with self._lock:
                if failure.function in self._known:
                    continue
                self._known.add(failure.function)
                if not self.prints:
                    self._new.append(failure)
            if self.prints:
                text = f"`{failure.function}` failed {failure.sentence}; metrics count how often it does"
                print(failure.sentence if failure.warns else text, file=sys.stderr, flush=True)

    def pop_new(self) -> tuple[FirstFailure, ...]:
        """Return the failures that nobody has asked for yet."""
        with self._lock:
            taken = tuple(self._new)
            self._new.clear()
        return taken
