"""What no schedule can beat, and what one training after the other takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlgraph.passes.pipelines.problem import Model, Problem
from rlgraph.passes.pipelines.published import one_f_one_b
from rlgraph.passes.pipelines.timetable import Timetable, timetable


def least_seconds(problem: Problem) -> float:
    """A bound of the makespan: of each model alone, and of each stage with all its work between the time when the first
    micro-batch can reach it and the least that is left after its last one."""
    found = [max(_way(model), _work([(model, model.stages - 1)])) for model in problem.models]
    for stage in range(problem.stages):
        found.append(_work([(each.model, each.stages.index(stage)) for each in problem.lines if stage in each.stages]))
    return max(found)


def _way(model: Model) -> float:
    """Of a micro-batch through all stages and back."""
    return model.stages * (model.forward + model.backward - model.weight) + model.seconds("W")


def _work(here: Sequence[tuple[Model, int]]) -> float:
    """Of a stage, which is so far behind the first one of each of these models.

    Either its last micro-batch has its way back before it, or what comes last are gradients of weights, for which
    nobody waits: then it has them all to do, or does them while the last one is on its way.
    """
    began = min(at * model.seconds("F") for model, at in here)
    work = [(model.micro_batches * (model.forward + model.backward - model.weight)) for model, _ in here]
    apart = sum(model.micro_batches * model.weight for model, _ in here)
    back = min(at * model.seconds("I") + model.seconds("W") for model, at in here)
    least = min(0.0 if model.weight else at * model.seconds("B") for model, at in here)
    return began + sum(work) + max(back, apart + least)


def serial_seconds(problem: Problem) -> float:
    """One model after the other, each by 1F1B, with one chunk on a stage and backwards that are whole."""
    return sum(_alone(model).makespan for model in problem.models)


def serial_memory(problem: Problem) -> float:
    """Of the fullest stage, one model after the other by 1F1B. No bound: fewer may be in flight, for more seconds."""
    return max(max(_alone(model).peaks) for model in problem.models)


def _alone(model: Model) -> Timetable:
    plain = replace(model, copies=1, reverse=False, chunks=1, weight=0.0)
    return timetable(Problem((plain,)), one_f_one_b(plain))
