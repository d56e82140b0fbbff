"""The checks of a plan whose fields are all of the right kind: names, devices, and work that is not covered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from rlgraph.backends.enginespec.registry import engine, engines_by_name
from rlgraph.errors import did_you_mean, quoted_list
from rlgraph.ir.graph import Program
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import CODE, HOST, Group, ModelHolding, Plan, Role
from rlgraph.ops.program_work import model_operations, user_code_usage
from rlgraph.passes.placement.admission_order import admission_faults, unknown_admission_names
from rlgraph.passes.placement.fused_pipelines import fused_training_faults
from rlgraph.passes.placement.model_configs import weight_update_pairs
from rlgraph.passes.placement.tails import tail_move_faults

Problem = tuple[tuple[str | int, ...], str, str, str]
"""The path to a piece of the plan file, a code, a message, and a hint."""


def plan_problems(plan: Plan, program: Program, sections: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield everything that is wrong with a plan for a program. Names come first: other checks rely on them."""
    wrong = list(_names(plan, program))
    yield from wrong
    if not wrong:
        yield from _pools(plan, sections.get("cluster", {}).get("devices"))
        for number, group in enumerate(plan.groups):
            yield from _group(group, plan, ("plan", "groups", number))
        yield from _holdings(plan)
        yield from _lines(plan, program)
        yield from _work(plan, program)
        yield from _owners(plan, program)


# Names


def _names(plan: Plan, program: Program) -> Iterator[Problem]:
    pools, groups = [pool.name for pool in plan.pools], [group.name for group in plan.groups]
    models = [model.name for model in program.models]
    yield from _twice(pools, "pools", "name", "two pools are called")
    yield from _twice(groups, "groups", "name", "two groups are called")
    yield from _twice([(role.model, role.operation) for role in plan.roles], "roles", "operation", "two roles are of")
    yield from _run_twice(plan)
    yield from _twice([(item.model, item.group) for item in plan.holdings], "holdings", "model", "two holdings are of")
    if HOST not in groups:
        yield ("plan", "groups"), "E0955", f"there is no group `{HOST}`, which does what needs no model", ""
    for number, group in enumerate(plan.groups):
        path = ("plan", "groups", number)
        yield from _unknown(group.pool, pools, (*path, "pool"), "pool")
        allowed = [HOST] if group.name == HOST else [CODE] if group.code else engines_by_name()
        yield from _unknown(group.engine, allowed, (*path, "engine"), "engine")
        for place, model in enumerate(group.models):
            yield from _unknown(model, models, (*path, "models", place), "model")
        for place, name in enumerate(group.code):
            yield from _unknown(name, user_code_usage(program), (*path, "code", place), "function or environment")
    used: dict[str, tuple[Role | ModelHolding, ...]] = {"roles": plan.roles, "holdings": plan.holdings}
    for kind, pairs in used.items():
        for number, item in enumerate(pairs):
            yield from _unknown(item.model, models, ("plan", kind, number, "model"), "model")
            yield from _unknown(item.group, groups, ("plan", kind, number, "group"), "group")
    for model, owner in plan.owners:
        yield from _unknown(model, models, ("plan", "owners", model), "model")
        yield from _unknown(owner, groups, ("plan", "owners", model), "group")
    for number, table in enumerate(plan.free):
        yield from _unknown(table, dict(plan.blocks), ("plan", "free", number), "streamed table")
    for number, fused in enumerate(plan.fused):
        for place, model in enumerate(fused.models):
            yield from _unknown(model, models, ("plan", "fused", number, "models", place), "model")
        for place, model in enumerate(fused.turned):
            yield from _unknown(model, fused.models, ("plan", "fused", number, "turned", place), "fused model")
    yield from _twice([item.table for item in plan.admits], "admits", "table", "two orders of admission are of")
    for number, admit in enumerate(plan.admits):
        for name, message, hint in unknown_admission_names(admit, program):
            yield ("plan", "admits", number, name), "E0955", message, hint
    for number, tail in enumerate(plan.tails):
        yield from _unknown(tail.table, plan.free, ("plan", "tails", number, "table"), "table that is dealt freely")


def _twice(names: list[Any], kind: str, field: str, message: str) -> Iterator[Problem]:
    seen = set()
    for number, name in enumerate(names):
        if name in seen:
            shown = name if isinstance(name, str) else " and ".join(f"`{part}`" for part in name).strip("`")
            yield ("plan", kind, number, field), "E0955", f"{message} `{shown}`", "keep one of them"
        seen.add(name)


def _run_twice(plan: Plan) -> Iterator[Problem]:
    seen = set()
    for number, group in enumerate(plan.groups):
        for place, name in enumerate(group.code):
            if name in seen:
                yield ("plan", "groups", number, "code", place), "E0955", f"two groups run `{name}`", "keep one of them"
            seen.add(name)


def _unknown(name: str, allowed: Collection[str], path: tuple[str | int, ...], kind: str) -> Iterator[Problem]:
    if name not in allowed:
        hint = (
            did_you_mean(name[:60], allowed) or f"there {'is' if len(allowed) == 1 else 'are'} {_listed(list(allowed))}"
        )
        yield path, "E0955", f"no {kind} is called `{name:.60}`", hint


def _listed(names: list[str]) -> str:
    shown = [f"`{name}`" for name in names[:8]] + [f"{len(names) - 8} others"] * (len(names) > 8)
    return ", ".join(shown) or "none"


def _holdings(plan: Plan) -> Iterator[Problem]:
    for number, holding in enumerate(plan.holdings):
        name = plan.group(holding.group).engine
        if holding.attention and name in engines_by_name():
            path = ("plan", "holdings", number, "attention")
            yield from _unknown(holding.attention, engine(name).attention, path, f"attention of `{name}`")
        if holding.adapters and name in engines_by_name():
            path = ("plan", "holdings", number, "adapters")
            yield from _unknown(holding.adapters, engine(name).adapters, path, f"way to hold adapters of `{name}`")
        if holding.gather and name in engines_by_name():
            path = ("plan", "holdings", number, "gather")
            yield from _unknown(holding.gather, engine(name).gather, path, f"way to gather parameters of `{name}`")
        if holding.optimizer and name in engines_by_name():
            path = ("plan", "holdings", number, "optimizer")
            places = engine(name).optimizer
            yield from _unknown(holding.optimizer, places, path, f"place of an optimizer's state of `{name}`")
        support = {
            "reread": name in engines_by_name() and engine(name).rereads,
            "keep": name in engines_by_name() and engine(name).keeps,
        }
        for option, supported in support.items():
            if getattr(holding, option) and not supported:
                path = ("plan", "holdings", number, option)
                addition = " and keeps what it has of rows" if option == "keep" else ""
                yield (
                    path,
                    "E0918",
                    f"`{name}` takes no new weights while it samples{addition}",
                    "leave it out, or say false",
                )


def _lines(plan: Plan, program: Program) -> Iterator[Problem]:
    """Yield the faults of what lines of a schedule can say of a table or of trainings."""
    for number, tail in enumerate(plan.tails):
        yield from _faults(tail_move_faults(tail, plan, program), ("plan", "tails", number), "E0970")
    for number, fused in enumerate(plan.fused):
        yield from _faults(fused_training_faults(fused, plan, program), ("plan", "fused", number), "E0973")
    for number, admit in enumerate(plan.admits):
        yield from _faults(admission_faults(admit, plan, program), ("plan", "admits", number), "E0976")


def _faults(faults: Iterable[tuple[str, str]], path: tuple[str | int, ...], code: str) -> Iterator[Problem]:
    return ((path, code, message, hint) for message, hint in faults)


# Devices


def _pools(plan: Plan, devices: object) -> Iterator[Problem]:
    """Yield where pools do not fit in a cluster, which has `devices` devices."""
    if not plan.cluster:
        return
    for number, pool in enumerate(plan.pools):
        last = pool.first + pool.devices
        if isinstance(devices, int) and last > devices:
            message = f"the pool `{pool.name}` ends with device {last - 1}, and the cluster with {devices - 1}"
            yield ("plan", "pools", number, "devices"), "E0956", message, "devices are counted from 0"
    numbered = [(number, pool) for number, pool in enumerate(plan.pools) if pool.devices]
    for (_, lower), (number, upper) in pairwise(sorted(numbered, key=lambda pair: pair[1].first)):
        if upper.first < lower.first + lower.devices:
            message = f"the pools `{lower.name}` and `{upper.name}` both have device {upper.first}"
            yield ("plan", "pools", number, "first"), "E0956", message, "work on the same devices is in one pool"


def _group(group: Group, plan: Plan, at: tuple[str | int, ...]) -> Iterator[Problem]:
    if group.name == HOST:
        pool = next(pool for pool in plan.pools if pool.name == HOST)
        if not pool.cpus and (group.devices or group.mesh.rank_count != 1):
            yield (*at, "devices"), "E0956", f"`{HOST}` is one process without a device", 'write `"devices": ""`'
        elif pool.cpus and (group.devices != tuple(range(pool.cpus)) or group.mesh != make_mesh(dp=pool.cpus)):
            message = f"`{HOST}` has {pool.cpus} cpus, and not a process for each of them"
            yield (*at, "devices"), "E0956", message, f"a mesh of dp={pool.cpus}, on devices 0 to {pool.cpus - 1}"
        return
    pool = next(pool for pool in plan.pools if pool.name == group.pool)
    if group.mesh.rank_count != len(group.devices):
        message = (
            f"the mesh of `{group.name}` has {group.mesh.rank_count} ranks, and {len(group.devices)} devices for them"
        )
        yield (*at, "devices"), "E0956", message, "each rank has one device"
    size, kind = (pool.cpus, "cpu") if group.code else (pool.devices, "device")
    outside = [device for device in group.devices if device >= size]
    if outside:
        message = f"`{group.name}` uses {kind} {outside[0]} of `{pool.name}`, which has {size}"
        yield (*at, "devices"), "E0956", message, "devices are counted from 0, in each pool anew"
    if len(set(group.devices)) < len(group.devices):
        message = f"two ranks of `{group.name}` have the same device"
        yield (*at, "devices"), "E0956", message, "each rank has one of its own"
    if group.code and group.models:
        message = f"`{group.name}` runs the user's code, and holds models"
        yield (*at, "models"), "E0956", message, "models are on pools of devices, and code on pools of cpus"
    splits = ("dp",) if group.code else engine(group.engine).axes_inner_first
    for axis, size in group.mesh.axes:
        if size > 1 and axis not in splits:
            message = f"`{group.engine}` does not split models by `{axis}`"
            yield (*at, "mesh", axis), "E0956", message, f"it does by {quoted_list(splits, 'and')}"


# Work


def _work(plan: Plan, program: Program) -> Iterator[Problem]:
    work = model_operations(program)
    done = {(role.model, role.operation) for role in plan.roles}
    missing = [(model, name) for model, names in work.items() for name in sorted(names) if (model, name) not in done]
    for model, operation in missing:
        hint = f'add `{{"model": "{model}", "operation": "{operation}", "group": ...}}`'
        yield ("plan", "roles"), "E0957", f"no role does the `{operation}` of `{model}`", hint
    for number, role in enumerate(plan.roles):
        at, group = ("plan", "roles", number), plan.group(role.group)
        if role.operation not in work[role.model]:
            hint = did_you_mean(role.operation[:60], work[role.model]) or "leave the role out"
            yield (*at, "operation"), "E0957", f"the program does no `{role.operation:.60}` with `{role.model}`", hint
        elif group.name == HOST or group.code or role.operation not in engine(group.engine).operations:
            yield (*at, "group"), "E0957", f"`{group.engine}` cannot do the `{role.operation}` of `{role.model}`", ""
        elif not engine(group.engine).supports(role.operation, group.mesh.split_axes):
            shown = " and ".join(f"`{axis}`" for axis in group.mesh.split_axes if axis != "dp")
            message = f"`{group.engine}` cannot do the `{role.operation}` of `{role.model}` split by {shown}"
            yield (*at, "group"), "E0957", message, "give it a group whose copies are not split"
        elif role.model not in group.models:
            hint = f"add it to the `models` of `{group.name}`"
            yield (*at, "group"), "E0957", f"`{group.name}` does not hold `{role.model}`", hint


def _owners(plan: Plan, program: Program) -> Iterator[Problem]:
    owners = dict(plan.owners)
    pairs = [model for pair in weight_update_pairs(program) for model in pair]
    for model in dict.fromkeys([*(role.model for role in plan.roles), *pairs]):
        if model not in owners:
            message = f"no group owns the weights of `{model}`"
            yield ("plan", "owners"), "E0957", message, "that is the group that trains it"
    for model, name in plan.owners:
        if model not in plan.group(name).models:
            hint = f"add it to the `models` of `{name}`"
            yield ("plan", "owners", model), "E0957", f"`{name}` does not hold `{model}`", hint
    for number, holding in enumerate(plan.holdings):
        if holding.model not in plan.group(holding.group).models:
            message = f"`{holding.group}` does not hold `{holding.model}`"
            yield ("plan", "holdings", number, "model"), "E0957", message, ""
