"""Fused trainings of a schedule, and the pipeline that a plan has for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from rlgraph.backends.enginespec.registry import engine, preferred
from rlgraph.dsl.fusing import apart
from rlgraph.errors import Diagnostic, listed
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Fused, Group, Plan
from rlgraph.ir.schedule import Schedule
from rlgraph.ir.shared_pipelines import common, misfit, width
from rlgraph.ops.work import operations
from rlgraph.passes.rewrites.accumulate import added_up


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
    for number, model in enumerate(fused.models):
        for earlier in fused.models[:number]:
            if why := apart(program, earlier, model):
                yield why, f"leave `{model}` out: it is trained by itself"
    groups = {model: plan.role(model, "train") for model in fused.models}
    unable = dict.fromkeys(each.engine for each in groups.values() if not engine(each.engine).fuses)
    for name in unable:
        able = [spec.name for spec in preferred("train") if spec.fuses]
        yield f"`{name}` trains one model after the other", f"train with the engine {listed(able, 'or')}"
    if fault := _unshared(groups):
        yield fault
    elif not unable and common([each.mesh for each in groups.values()]).stages == 1:
        names = dict.fromkeys(each.name for each in groups.values())
        message = (
            f"{listed([*names], 'and')} {'trains' if len(names) == 1 else 'train'} {listed(fused.models, 'and')} on one"
            " stage, which has no bubbles to fill"
        )
        yield message, "give it stages, as in `pp=2`, or leave `fuse` out"
    away = [model for model in fused.models if plan.holding(model, groups[model].name).offload]
    if away:
        message = f"{listed(away, 'and')} cannot be in the host's memory while another one is trained with it"
        yield message, "give it more devices, or leave `fuse` out"
    streamed = sorted(added_up(program, plan).intersection(fused.models))
    if streamed:
        message = f"{listed(streamed, 'and')} take rows as they come: their micro-batches are not there together"
        yield message, "leave `stream` out, or `fuse`"


def _unshared(groups: Mapping[str, Group]) -> tuple[str, str] | None:
    """Why those who train some models have no stages in common, and a hint; None: they have."""
    apart = {group.name: (model, group) for model, group in groups.items()}
    if len(apart) == 1:
        return None
    models, own = zip(*apart.values(), strict=True)
    why, hint = "", f"`place {', '.join(f'{model}.train' for model in models)} on {own[0].pool}(pp=2)`"
    if len({(each.pool, frozenset(each.devices)) for each in own}) > 1:
        why = "they are not on the same devices"
    elif why := misfit([each.mesh for each in own]):
        hint = f"numbers of stages, and of devices for a stage, divide the largest one: {hint}"
    elif any(each.devices != lying(each, own) for each in own):
        why, hint = "their ranks do not lie on the same stages", "make the plan anew"
    told = ", and ".join(f"`{model}` is trained by `{each.name}`, {each.mesh}" for model, each in apart.values())
    return (f"{told}: they share no pipeline, {why}", f"{hint}, or leave `fuse` out") if why else None


def lying(group: Group, groups: Sequence[Group]) -> tuple[int, ...]:
    """The devices of a group's ranks, where it has the stages of one pipeline in common with others: the one whose
    stages are the widest lies as it does."""
    first = max(groups, key=lambda each: width(each.mesh))
    return tuple(first.devices[place] for place in common([each.mesh for each in groups]).places(group.mesh))


def on_same_stages(plan: Plan) -> Plan:
    """A plan whose models of one pipeline lie on the same stages, where they are split unlike."""
    for fused in plan.fused:
        groups = [plan.role(model, "train") for model in fused.models]
        found = {each.name: each for each in groups}
        alike = len({(each.pool, frozenset(each.devices)) for each in groups}) == 1
        if len(found) > 1 and alike and not misfit([each.mesh for each in groups]):
            moved = {name: replace(each, devices=lying(each, groups)) for name, each in found.items()}
            plan = replace(plan, groups=tuple(moved.get(each.name, each) for each in plan.groups))
    return plan
