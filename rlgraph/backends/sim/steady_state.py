"""This module simulates steps in the middle of a run: where they take the same time again and again, and what they
would take at least."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice, pairwise
from statistics import fmean

from rlgraph.backends.sim.backend import SimBackend
from rlgraph.ir.graph import Phase
from rlgraph.passes.cost.tasks import main_phase

NEAR = 0.01
FEWEST = 4
"""The fewest steps whose halves can be compared."""


@dataclass(frozen=True)
class SimulatedSteps:
    """Some steps that came one after the other."""

    began: float
    """Seconds since the simulation began."""
    ends: tuple[float, ...]
    step_metrics: tuple[Mapping[str, float], ...]
    """What each step reported."""
    works: tuple[int, int]
    """How many works had ended when they began, and when they were over."""
    warm_up: int
    """Steps before them."""
    steady: bool | None
    """Whether their two halves take the same time; None: they are too few to tell."""
    interrupted: bool = False
    """Whether Ctrl-C has ended them before all were done."""

    @property
    def mean_step_seconds(self) -> float:
        """Seconds of a step, on average."""
        return (self.ends[-1] - self.began) / len(self.ends)


def simulate_steps(
    backend: SimBackend,
    steps: int,
    ended: Callable[[int, int], object] = lambda done, whole: None,
    keep: bool = False,
) -> SimulatedSteps:
    """Run so many steps in the middle of a run, or as many of them as are steady. backend: one that has not run. ended:
    is told after each step how many are done, and of how many. keep: Ctrl-C ends them with those that are done, if one
    is."""
    phase = main_phase(backend.program)
    before = steps_before_middle(phase)
    coming = ((phase, number) for number in count(1))
    done, interrupted = list[tuple[tuple[float, int], Mapping[str, float]]](), False
    try:
        with closing(backend.iter_step_frames(coming)) as running:
            # Steps ahead of the last one are in flight as in the middle of a run; one more tells what its end waits
            # for.
            for _, extra in islice(running, before + steps + 1):
                done.append(((backend.now(), len(backend.works)), extra))
                ended(len(done), before + steps + 1)
    except KeyboardInterrupt:
        if not keep or len(done) < before + 2:
            raise
        steps, interrupted = len(done) - before - 1, True
    ends, told = [end for end, _ in done], [extra for _, extra in done]
    seconds = [end - start for (start, _), (end, _) in pairwise(ends[before - 1 : -1])]
    skipped = warm_up_step_count(seconds) if steps >= FEWEST else None
    warm_up = before + (skipped or 0)
    (began, first), (_, after) = ends[warm_up - 1], ends[-2]
    return SimulatedSteps(
        began,
        tuple(moment for moment, _ in ends[warm_up:-1]),
        tuple(told[warm_up:-1]),
        (first, after),
        warm_up,
        None if steps < FEWEST else skipped is not None,
        interrupted,
    )


def warm_up_step_count(seconds: Sequence[float]) -> int | None:
    """Return how many of the first steps do not count: the fewest after which the first and the second half of the rest
    take the same time on average, to 1%. None: there is no such number up to half of the steps."""
    for skipped in range(len(seconds) // 2 + 1):
        rest = seconds[skipped:]
        halves = fmean(rest[: len(rest) // 2]), fmean(rest[len(rest) // 2 :])
        if abs(halves[0] - halves[1]) <= NEAR * max(halves):
            return skipped
    return None


def steps_before_middle(phase: Phase) -> int:
    """Return the steps after which a simulation is in the middle of a run: a first step has weights that need not be
    brought, and the next ones do not know yet what they lag behind."""
    return 1 + phase.staleness.steps


def longest_cycle_seconds(backend: SimBackend) -> float:
    """Return the seconds of a step where no work waits for its turn on a pool: what is left is the longest cycle of
    dependences, over the steps that it spans. Such steps come in bursts, of as many as may be ahead.

    backend: one without turns that has not run.
    """
    phase = main_phase(backend.program)
    burst = steps_before_middle(phase)
    coming = ((phase, number) for number in count(1))
    with closing(backend.iter_step_frames(coming)) as running:
        ends = [backend.now() for _ in islice(running, 4 * burst)]
    return (ends[-1] - ends[2 * burst - 1]) / (2 * burst)
