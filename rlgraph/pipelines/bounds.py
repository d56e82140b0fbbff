"""What no schedule can beat, and what one training after the other takes."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.pipelines.problem import Model, Problem
from rlgraph.pipelines.timetable import Timetable, one_f_one_b, timetable


def least_seconds(problem: Problem) -> float:
    """A bound of the makespan: of each model alone, and of each stage with all its work between the time when the first
    micro-batch can reach it and the least that is left after its last one."""
    found = [(model.micro_batches + model.stages - 1) * (model.forward + model.backward) for model in problem.models]
    for stage in range(problem.stages):
        here = [(line.model, line.stages.index(stage)) for line in problem.lines if stage in line.stages]
        work = sum(model.micro_batches * (model.forward + model.backward) for model, _ in here)
        found.append(
            min(at * model.forward for model, at in here) + work + min(at * model.backward for model, at in here)
        )
    return max(found)


def serial_seconds(problem: Problem) -> float:
    """One model after the other, each by 1F1B."""
    return sum(_alone(model).makespan for model in problem.models)


def serial_memory(problem: Problem) -> float:
    """Of the fullest stage, one model after the other by 1F1B. No bound: fewer may be in flight, for more seconds."""
    return max(max(_alone(model).peaks) for model in problem.models)


def _alone(model: Model) -> Timetable:
    return timetable(Problem((replace(model, copies=1, reverse=False),)), one_f_one_b(model))
