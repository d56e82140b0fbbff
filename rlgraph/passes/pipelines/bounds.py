"""Lower bounds of the seconds of any schedule, and the seconds of one training after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.published_schedules import one_f_one_b_lists
from rlgraph.passes.pipelines.timetable import Timetable, compute_timetable


def makespan_lower_bound(problem: PipelineProblem) -> float:
    """Return a lower bound of the makespan: the largest of each model alone and of each stage, which does all its work
    between the time when the first micro-batch can reach it and the least time that is left after its last one."""
    seconds = [max(_way(model), _work([(model, model.stages - 1)])) for model in problem.models]
    for stage in range(problem.stage_count):
        seconds.append(
            _work([(line.model, line.stages.index(stage)) for line in problem.replicas if stage in line.stages])
        )
    return max(seconds)


def _way(model: PipelineModel) -> float:
    """Return the seconds of a micro-batch through all stages and back."""
    return model.stages * (model.forward + model.backward - model.weight) + model.part_seconds("W")


def _work(models: Sequence[tuple[PipelineModel, int]]) -> float:
    """Return the least seconds in which a stage is done, given each of its models with the stage's distance from the
    model's first stage.

    Either its last micro-batch still has to travel back, or gradients of weights come last, for which nobody waits:
    then they are all left to do, or are done while the last micro-batch travels.
    """
    first_s = min(distance * model.part_seconds("F") for model, distance in models)
    work = [(model.micro_batches * (model.forward + model.backward - model.weight)) for model, _ in models]
    weights_s = sum(model.micro_batches * model.weight for model, _ in models)
    travel_s = min(distance * model.part_seconds("I") + model.part_seconds("W") for model, distance in models)
    last_s = min(0.0 if model.weight else distance * model.part_seconds("B") for model, distance in models)
    return first_s + sum(work) + max(travel_s, weights_s + last_s)


def serial_seconds(problem: PipelineProblem) -> float:
    """Return the seconds of one model after the other, each by 1F1B, with one chunk on a stage and unsplit
    backwards."""
    return sum(_alone(model).makespan for model in problem.models)


def serial_peak_memory(problem: PipelineProblem) -> float:
    """Return the memory of the fullest stage with one model after the other by 1F1B. It is no bound: fewer
    micro-batches may be in flight, for more seconds."""
    return max(max(_alone(model).peaks) for model in problem.models)


def _alone(model: PipelineModel) -> Timetable:
    """Return the timetable of a single replica by 1F1B."""
    plain = replace(model, copies=1, reverse=False, chunks=1, weight=0.0)
    return compute_timetable(PipelineProblem((plain,)), one_f_one_b_lists(plain))
