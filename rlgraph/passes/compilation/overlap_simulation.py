"""Simulates steps of plans in which work overlaps: where rows stream, or steps or batches run ahead, work that the
search lays out sequentially is done concurrently, in small requests."""

from __future__ import annotations

import sys
from contextlib import closing

from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.sim.steady_state import FEWEST, simulate_steps, steps_before_middle
from rlgraph.backends.steps import Observer, SilentObserver
from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.errors import ProgramError
from rlgraph.ir.graph import Node
from rlgraph.passes.cost.predict import Predictor
from rlgraph.passes.cost.tasks import main_phase
from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.search.progress import ProgressLine


class ChoiceInterrupted(Exception):
    """Raised after Ctrl-C during the choice of blocks or of a tail, and after telling the user."""

    def __init__(self, choice: PlacementChoice) -> None:
        """choice: the best one that was tried."""
        super().__init__()
        self.choice = choice


class SimulationCache:
    """Caches simulated seconds of a step of one plan with different blocks and tails."""

    def __init__(self, steps: int) -> None:
        """steps: how many each simulation runs."""
        self.steps = steps
        self._seconds: dict[object, float] = {}

    def simulate_once(self, choice: PlacementChoice) -> float:
        """Return the seconds of a step. Raises ProgramError where the choice cannot be simulated."""
        seconds = self.cached_seconds(choice)
        if seconds is None:
            seconds = self._seconds[streaming_key(choice)] = simulate_steps(
                make_simulator(choice), self.steps
            ).mean_step_seconds
        return seconds

    def cached_seconds(self, choice: PlacementChoice) -> float | None:
        """Return the seconds if the choice was simulated already, else None."""
        return self._seconds.get(streaming_key(choice))


def streaming_key(choice: PlacementChoice) -> object:
    """Return a key for which tables stream, and how, by which plans are compared."""
    plan = choice.plan
    return frozenset(plan.blocks), frozenset(plan.free), frozenset(plan.tails)


def steady_step_count(choice: PlacementChoice) -> int:
    """Return how many steps in the middle of a run tell what one takes."""
    # Steps that run ahead end in bursts.
    return max(FEWEST, 2 * steps_before_middle(main_phase(choice.question.program)))


def simulate_step_seconds(choice: PlacementChoice, steps: int = 0) -> float | None:
    """Return the seconds of a step in the middle of a run of so many steps; 0: as many as it takes. None if
    it cannot be simulated, or if Ctrl-C ended the simulation, which is printed."""
    steps = steps or steady_step_count(choice)
    with closing(SimulationProgress()) as progress:
        try:
            return simulate_steps(make_simulator(choice, progress), steps, progress.show_steps_done).mean_step_seconds
        except ProgramError:
            # So few rows may be kept that a group has none: `simulate` says so.
            return None
        except KeyboardInterrupt:
            progress.close()
            print(
                f"interrupted after {progress.progress_text()}: what overlaps does not count in the seconds",
                file=sys.stderr,
            )
            return None


def make_simulator(choice: PlacementChoice, observer: Observer | None = None) -> SimBackend:
    """Return the simulator for the plan of a choice, with the workload and constants that it was chosen for."""
    asked = choice.question
    predictor = Predictor(choice.plan, choice.model_configs, asked.cluster, asked.constants)
    return SimBackend(asked.program, choice.plan, predictor, asked.workload, observer=observer)


class SimulationProgress(SilentObserver):
    """Shows the progress of a simulation in a line."""

    def __init__(self, name: str = "simulating what overlaps") -> None:
        self.line, self.steps = ProgressLine(name), "no step done yet"

    def node_started(self, node: Node, pool: str = "") -> None:
        """Refresh the line."""
        self.line.show(self.line.elapsed_seconds(), lambda: self.steps)

    def show_steps_done(self, done: int, whole: int, seconds: float | None = None) -> None:
        """Note that so many of the steps are done. seconds: of all of them so far."""
        so_far = "" if seconds is None else f", {format_seconds(seconds / done)} a step"
        self.steps = f"{done} of {whole} steps{so_far}"

    def progress_text(self) -> str:
        """Return the progress as text."""
        return f"{format_seconds(self.line.elapsed_seconds())} of simulating, {self.steps}"

    def close(self) -> None:
        """Remove the line."""
        self.line.close()
