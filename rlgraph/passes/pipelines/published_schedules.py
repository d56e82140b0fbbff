"""Published pipeline schedules of one model, as lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.timetable import Lists, ScheduleEntry


def one_f_one_b_lists(model: PipelineModel) -> Lists:
    """Return the 1F1B lists of one replica with one chunk on a stage: as many forwards ahead as there are stages to
    come, then backward and forward in turn (PipeDream-Flush, arXiv 2006.09503)."""
    assert model.chunks == 1, "chunks are for `interleaved_lists`"
    lists = []
    for stage in range(model.stages):
        ahead = min(model.micro_batches, model.stages - stage)
        turns = [ScheduleEntry(0, "B"), ScheduleEntry(0, "F")] * (model.micro_batches - ahead)
        lists.append((ScheduleEntry(0, "F"),) * ahead + tuple(turns) + (ScheduleEntry(0, "B"),) * ahead)
    return tuple(lists)


def interleaved_lists(model: PipelineModel) -> Lists:
    """Return the interleaved 1F1B lists of one replica, with unsplit backwards. Micro-batches go in groups of as many
    as there are stages, each group through chunk after chunk (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
    With m micro-batches on p stages of v chunks it takes (m + (p - 1) / v) (F + B) seconds if m is at least p, which no
    lists can beat.

    Where the stages do not divide the micro-batches, which the paper asks for, groups are as equal as possible, none
    smaller than the number of stages, and memory is that of the largest.
    """
    stages, sizes = model.stages, _groups(model.stages, model.micro_batches)
    goes = forward_entries(stages, model.micro_batches, model.chunks)
    returns = [
        ScheduleEntry(0, "B", chunk) for size in sizes for chunk in reversed(range(model.chunks)) for _ in range(size)
    ]
    lists = []
    for stage in range(stages):
        ahead = round(model.chunks * micro_batches_in_flight(stages, model.micro_batches, model.chunks, stage))
        entries = goes[:ahead]
        for back, further in zip(returns, goes[ahead:], strict=False):
            entries += [back, further]
        lists.append((*entries, *returns[len(goes) - ahead :]))
    return tuple(lists)


def micro_batches_in_flight(stages: int, micro_batches: int, chunks: int, stage: int) -> float:
    """Return how many micro-batches a stage has at most at a time by `interleaved_lists`: one that is in some of the
    stage's chunks counts as that fraction."""
    warm_up = 2 * (stages - stage - 1) + (chunks - 1) * _groups(stages, micro_batches)[0] + 1
    return min(micro_batches, warm_up / chunks)


def forward_entries(stages: int, micro_batches: int, chunks: int) -> list[ScheduleEntry]:
    """Return the forwards of any stage in their order: all chunks of a group come before the next group."""
    sizes = _groups(stages, micro_batches)
    return [ScheduleEntry(0, "F", chunk) for size in sizes for chunk in range(chunks) for _ in range(size)]


def _groups(stages: int, micro_batches: int) -> list[int]:
    """Return the sizes of as many groups as possible with no fewer micro-batches than stages, the largest first."""
    groups = max(1, micro_batches // stages)
    return [micro_batches // groups + (group < micro_batches % groups) for group in range(groups)]


def zero_bubble_lists(model: PipelineModel) -> Lists:
    """Return the ZB-H1 lists of one replica with one chunk on a stage (Qi et al. 2024, arXiv 2401.10241, section 2.2).
    It is 1F1B, but the stage before waits for gradients of inputs only; those of weights come as many micro-batches
    later as there are stages before, so that every stage has as many micro-batches in flight as the first one with
    1F1B, and no more.

    With m micro-batches on p stages it takes m (F + B + W) + (p - 1) (F + B - W) seconds, where B is the backward
    without W, m is at least p, and W is no longer than F and B.
    """
    assert model.chunks == 1, "chunks are for `interleaved_lists`"
    lists = []
    for stage in range(model.stages):
        ahead = min(model.micro_batches, model.stages - stage)
        entries = [ScheduleEntry(0, "F")] * ahead
        for number in range(model.micro_batches):
            entries.append(ScheduleEntry(0, "I"))
            if number >= stage:
                entries.append(ScheduleEntry(0, "W"))
            if ahead + number < model.micro_batches:
                entries.append(ScheduleEntry(0, "F"))
        late = min(stage, model.micro_batches)
        lists.append((*entries, *[ScheduleEntry(0, "W")] * late))
    return tuple(lists)


def published_lists(model: PipelineModel) -> Lists:
    """Return the published lists for the chunks and halves of one replica; with both, interleaved with every backward
    in its two halves at once."""
    if model.chunks == 1:
        return zero_bubble_lists(model) if model.weight else one_f_one_b_lists(model)
    lists = interleaved_lists(model)
    return tuple(_halved(entries) for entries in lists) if model.weight else lists


def serial_lists(problem: PipelineProblem) -> Lists:
    """Return the lists of one model after the other; the replicas of a model work at the same time."""
    lists: list[list[ScheduleEntry]] = [[] for _ in range(problem.stage_count)]
    for number, line in enumerate(problem.replicas):
        stage_lists = published_lists(replace(line.model, copies=1, reverse=False))
        for stage, entries in zip(line.stages, stage_lists, strict=True):
            lists[stage] += [entry._replace(replica=number) for entry in entries]
    return tuple(map(tuple, lists))


def _halved(entries: Sequence[ScheduleEntry]) -> tuple[ScheduleEntry, ...]:
    """Return the entries with every backward replaced by its two halves."""
    halves = {"F": ("F",), "B": ("I", "W")}
    return tuple(entry._replace(part=part) for entry in entries for part in halves[entry.part])  # type: ignore[arg-type]
