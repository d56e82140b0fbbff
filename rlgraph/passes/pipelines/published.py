"""Schedules of one model that are published, as lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlgraph.passes.pipelines.problem import Model, Problem
from rlgraph.passes.pipelines.timetable import Entry, Lists


def one_f_one_b(model: Model) -> Lists:
    """Of one copy alone, with one chunk on a stage: as many forwards ahead as there are stages to come, then backward
    and forward in turn (PipeDream-Flush, arXiv 2006.09503)."""
    assert model.chunks == 1, "chunks are for `interleaved`"
    found = []
    for stage in range(model.stages):
        ahead = min(model.micro_batches, model.stages - stage)
        turns = [Entry(0, "B"), Entry(0, "F")] * (model.micro_batches - ahead)
        found.append((Entry(0, "F"),) * ahead + tuple(turns) + (Entry(0, "B"),) * ahead)
    return tuple(found)


def interleaved(model: Model) -> Lists:
    """Of one copy alone, backwards whole: 1F1B over chunks. Micro-batches go in groups of as many as there are stages,
    each group through chunk after chunk (Narayanan et al. 2021, arXiv 2104.04473, section 2.2). With m micro-batches on
    p stages of v chunks it takes (m + (p - 1) / v) (F + B) seconds, if m is at least p, which no lists can beat.

    Where the stages do not divide the micro-batches, which the paper asks for, groups are as alike as possible, none
    with fewer than there are stages, and memory is that of the largest.
    """
    stages, sizes = model.stages, _groups(model.stages, model.micro_batches)
    goes = forwards(stages, model.micro_batches, model.chunks)
    returns = [Entry(0, "B", chunk) for size in sizes for chunk in reversed(range(model.chunks)) for _ in range(size)]
    found = []
    for stage in range(stages):
        ahead = round(model.chunks * in_flight(stages, model.micro_batches, model.chunks, stage))
        own = goes[:ahead]
        for back, further in zip(returns, goes[ahead:], strict=False):
            own += [back, further]
        found.append((*own, *returns[len(goes) - ahead :]))
    return tuple(found)


def in_flight(stages: int, micro_batches: int, chunks: int, stage: int) -> float:
    """Micro-batches that a stage has at most at a time by `interleaved`: one that is in some of the stage's chunks
    counts as so much of it."""
    warm_up = 2 * (stages - stage - 1) + (chunks - 1) * _groups(stages, micro_batches)[0] + 1
    return min(micro_batches, warm_up / chunks)


def forwards(stages: int, micro_batches: int, chunks: int) -> list[Entry]:
    """In which order any stage has them go forward, where all chunks of a group come before the next group."""
    sizes = _groups(stages, micro_batches)
    return [Entry(0, "F", chunk) for size in sizes for chunk in range(chunks) for _ in range(size)]


def _groups(stages: int, micro_batches: int) -> list[int]:
    """As many as there can be with no fewer micro-batches than stages, the largest first."""
    groups = max(1, micro_batches // stages)
    return [micro_batches // groups + (group < micro_batches % groups) for group in range(groups)]


def zero_bubble(model: Model) -> Lists:
    """Of one copy alone, with one chunk on a stage: ZB-H1 (Qi et al. 2024, arXiv 2401.10241, section 2.2). As 1F1B, but
    the stage before waits for gradients of inputs only; those of weights come as many micro-batches later as there are
    stages before, so that every stage has as many micro-batches in flight as the first one with 1F1B, and no more.

    With m micro-batches on p stages it takes m (F + B + W) + (p - 1) (F + B - W) seconds, where B is what is left of a
    backward without W, m is at least p, and W is no longer than F and B.
    """
    assert model.chunks == 1, "chunks are for `interleaved`"
    found = []
    for stage in range(model.stages):
        ahead = min(model.micro_batches, model.stages - stage)
        own = [Entry(0, "F")] * ahead
        for number in range(model.micro_batches):
            own.append(Entry(0, "I"))
            if number >= stage:
                own.append(Entry(0, "W"))
            if ahead + number < model.micro_batches:
                own.append(Entry(0, "F"))
        late = min(stage, model.micro_batches)
        found.append((*own, *[Entry(0, "W")] * late))
    return tuple(found)


def alone(model: Model) -> Lists:
    """Of one copy, by what is published for its chunks or its halves; with both, interleaved and every backward in its
    halves at once."""
    if model.chunks == 1:
        return zero_bubble(model) if model.weight else one_f_one_b(model)
    lists = interleaved(model)
    return tuple(_halved(own) for own in lists) if model.weight else lists


def in_turn(problem: Problem) -> Lists:
    """One model after the other; the copies of a model beside each other."""
    found: list[list[Entry]] = [[] for _ in range(problem.stages)]
    for number, line in enumerate(problem.lines):
        own = alone(replace(line.model, copies=1, reverse=False))
        for stage, entries in zip(line.stages, own, strict=True):
            found[stage] += [entry._replace(line=number) for entry in entries]
    return tuple(map(tuple, found))


def _halved(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    halves = {"F": ("F",), "B": ("I", "W")}
    return tuple(entry._replace(part=part) for entry in entries for part in halves[entry.part])  # type: ignore[arg-type]
