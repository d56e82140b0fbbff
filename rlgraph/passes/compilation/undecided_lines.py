"""The search for what a line of a schedule leaves open: what makes the simulated step shortest, or nothing where that
saves too little."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Generic, Protocol, TypeVar

from rlgraph.errors import ProgramError
from rlgraph.passes.compilation.overlap_simulation import ChoiceInterrupted, SimulationCache
from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.search.progress import ProgressLine

PAYS = 0.001
"""The share of a step that what is chosen must save."""


class UndecidedLine(Protocol):
    """A line that may leave something open."""

    @property
    def table(self) -> str:
        """The table that it is about."""
        ...

    @property
    def is_undecided(self) -> bool:
        """Whether it leaves something open."""
        ...


Line = TypeVar("Line", bound=UndecidedLine)
Tried = TypeVar("Tried")


class ScheduleLineTuner(ABC, Generic[Line, Tried]):
    """The search for what one line leaves open."""

    def __init__(self, choice: PlacementChoice, line: Line, progress: ProgressLine, timed: SimulationCache) -> None:
        self.choice, self.line, self.progress, self.timed = choice, line, progress, timed
        self.tried: dict[Tried | None, float] = {}
        """Simulated seconds of a step by what was tried; None: without."""

    @abstractmethod
    def run(self) -> None:
        """Try what may be best."""

    @abstractmethod
    def choice_with_candidate(self, tried: Tried | None) -> PlacementChoice:
        """Return the choice with this, or without."""

    def simulated_step_seconds(self, tried: Tried | None) -> float:
        """Return the simulated seconds of a step with this, or without."""
        if tried not in self.tried:
            self.progress.show(
                self.progress.elapsed_seconds(), lambda: f"{len(self.tried)} of `{self.line.table}` tried"
            )
            self.tried[tried] = self.timed.simulate_once(self.choice_with_candidate(tried))
        return self.tried[tried]

    def best_choice(self) -> PlacementChoice:
        """Return the choice with the best that was tried."""
        best = min(self.tried, key=self.tried.__getitem__, default=None)
        if None in self.tried and best is not None and self.tried[best] > (1 - PAYS) * self.tried[None]:
            best = None
        return self.choice_with_candidate(best)


def resolve_undecided_lines(
    choice: PlacementChoice,
    lines: Iterable[Line],
    what: str,
    search_of: Callable[[PlacementChoice, Line, ProgressLine], ScheduleLineTuner[Line, Tried]],
) -> PlacementChoice:
    """Return a choice with the best of what each line leaves open, one line after the other. what: a word for it, as in
    `block`. Raises ChoiceInterrupted with the best so far after Ctrl-C."""
    progress = ProgressLine(f"choosing {what}s")
    with closing(progress):
        for line in lines:
            if line.is_undecided:
                search = search_of(choice, line, progress)
                try:
                    search.run()
                except ProgramError:
                    # The choice cannot be simulated; `simulate` says why.
                    continue
                except KeyboardInterrupt:
                    progress.close()
                    print(f"interrupted: the {what} of `{line.table}` is the best that was tried", file=sys.stderr)
                    raise ChoiceInterrupted(search.best_choice()) from None
                choice = search.best_choice()
    return choice
