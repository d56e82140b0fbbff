"""What a device does in a pipeline whose models are split unlike: each is in processes of its own, which take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rlgraph.passes.pipelines.counted import batched
from rlgraph.passes.pipelines.fuse import drawn
from rlgraph.passes.pipelines.problem import Model, Problem
from rlgraph.passes.pipelines.published import alone
from rlgraph.passes.pipelines.timetable import Entry


@dataclass(frozen=True, slots=True)
class Turn:
    """Of one process of a device."""

    entry: Entry
    """Its line is the number of a model among all of the pipeline."""
    after: int | None = None
    """The model whose process has to be done before; None: it is its own turn already."""
    then: int | None = None
    """The model whose process comes next; None: it goes on itself, or nobody does."""


def entries_of(models: Sequence[Model], stage: int, most: Sequence[int], here: Sequence[int]) -> list[Entry]:
    """What is done on a device of a stage, by the processes of all models.

    models: with all that their copies behind each other have, counted with one micro-batch. most: micro-batches of the
    copy that has most of them, of each model; here: of the copies on this device. Lists are made for the most: a copy
    that has fewer leaves the last ones out, which nobody waits for.
    """
    busy = [number for number, count in enumerate(most) if count]
    if not busy:
        return []
    problem = Problem(tuple(batched(models[number], most[number]) for number in busy))
    if len(busy) > 1:
        own: Sequence[Entry] = drawn(problem)[stage]
    else:
        [line] = [line for line in problem.lines if stage in line.stages]
        own = alone(replace(line.model, copies=1, reverse=False))[line.stages.index(stage)]
    owners, done, found = problem.owners, Counter[Entry](), []
    for entry in own:
        number = busy[owners[entry.line] if len(busy) > 1 else 0]
        if done[entry] < here[number]:
            found.append(entry._replace(line=number))
        done[entry] += 1
    return found


def turns_of(entries: Sequence[Entry], own: Collection[int]) -> list[Turn]:
    """Those of one process, which has some of the models."""
    if not entries:
        return []
    before, after = [None, *entries[:-1]], [*entries[1:], None]
    return [
        Turn(
            entry,
            None if one is None or one.line in own else one.line,
            None if other is None or other.line in own else other.line,
        )
        for one, entry, other in zip(before, entries, after, strict=True)
        if entry.line in own
    ]
