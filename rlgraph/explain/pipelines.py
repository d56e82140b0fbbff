"""The pipelines of a plan, stage by stage: the lists that ranks follow, in the seconds that are predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlgraph.catalog.clusters.units import format_quantity, format_seconds
from rlgraph.ir.graph import Program
from rlgraph.ops import NODES
from rlgraph.passes.compilation.assumed_workload import assumed_workload
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.plan_times import plan_predictor
from rlgraph.passes.cost.batch import Batch, total_rows
from rlgraph.passes.cost.fused_pipelines import FusedPipeline
from rlgraph.passes.cost.peak_memory import in_flight_bytes
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.rewrites.accumulate import accumulating_models
from rlgraph.viz.boxes import Role
from rlgraph.viz.gantt import Chart, gantt_svg
from rlgraph.viz.pipeline import draw_pipeline
from rlgraph.viz.scene import role_of_model


@dataclass(frozen=True, slots=True)
class PlanPipeline:
    """A pipeline with the largest mini-batch that goes through it."""

    fusion: FusedPipeline
    held: float
    """The bytes that micro-batches in flight need on a device, of the fullest stage at its fullest moment."""
    parts: bool = False
    """Whether its rows come in parts, each of which goes through it by itself."""


def plan_pipelines(compiled: Compilation) -> Iterator[PlanPipeline]:
    """Yield the pipelines of a step's trainings with several stages; those that share one come together. Yield none if
    nothing is predicted."""
    predictor = plan_predictor(compiled)
    if predictor is None:
        return
    plan, program = compiled.plan, compiled.program
    fed: dict[str, Sequence[Batch]] = {}
    for task in phase_tasks(program, main_phase(program), assumed_workload(compiled), plan.cpus_of_code):
        if task.model and task.model in predictor.configs and NODES[task.op].trains:
            fed[task.model] = max(fed.get(task.model, ()), task.batches, key=total_rows)
    fed = {model: batches for model, batches in fed.items() if total_rows(batches)}
    streamed, done = accumulating_models(program, plan), set[str]()
    for model in fed:
        shared = plan.fused_with(model)
        models = [name for name in (shared.models if shared else (model,)) if name in fed]
        stages = max(plan.group_of_role(name, "train").mesh.axis_size("pp") for name in models)
        if model in done or stages == 1:
            continue
        done.update(models)
        works = [(name, fed[name]) for name in models]
        fusion = predictor.fused_pipeline(works)
        held = sum(size for _, _, size in in_flight_bytes(predictor, works, fusion))
        yield PlanPipeline(fusion, held, model in streamed)


def pipelines_svg(compiled: Compilation, id: str = "", always: bool = True) -> str:
    """Return all pipelines as SVG, one below the other; if there are none, the reason, or nothing if not `always`. id:
    the picture's id."""
    model_roles = roles_by_model(compiled.program)
    charts = [
        pipeline_chart(pipelined.fusion, model_roles, pipeline_notes(pipelined))
        for pipelined in plan_pipelines(compiled)
    ]
    if not charts and not always:
        return ""
    if charts:
        note = "pipelines, stage by stage: micro-batches are numbered, and all drawn as long as the average one"
    elif plan_predictor(compiled) is None:
        note = "no pipelines: of this plan nothing is predicted; plans for a cluster have them"
    else:
        note = "no pipelines: each training of this plan has one stage"
    return gantt_svg(compiled.name, note, charts, id)


def roles_by_model(program: Program) -> dict[str, Role]:
    """Return the roles of a program's models by name."""
    return {model.name: role_of_model(model) for model in program.models}


def pipeline_chart(fusion: FusedPipeline, known: Mapping[str, Role], notes: Sequence[str]) -> Chart:
    """Return a pipeline's chart. known: the roles of the models."""
    names = [model.name for model in fusion.problem.models]
    title = f"train {', '.join(names)}" + (" in one pipeline" if len(names) > 1 else "")
    return draw_pipeline(
        fusion.problem, fusion.lists, fusion.table, title, notes, [known.get(name, "") for name in names]
    )


def pipeline_notes(each: PlanPipeline) -> list[str]:
    """Return the notes about what is not in the lists themselves."""
    line = (
        makespan_text(each.fusion)
        + f"; micro-batches in flight need at most {format_quantity(each.held, 'bytes')} on a device"
    )
    return [line, *(["rows come in parts: this is all of a mini-batch at once"] if each.parts else [])]


def makespan_text(fusion: FusedPipeline) -> str:
    """Return a pipeline's makespan compared with its bound, and with one training after the other."""
    line = f"{format_seconds(fusion.table.makespan)} a mini-batch, beside the optimizer's step"
    line += f"; nothing is shorter than {format_seconds(fusion.bound)}"
    if len(fusion.problem.models) > 1:
        line += f"; one after the other by 1F1B {format_seconds(fusion.serial_seconds)}"
    return line
