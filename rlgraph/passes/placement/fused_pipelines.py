"""The fused trainings of a schedule, and the pipeline that a plan has for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from rlgraph.backends.enginespec.registry import engine, engines_by_preference
from rlgraph.dsl.fusing import fuse_conflict
from rlgraph.errors import quoted_list
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import FusedTraining, Group, Plan
from rlgraph.ir.schedule import Schedule
from rlgraph.ir.shared_pipelines import ranks_per_stage, shared_stages, stage_misfit
from rlgraph.ops.program_work import model_operations
from rlgraph.passes.rewrites.accumulate import accumulating_models


def fused_trainings(schedule: Schedule) -> tuple[FusedTraining, ...]:
    """Return the fused trainings of a schedule."""
    return tuple(_turned(line.models) for line in schedule.fuses)


def fused_trainings_of_plan(plan: Plan, pieces: Sequence[Sequence[str]]) -> tuple[FusedTraining, ...]:
    """Return the fused trainings of a plan, and those of `pieces` that a search has found in addition."""
    named = {model for fused in plan.fused for model in fused.models}
    return (*plan.fused, *(_turned(models) for models in pieces if named.isdisjoint(models)))


def _turned(models: Sequence[str]) -> FusedTraining:
    """Return the fused trainings, every other one in the opposite direction: it begins where the one before it ends."""
    return FusedTraining(tuple(models), tuple(models[1::2]))


def fusible_pairs(program: Program, schedule: Schedule, free: bool = True) -> list[frozenset[str]]:
    """Return the pairs of trainings of a program that may share a pipeline if they are on the same devices: not of
    models that a line fuses with others, nor where rows come to a training one by one. free: also pairs that no line
    names."""
    lines = {model: line.models for line in schedule.fuses for model in line.models}
    trained = [model.name for model in program.models if "train" in model_operations(program)[model.name]]
    return [
        frozenset((one, other))
        for one, other in combinations(trained, 2)
        if lines.get(one) == lines.get(other)
        and (one in lines or free and not schedule.streams)
        and not fuse_conflict(program, one, other)
    ]


def fused_training_faults(fused: FusedTraining, plan: Plan, program: Program) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with fused trainings: a message and a hint."""
    planned = {(role.model, role.operation) for role in plan.roles}
    if len({*fused.models}) < 2 or any((model, "train") not in planned for model in fused.models):
        yield "two models or more that are trained share a pipeline", "leave it out"
        return
    for piece in plan.fused:
        if twice := [model for model in fused.models if model in piece.models and piece is not fused]:
            yield f"{quoted_list(twice, 'and')} can be in one pipeline alone", "leave one of them out"
    for number, model in enumerate(fused.models):
        for earlier in fused.models[:number]:
            if why := fuse_conflict(program, earlier, model):
                yield why, f"leave `{model}` out: it is trained by itself"
    groups = {model: plan.group_of_role(model, "train") for model in fused.models}
    unable = dict.fromkeys(group.engine for group in groups.values() if not engine(group.engine).fuses)
    for name in unable:
        able = [spec.name for spec in engines_by_preference("train") if spec.fuses]
        yield f"`{name}` trains one model after the other", f"train with the engine {quoted_list(able, 'or')}"
    if fault := _unshared(groups):
        yield fault
    elif not unable and shared_stages([group.mesh for group in groups.values()]).stages == 1:
        names = dict.fromkeys(group.name for group in groups.values())
        message = (
            f"{quoted_list([*names], 'and')} {'trains' if len(names) == 1 else 'train'} "
            f"{quoted_list(fused.models, 'and')} on one"
            " stage, which has no bubbles to fill"
        )
        yield message, "give it stages, as in `pp=2`, or leave `fuse` out"
    offloaded = [model for model in fused.models if plan.holding(model, groups[model].name).offload]
    if offloaded:
        message = f"{quoted_list(offloaded, 'and')} cannot be in the host's memory while another one is trained with it"
        yield message, "give it more devices, or leave `fuse` out"
    streamed = sorted(accumulating_models(program, plan).intersection(fused.models))
    if streamed:
        message = f"{quoted_list(streamed, 'and')} take rows as they come: their micro-batches are not there together"
        yield message, "leave `stream` out, or `fuse`"


def _unshared(groups: Mapping[str, Group]) -> tuple[str, str] | None:
    """Return why the groups that train some models have no stages in common, and a hint; None where they have."""
    separate = {group.name: (model, group) for model, group in groups.items()}
    if len(separate) == 1:
        return None
    models, own_groups = zip(*separate.values(), strict=True)
    why, hint = "", f"`place {', '.join(f'{model}.train' for model in models)} on {own_groups[0].pool}(pp=2)`"
    if len({(group.pool, frozenset(group.devices)) for group in own_groups}) > 1:
        why = "they are not on the same devices"
    elif why := stage_misfit([group.mesh for group in own_groups]):
        hint = f"numbers of stages, and of devices for a stage, divide the largest one: {hint}"
    elif any(group.devices != shared_stage_devices(group, own_groups) for group in own_groups):
        why, hint = "their ranks do not lie on the same stages", "make the plan anew"
    description = ", and ".join(
        f"`{model}` is trained by `{group.name}`, {group.mesh}" for model, group in separate.values()
    )
    return (f"{description}: they share no pipeline, {why}", f"{hint}, or leave `fuse` out") if why else None


def shared_stage_devices(group: Group, groups: Sequence[Group]) -> tuple[int, ...]:
    """Return the devices of a group's ranks where it shares the stages of one pipeline with others: they follow the
    group whose stages are the widest."""
    first = max(groups, key=lambda candidate: ranks_per_stage(candidate.mesh))
    return tuple(
        first.devices[index]
        for index in shared_stages([candidate.mesh for candidate in groups]).rank_device_positions(group.mesh)
    )


def align_fused_stages(plan: Plan) -> Plan:
    """Return the plan with the models of each pipeline on the same stages, where their meshes are heterogeneous."""
    for fused in plan.fused:
        groups = [plan.group_of_role(model, "train") for model in fused.models]
        by_name = {group.name: group for group in groups}
        same_devices = len({(group.pool, frozenset(group.devices)) for group in groups}) == 1
        if len(by_name) > 1 and same_devices and not stage_misfit([group.mesh for group in groups]):
            moved = {
                name: replace(group, devices=shared_stage_devices(group, groups)) for name, group in by_name.items()
            }
            plan = replace(plan, groups=tuple(moved.get(group.name, group) for group in plan.groups))
    return plan
