"""What a step takes whose plan overlaps: where rows stream, or steps or batches run ahead, work that the search lays
out one after the other is done side by side, and in small orders. Its seconds are the simulator's."""

from __future__ import annotations

import sys
from contextlib import closing

from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.sim.steady_state import FEWEST, run_steps
from rlgraph.backends.steps import Observer, Silent
from rlgraph.catalog.clusters.units import shown_seconds
from rlgraph.errors import ProgramError
from rlgraph.ir.graph import Node
from rlgraph.passes.cost.predict import Predictor
from rlgraph.passes.placement.choose import Choice
from rlgraph.passes.placement.search.progress import Line


class Interrupted(Exception):
    """Ctrl-C has ended the choice of blocks or of a tail, which was told."""

    def __init__(self, choice: Choice) -> None:
        """choice: with the best of what was tried."""
        super().__init__()
        self.choice = choice


class Timed:
    """Seconds of a step of one plan with several blocks and tails, each of which is simulated once."""

    def __init__(self, steps: int) -> None:
        """steps: of each simulation."""
        self.steps = steps
        self._known: dict[object, float] = {}

    def seconds(self, choice: Choice) -> float:
        """Raises ProgramError where it cannot be simulated."""
        found = self.known(choice)
        if found is None:
            found = self._known[streams(choice)] = run_steps(simulated(choice), self.steps).seconds
        return found

    def known(self, choice: Choice) -> float | None:
        """The same where it was simulated already."""
        return self._known.get(streams(choice))


def streams(choice: Choice) -> object:
    """What of its tables streams, and how, as plans are compared by it."""
    plan = choice.plan
    return frozenset(plan.blocks), frozenset(plan.free), frozenset(plan.tails)


def overlapped(choice: Choice, steps: int = FEWEST) -> float | None:
    """Seconds of a step in the middle of a run, of so many. None: it cannot be simulated, or Ctrl-C has ended that,
    which is said."""
    with closing(_Progress()) as progress:
        try:
            return run_steps(simulated(choice, progress), steps, progress.ended).seconds
        except ProgramError:
            # Rows of which so few are kept that a group has none: `simulate` says so.
            return None
        except KeyboardInterrupt:
            progress.close()
            print(f"interrupted after {progress.told()}: what overlaps does not count in the seconds", file=sys.stderr)
            return None


def simulated(choice: Choice, observer: Observer | None = None) -> SimBackend:
    """The plan of a choice in the simulator, with what it was chosen for."""
    asked = choice.question
    predictor = Predictor(choice.plan, choice.configs, asked.cluster, asked.constants)
    return SimBackend(asked.program, choice.plan, predictor, asked.workload, observer=observer)


class _Progress(Silent):
    """A line that says how far a simulation is."""

    def __init__(self) -> None:
        self.line, self.steps = Line("simulating what overlaps"), "no step done yet"

    def firing(self, node: Node, pool: str = "") -> None:
        self.line.show(self.line.elapsed(), lambda: self.steps)

    def ended(self, done: int, whole: int) -> None:
        """So many steps are done."""
        self.steps = f"{done} of {whole} steps"

    def told(self) -> str:
        return f"{shown_seconds(self.line.elapsed())} of simulating, {self.steps}"

    def close(self) -> None:
        self.line.close()
