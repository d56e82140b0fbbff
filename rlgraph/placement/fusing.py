"""Fused trainings of a schedule, and the pipeline that a plan has for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from rlgraph.dsl.fusing import apart
from rlgraph.enginespec.registry import engine, preferred
from rlgraph.errors import Diagnostic, listed
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Fused, Plan
from rlgraph.ir.schedule import Schedule
from rlgraph.ops.work import operations
from rlgraph.passes.accumulate import added_up


def fused_of(schedule: Schedule) -> tuple[Fused, ...]:
    """Those of a schedule."""
    return tuple(_turned(line.models) for line in schedule.fuses)


def fused_in(plan: Plan, pieces: Sequence[Sequence[str]]) -> tuple[Fused, ...]:
    """Those of a plan, and pieces that a search has found beside them."""
    named = {model for each in plan.fused for model in each.models}
    return (*plan.fused, *(_turned(models) for models in pieces if named.isdisjoint(models)))


def _turned(models: Sequence[str]) -> Fused:
    """Every other one goes the other way: it begins where the one before it ends."""
    return Fused(tuple(models), tuple(models[1::2]))


def fusible(program: Program, schedule: Schedule, free: bool = True) -> list[frozenset[str]]:
    """Each two trainings of a program that may share a pipeline where nothing speaks against it but where they are: not
    of models that a line has with others, nor where rows come to a training one by one. free: also where no line says
    that they do."""
    lines = {model: line.models for line in schedule.fuses for model in line.models}
    trained = [model.name for model in program.models if "train" in operations(program)[model.name]]
    return [
        frozenset((one, other))
        for one, other in combinations(trained, 2)
        if lines.get(one) == lines.get(other)
        and (one in lines or free and not schedule.streams)
        and not apart(program, one, other)
    ]


def fuse_problems(schedule: Schedule, plan: Plan, program: Program) -> Iterator[Diagnostic]:
    """Lines that a plan cannot follow."""
    for line, fused in zip(schedule.fuses, plan.fused, strict=True):
        for message, hint in faults_of(fused, plan, program):
            yield Diagnostic("E0973", message, line.span, hint)


def faults_of(fused: Fused, plan: Plan, program: Program) -> Iterator[tuple[str, str]]:
    """What is wrong with fused trainings: a message and a hint."""
    known = {(role.model, role.operation) for role in plan.roles}
    if len({*fused.models}) < 2 or any((model, "train") not in known for model in fused.models):
        yield "two models or more that are trained share a pipeline", "leave it out"
        return
    for piece in plan.fused:
        if twice := [model for model in fused.models if model in piece.models and piece is not fused]:
            yield f"{listed(twice, 'and')} can be in one pipeline alone", "leave one of them out"
    first, *others = fused.models
    for number, model in enumerate(fused.models):
        for earlier in fused.models[:number]:
            if why := apart(program, earlier, model):
                yield why, f"leave `{model}` out: it is trained by itself"
    group = plan.role(first, "train")
    for other in others:
        where = plan.role(other, "train")
        if where.name != group.name:
            message = (
                f"`{first}` is trained by `{group.name}`, {group.mesh}, and `{other}` by `{where.name}`, {where.mesh}:"
                " they share no pipeline"
            )
            yield message, f"`place {first}.train, {other}.train on {group.pool}(pp=2)`, or leave `fuse` out"
    if not engine(group.engine).fuses:
        able = [spec.name for spec in preferred("train") if spec.fuses]
        yield f"`{group.engine}` trains one model after the other", f"train with the engine {listed(able, 'or')}"
    elif group.mesh.length("pp") == 1:
        message = f"`{group.name}` trains {listed(fused.models, 'and')} on one stage, which has no bubbles to fill"
        yield message, "give it stages, as in `pp=2`, or leave `fuse` out"
    away = [model for model in fused.models if plan.holding(model, group.name).offload]
    if away:
        message = f"{listed(away, 'and')} cannot be in the host's memory while another one is trained with it"
        yield message, "give it more devices, or leave `fuse` out"
    streamed = sorted(added_up(program, plan).intersection(fused.models))
    if streamed:
        message = f"{listed(streamed, 'and')} take rows as they come: their micro-batches are not there together"
        yield message, "leave `stream` out, or `fuse`"
