"""A schedule is data: for each stage what it does one after the other. What follows from it is worked out here.

Of a line's micro-batches the next one is meant each time, in each chunk and each part of the work, so that an entry
need not name it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlgraph.passes.pipelines.problem import Part, Problem


class Entry(NamedTuple):
    """What a stage does with the next micro-batch."""

    line: int
    """Its number."""
    part: Part
    chunk: int = 0
    """Of those that the stage has of the line."""

    def __str__(self) -> str:
        """`1F`, and for the third chunk `1.2F`."""
        return f"{self.line}.{self.chunk}{self.part}" if self.chunk else f"{self.line}{self.part}"


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
    ahead: list[list[list[float]]] = [[[] for _ in line.path] for line in lines]
    back: list[list[list[float]]] = [[[] for _ in line.path] for line in lines]
    """For each line, along its path, when micro-batches had gone forward, and when gradients of inputs were there."""
    apart, weights = ([[0 for _ in line.path] for line in lines] for _ in range(2))
    """How many of these were computed alone, and how many of weights afterwards."""
    starts: list[list[float]] = [[] for _ in lists]
    free, held, peaks = [0.0] * len(lists), [0.0] * len(lists), [0.0] * len(lists)
    waiting = {stage for stage, own in enumerate(lists) if own}
    moved = True
    while moved:
        moved = False
        for stage in sorted(waiting):
            while len(starts[stage]) < len(lists[stage]):
                line, part, chunk = lists[stage][len(starts[stage])]
                model, on = lines[line].model, place[line].get(stage)
                if on is None:
                    raise Stuck(f"`{model.name}` has nothing to do on stage {stage}")
                if not 0 <= chunk < model.chunks:
                    raise Stuck(f"`{model.name}` has no chunk {chunk}")
                at = chunk * model.stages + on
                gone, returned = ahead[line][at], back[line][at]
                if part == "F":
                    before = ahead[line][at - 1] if at else [0.0] * model.micro_batches
                    if len(gone) >= len(before):
                        break
                    ready = before[len(gone)]
                elif part == "W":
                    if weights[line][at] >= apart[line][at]:
                        break
                    ready = 0.0
                else:
                    before = back[line][at + 1] if at + 1 < len(ahead[line]) else gone
                    if len(returned) >= min(len(before), len(gone)):
                        break
                    ready = before[len(returned)]
                start = max(free[stage], ready)
                free[stage] = start + model.seconds(part)
                starts[stage].append(start)
                if part == "F":
                    gone.append(free[stage])
                    held[stage] += model.memory / model.chunks
                    peaks[stage] = max(peaks[stage], held[stage])
                elif part == "W":
                    weights[line][at] += 1
                else:
                    returned.append(free[stage])
                    apart[line][at] += part == "I"
                if part in "BW":
                    held[stage] -= model.memory / model.chunks
                moved = True
            if len(starts[stage]) == len(lists[stage]):
                waiting.discard(stage)
    if waiting:
        raise Stuck(f"stage {min(waiting)} waits for ever")
    for number, each_line in enumerate(lines):
        every = all(len(each) == each_line.model.micro_batches for each in (*ahead[number], *back[number]))
        if not every or weights[number] != apart[number]:
            raise Stuck("not every micro-batch goes forward and backward on every stage")
    return Timetable(tuple(map(tuple, starts)), max(free), tuple(peaks))


WAYS: dict[Part, str] = {"F": "forward", "B": "backward", "I": "backward (inputs)", "W": "backward (weights)"}
"""For people."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An entry of a list, and when it is done."""

    stage: int
    entry: Entry
    number: int
    """Of the micro-batch, of its line, from 0 on."""
    start: float
    """Seconds, as `end`."""
    end: float


def pieces(problem: Problem, lists: Lists, table: Timetable) -> Iterator[Piece]:
    """Of each stage in the order of its list. table: of these lists."""
    lines = problem.lines
    for stage, (own, starts) in enumerate(zip(lists, table.starts, strict=True)):
        done = {entry: 0 for entry in own}
        for entry, start in zip(own, starts, strict=True):
            end = start + lines[entry.line].model.seconds(entry.part)
            yield Piece(stage, entry, done[entry], start, end)
            done[entry] += 1
