"""What a device does in a pipeline of models with heterogeneous meshes: each is in processes of its own, which take
turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rlgraph.passes.pipelines.counted_models import split_into_micro_batches
from rlgraph.passes.pipelines.fuse import best_rule_schedule
from rlgraph.passes.pipelines.problem import PipelineModel, Problem
from rlgraph.passes.pipelines.published import published_lists
from rlgraph.passes.pipelines.timetable import ScheduleEntry


@dataclass(frozen=True, slots=True)
class ProcessTurn:
    """One entry of the list of one process of a device, and the processes before and after it."""

    entry: ScheduleEntry
    """Its `line` is the number of a model among all of the pipeline."""
    previous_model: int | None = None
    """The model whose process has to finish first; None where it is this process's turn already."""
    next_model: int | None = None
    """The model whose process comes next; None where this process continues, or nothing follows."""


def device_entries(
    models: Sequence[PipelineModel], stage: int, most: Sequence[int], here: Sequence[int]
) -> list[ScheduleEntry]:
    """Return what the processes of all models do on a device of a stage, in order.

    models: each counted with one micro-batch, with the memory and seconds of all its replicas. most: for each model,
    the micro-batches of the replica that has most of them; here: of the replicas on this device. Lists are made for
    `most`: a replica with fewer leaves out the last ones, for which nobody waits.
    """
    busy = [number for number, count in enumerate(most) if count]
    if not busy:
        return []
    problem = Problem(tuple(split_into_micro_batches(models[number], most[number]) for number in busy))
    if len(busy) > 1:
        planned: Sequence[ScheduleEntry] = best_rule_schedule(problem)[stage]
    else:
        [line] = [line for line in problem.replicas if stage in line.stages]
        planned = published_lists(replace(line.model, copies=1, reverse=False))[line.stages.index(stage)]
    owners, done, entries = problem.model_of_replica, Counter[ScheduleEntry](), []
    for entry in planned:
        number = busy[owners[entry.replica] if len(busy) > 1 else 0]
        if done[entry] < here[number]:
            entries.append(entry._replace(replica=number))
        done[entry] += 1
    return entries


def process_turns(entries: Sequence[ScheduleEntry], own: Collection[int]) -> list[ProcessTurn]:
    """Return the turns of one process, which has the models `own`."""
    if not entries:
        return []
    before, after = [None, *entries[:-1]], [*entries[1:], None]
    return [
        ProcessTurn(
            entry,
            None if previous is None or previous.replica in own else previous.replica,
            None if following is None or following.replica in own else following.replica,
        )
        for previous, entry, following in zip(before, entries, after, strict=True)
        if entry.replica in own
    ]
