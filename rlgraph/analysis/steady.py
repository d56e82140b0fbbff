"""Where the steps of a simulation take the same time again and again, and what they would take at least."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import count, islice
from statistics import fmean

from rlgraph.backends.sim.backend import SimBackend
from rlgraph.cost.tasks import main_step
from rlgraph.ir.graph import Phase

NEAR = 0.01
FEWEST = 4
"""Steps from which on their halves can be compared."""


def settled(seconds: Sequence[float]) -> int | None:
    """How many of the first steps do not count: the fewest after which the first and the second half of the rest take
    the same time on average, to 1%. None: there is no such number up to half of the steps."""
    for skipped in range(len(seconds) // 2 + 1):
        rest = seconds[skipped:]
        halves = fmean(rest[: len(rest) // 2]), fmean(rest[len(rest) // 2 :])
        if abs(halves[0] - halves[1]) <= NEAR * max(halves):
            return skipped
    return None


def first_of(phase: Phase) -> int:
    """Steps after which a simulation is in the middle of a run: a first step has weights that need not be brought, and
    the next ones do not know yet what they lag behind."""
    return 1 + phase.staleness.steps


def longest_cycle(backend: SimBackend) -> float:
    """Seconds of a step where no work waits for its turn on a pool: what is left is the longest cycle of dependences,
    over the steps that it spans. Such steps come in bursts, of as many as may be ahead.

    backend: one without turns that has not run."""
    phase = main_step(backend.program)
    burst = first_of(phase)
    coming = ((phase, number) for number in count(1))
    with closing(backend.run_steps(coming)) as running:
        ends = [backend.now() for _ in islice(running, 4 * burst)]
    return (ends[-1] - ends[2 * burst - 1]) / (2 * burst)
