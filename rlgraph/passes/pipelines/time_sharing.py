"""What a device does in a pipeline of models with heterogeneous meshes: each is in processes of its own, which take
turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rlgraph.passes.pipelines.messages import StageTransfer, Step
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.relative_costs import split_into_micro_batches
from rlgraph.passes.pipelines.stage_programs import training_stage_programs
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


def device_schedule(
    models: Sequence[PipelineModel], stage: int, most: Sequence[int], here: Sequence[int]
) -> list[Step]:
    """Return what the processes of all models do on a device of a stage, in order, with their messages.

    models: each counted with one micro-batch, with the memory and seconds of all its replicas. most: for each model,
    the micro-batches of the replica that has most of them; here: of the replicas on this device. Lists are made for
    `most`: a replica with fewer leaves out the last ones, for which nobody waits.
    """
    busy = [number for number, count in enumerate(most) if count]
    if not busy:
        return []
    problem = PipelineProblem(tuple(split_into_micro_batches(models[number], most[number]) for number in busy))
    owners, done, steps = problem.model_of_replica, Counter[Step](), list[Step]()
    for planned in training_stage_programs(problem)[stage]:
        number = busy[owners[planned.replica]]
        if done[planned] < here[number]:
            steps.append(planned._replace(replica=number))
        done[planned] += 1
    return steps


def process_turns(steps: Sequence[Step], own: Collection[int]) -> list[ProcessTurn | StageTransfer]:
    """Return the turns of one process, which has the models `own`, and its messages between them."""
    entries = [step for step in steps if isinstance(step, ScheduleEntry)]
    before, after = iter([None, *entries[:-1]]), iter([*entries[1:], None])
    turns: list[ProcessTurn | StageTransfer] = []
    for step in steps:
        if isinstance(step, StageTransfer):
            turns += [step] if step.replica in own else []
            continue
        previous, following = next(before), next(after)
        if step.replica in own:
            turns.append(
                ProcessTurn(
                    step,
                    None if previous is None or previous.replica in own else previous.replica,
                    None if following is None or following.replica in own else following.replica,
                )
            )
    return turns
