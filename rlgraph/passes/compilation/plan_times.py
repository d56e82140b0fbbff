"""Predicts the seconds of the work of a plan: a plan file has those of the whole step, and the cost model those of its
parts."""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.compilation.assumed_workload import assumed_workload
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.predict import Predictor, task_cost_model
from rlgraph.passes.cost.task import Task, device_takeovers
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.placement.model_configs import model_config


def plan_predictor(compiled: Compilation) -> Predictor | None:
    """Return the predictor of a plan's times; None where nothing is predicted of it: nobody chose it for a cluster, or
    with constants that are not here."""
    if compiled.target is not None:
        question = compiled.choice.question
        return Predictor(compiled.plan, compiled.choice.model_configs, question.cluster, question.constants)
    if "seconds" not in compiled.plan_file_sections.get("predicted", {}):
        return None
    program, plan, cluster = compiled.program, compiled.plan, read_cluster(compiled.plan.cluster)
    constants = default_constants(cluster.islands[0].device.kind)
    if compiled.assumptions.get("constants") != constants.source:
        return None
    shapes = compiled.placed.shapes
    shaped = {
        model.name: (model, shape) for model in program.models if isinstance(shape := shapes.get(model.name), Shape)
    }
    return Predictor(
        plan, {name: model_config(model, shape, program) for name, (model, shape) in shaped.items()}, cluster, constants
    )


def main_step_task_seconds(compiled: Compilation, step: Sequence[Task]) -> dict[int, float]:
    """Return the seconds of the main step's tasks by number, with all repetitions; empty if nothing is predicted."""
    if compiled.target is not None:
        choice = compiled.choice
        parts = zip(choice.problem.components, choice.search_result.options, strict=True)
        return {
            number: took
            for component, option in parts
            for number, took in zip(component.tasks, option.seconds, strict=True)
        }
    return task_seconds(compiled, step)


def predicted_seconds_by_work(compiled: Compilation) -> dict[str, float]:
    """Return the seconds that each piece of a step's work is predicted to take, by its name (`train actor`); empty for
    a program whose plan nobody chose for a cluster."""
    if compiled.target is None and "seconds" not in compiled.plan_file_sections.get("predicted", {}):
        return {}
    step = phase_tasks(
        compiled.program, main_phase(compiled.program), assumed_workload(compiled), compiled.plan.cpus_of_code
    )
    by_name: dict[str, float] = {}
    for number, seconds in main_step_task_seconds(compiled, step).items():
        task = step[number]
        name = task.name if task.name.startswith(task.op) else f"{task.op} {task.name}"
        by_name[name] = by_name.get(name, 0.0) + seconds
    return by_name


def task_seconds(compiled: Compilation, step: Sequence[Task]) -> dict[int, float]:
    """Return the seconds of each task with a model by its number; empty if nothing is predicted."""
    predictor, by_task = plan_predictor(compiled), dict[int, float]()
    if predictor is None:
        return by_task
    plan = compiled.plan
    for number, task in enumerate(step):
        if task.model is None or task.model not in predictor.configs:
            continue
        group = plan.group_of_role(task.model, task.op)
        deployment = predictor.deployment(task.model, group)
        model = task_cost_model(task.op, predictor.configs[task.model], deployment, predictor.constants, task.batches)
        same_group = [
            at
            for at, other in enumerate(step)
            if other.model == task.model and plan.group_of_role(other.model, other.op) == group
        ]
        moved = predictor.offload_round_trip_cost(task.model, group.name, task.op, task.batches).seconds
        by_task[number] = model.seconds(deployment.dp) * task.repetitions + moved * device_takeovers(
            step, number, same_group
        )
    return by_task
