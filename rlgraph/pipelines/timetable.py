"""A schedule is data: for each stage what it does one after the other. What follows from it is worked out here.

Of a line's micro-batches the next one is meant each time, forward and backward, so that an entry need not name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlgraph.pipelines.problem import Model, Problem

Entry = tuple[int, bool]
"""The number of a line, and whether its next micro-batch goes backward."""

Lists = tuple[tuple[Entry, ...], ...]
"""Of each stage."""


class Stuck(ValueError):
    """Stages wait for each other, or something is left out."""


@dataclass(frozen=True, slots=True)
class Timetable:
    starts: tuple[tuple[float, ...], ...]
    """Of each stage's entries, seconds."""
    makespan: float
    """Seconds."""
    peaks: tuple[float, ...]
    """Of each stage: the most memory that micro-batches in flight need."""


def timetable(problem: Problem, lists: Sequence[Sequence[Entry]]) -> Timetable:
    """Everything as early as its list permits. Raises Stuck."""
    lines = problem.lines
    place = [{stage: at for at, stage in enumerate(line.stages)} for line in lines]
    done: list[tuple[list[list[float]], list[list[float]]]]
    done = [([[] for _ in line.stages], [[] for _ in line.stages]) for line in lines]
    """For each line, forward and backward, when each stage's micro-batches ended."""
    starts: list[list[float]] = [[] for _ in lists]
    free, held, peaks = [0.0] * len(lists), [0.0] * len(lists), [0.0] * len(lists)
    waiting = {stage for stage, own in enumerate(lists) if own}
    moved = True
    while moved:
        moved = False
        for stage in sorted(waiting):
            while len(starts[stage]) < len(lists[stage]):
                line, backward = lists[stage][len(starts[stage])]
                model, at = lines[line].model, place[line].get(stage)
                if at is None:
                    raise Stuck(f"`{model.name}` has nothing to do on stage {stage}")
                ahead, back = done[line]
                own = (back if backward else ahead)[at]
                if backward:
                    before = back[at + 1] if at + 1 < len(ahead) else ahead[at]
                    before = before if len(ahead[at]) > len(own) else []
                else:
                    before = ahead[at - 1] if at else [0.0] * model.micro_batches
                if len(own) >= len(before):
                    break
                start = max(free[stage], before[len(own)])
                free[stage] = start + (model.backward if backward else model.forward)
                own.append(free[stage])
                starts[stage].append(start)
                held[stage] += -model.memory if backward else model.memory
                peaks[stage] = max(peaks[stage], held[stage])
                moved = True
            if len(starts[stage]) == len(lists[stage]):
                waiting.discard(stage)
    if waiting:
        raise Stuck(f"stage {min(waiting)} waits for ever")
    if sum(map(len, starts)) != problem.work:
        raise Stuck("not every micro-batch goes forward and backward on every stage")
    return Timetable(tuple(map(tuple, starts)), max(free), tuple(peaks))


def one_f_one_b(model: Model) -> Lists:
    """Of one copy alone: as many forwards ahead as there are stages to come, then backward and forward in turn
    (PipeDream-Flush, arXiv 2006.09503)."""
    found = []
    for stage in range(model.stages):
        ahead = min(model.micro_batches, model.stages - stage)
        turns = [(0, True), (0, False)] * (model.micro_batches - ahead)
        found.append(((0, False),) * ahead + tuple(turns) + ((0, True),) * ahead)
    return tuple(found)
