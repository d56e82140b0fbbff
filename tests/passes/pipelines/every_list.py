"""All schedules of a problem that is small enough for it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.timetable import ScheduleDeadlock, ScheduleEntry, compute_timetable


def entries(told: str) -> tuple[ScheduleEntry, ...]:
    """As they are printed: `0F 1.2B`."""
    found = [(each[:-1].partition("."), each[-1]) for each in told.split()]
    return tuple(ScheduleEntry(int(line), part, int(chunk or 0)) for (line, _, chunk), part in found)  # type: ignore[arg-type]


def shortest(problem: PipelineProblem) -> float:
    """By trying all of them."""
    found = []
    for lists in itertools.product(*(list(sequences(problem, stage)) for stage in range(problem.stage_count))):
        try:
            table = compute_timetable(problem, lists)
        except ScheduleDeadlock:
            continue
        if problem.capacity is None or max(table.peaks) <= problem.capacity:
            found.append(table.makespan)
    return min(found)


def sequences(problem: PipelineProblem, stage: int) -> Iterator[tuple[ScheduleEntry, ...]]:
    """All that a stage can do in some order, nothing before what it needs of the same stage."""
    to_do = Counter(
        {
            ScheduleEntry(number, part, chunk): line.model.micro_batches
            for number, line in enumerate(problem.replicas)
            if stage in line.stages
            for part in line.model.micro_batch_parts
            for chunk in range(line.model.chunks)
        }
    )
    return _orders(problem, to_do, ())


def _orders(
    problem: PipelineProblem, to_do: Counter[ScheduleEntry], done: tuple[ScheduleEntry, ...]
) -> Iterator[tuple[ScheduleEntry, ...]]:
    if not to_do.total():
        yield done
    for entry in [each for each, count in to_do.items() if count]:
        before = _before(entry, problem.replicas[entry.replica].model)
        if before and to_do[before] >= to_do[entry]:
            continue
        to_do[entry] -= 1
        yield from _orders(problem, to_do, (*done, entry))
        to_do[entry] += 1


def _before(entry: ScheduleEntry, model: PipelineModel) -> ScheduleEntry | None:
    goes, returns, *_ = model.micro_batch_parts
    if entry.part == goes:
        return entry._replace(chunk=entry.chunk - 1) if entry.chunk else None
    if entry.part == "W":
        return entry._replace(part=returns)
    last = entry.chunk == model.chunks - 1
    return entry._replace(part=goes) if last else entry._replace(chunk=entry.chunk + 1)
