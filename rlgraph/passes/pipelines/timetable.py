"""A schedule as data: for each stage the list of what it does. Times and memory are computed from it.

An entry always means the next micro-batch of its line, in its chunk and its part of the work, and need not name it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlgraph.passes.pipelines.problem import Part, PipelineProblem


class ScheduleEntry(NamedTuple):
    """What a stage does with the next micro-batch."""

    replica: int
    """The number of the line."""
    part: Part
    chunk: int = 0
    """Which of the line's chunks on this stage."""

    def __str__(self) -> str:
        """Return `1F`, and for the third chunk `1.2F`."""
        return f"{self.replica}.{self.chunk}{self.part}" if self.chunk else f"{self.replica}{self.part}"


Lists = tuple[tuple[ScheduleEntry, ...], ...]
"""For each stage its entries, one after the other."""


class ScheduleDeadlock(ValueError):
    """Raised where stages wait for each other, or something is left out."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """The times of a schedule, and the memory that it needs."""

    starts: tuple[tuple[float, ...], ...]
    """For each stage the starts of its entries, in seconds."""
    makespan: float
    """Seconds."""
    peaks: tuple[float, ...]
    """For each stage the most memory that micro-batches in flight need."""


def compute_timetable(problem: PipelineProblem, lists: Sequence[Sequence[ScheduleEntry]]) -> Timetable:
    """Return the timetable in which everything begins as early as its list permits. Raises ScheduleDeadlock."""
    lines = problem.replicas
    positions = [{stage: position for position, stage in enumerate(line.stages)} for line in lines]
    forwards: list[list[list[float]]] = [[[] for _ in line.forward_path] for line in lines]
    backwards: list[list[list[float]]] = [[[] for _ in line.forward_path] for line in lines]
    """For each line, along its path, when forwards ended, and when gradients of inputs were computed."""
    inputs, weights = ([[0 for _ in line.forward_path] for line in lines] for _ in range(2))
    """How many gradients of inputs were computed separately, and how many of weights afterwards."""
    starts: list[list[float]] = [[] for _ in lists]
    free, held, peaks = [0.0] * len(lists), [0.0] * len(lists), [0.0] * len(lists)
    waiting = {stage for stage, entries in enumerate(lists) if entries}
    moved = True
    while moved:
        moved = False
        for stage in sorted(waiting):
            while len(starts[stage]) < len(lists[stage]):
                line, part, chunk = lists[stage][len(starts[stage])]
                model, stage_index = lines[line].model, positions[line].get(stage)
                if stage_index is None:
                    raise ScheduleDeadlock(f"`{model.name}` has nothing to do on stage {stage}")
                if not 0 <= chunk < model.chunks:
                    raise ScheduleDeadlock(f"`{model.name}` has no chunk {chunk}")
                position = chunk * model.stages + stage_index
                forward_done, backward_done = forwards[line][position], backwards[line][position]
                if part == "F":
                    upstream = forwards[line][position - 1] if position else [0.0] * model.micro_batches
                    if len(forward_done) >= len(upstream):
                        break
                    ready = upstream[len(forward_done)]
                elif part == "W":
                    if weights[line][position] >= inputs[line][position]:
                        break
                    ready = 0.0
                else:
                    upstream = backwards[line][position + 1] if position + 1 < len(forwards[line]) else forward_done
                    if len(backward_done) >= min(len(upstream), len(forward_done)):
                        break
                    ready = upstream[len(backward_done)]
                start = max(free[stage], ready)
                free[stage] = start + model.part_seconds(part)
                starts[stage].append(start)
                if part == "F":
                    forward_done.append(free[stage])
                    held[stage] += model.memory / model.chunks
                    peaks[stage] = max(peaks[stage], held[stage])
                elif part == "W":
                    weights[line][position] += 1
                else:
                    backward_done.append(free[stage])
                    inputs[line][position] += part == "I"
                if part in "BW":
                    held[stage] -= model.memory / model.chunks
                moved = True
            if len(starts[stage]) == len(lists[stage]):
                waiting.discard(stage)
    if waiting:
        raise ScheduleDeadlock(f"stage {min(waiting)} waits for ever")
    for number, checked_line in enumerate(lines):
        complete = all(
            len(ends) == checked_line.model.micro_batches for ends in (*forwards[number], *backwards[number])
        )
        if not complete or weights[number] != inputs[number]:
            raise ScheduleDeadlock("not every micro-batch goes forward and backward on every stage")
    return Timetable(tuple(map(tuple, starts)), max(free), tuple(peaks))


WAYS: dict[Part, str] = {"F": "forward", "B": "backward", "I": "backward (inputs)", "W": "backward (weights)"}
"""The names of the parts for people."""


@dataclass(frozen=True, slots=True)
class TimedEntry:
    """An entry of a list, and when it is done."""

    stage: int
    entry: ScheduleEntry
    number: int
    """The number of the micro-batch in its line, counted from 0."""
    start: float
    """Seconds, as is `end`."""
    end: float


def timed_entries(problem: PipelineProblem, lists: Lists, table: Timetable) -> Iterator[TimedEntry]:
    """Yield the pieces of each stage in the order of its list. table: the timetable of these lists."""
    lines = problem.replicas
    for stage, (entries, starts) in enumerate(zip(lists, table.starts, strict=True)):
        done = {entry: 0 for entry in entries}
        for entry, start in zip(entries, starts, strict=True):
            end = start + lines[entry.replica].model.part_seconds(entry.part)
            yield TimedEntry(stage, entry, done[entry], start, end)
            done[entry] += 1
