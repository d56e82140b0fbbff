"""Placement: each piece of a program's work gets a group of processes. Class: exact; it makes a plan, not a graph.

What a schedule pins is done; the rest gets simple defaults:

  - without pools, one pool `all` holds the machine's devices;
  - work that is not placed runs where the model's other work runs; a model of which nothing is placed runs where the
    model that it is a copy of runs, or else in the first pool;
  - of the engines that are installed and know the model, the preferred one does a piece of work; the embedded one does
    all else;
  - a model is split as little as is said, and the replicas that share the rows fill the pool;
  - a function or an environment that is not placed runs where it is used: on the host, or where the model acts.

Work with the same pool, engine and mesh is done by the same processes.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from rlgraph.backends.enginespec.layout_checks import explain_unsupported, layout_problems, no_adapters_message
from rlgraph.backends.enginespec.registry import embedded_engine, engines_by_preference
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from rlgraph.errors import Diagnostic, ProgramError, Related
from rlgraph.ir.graph import Model, Program
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.plan import CODE, HOST, Group, ModelHolding, Plan, Pool, Role
from rlgraph.ir.schedule import PlacementLine, Schedule
from rlgraph.ops.nodes import MODEL_OPERATIONS, NODES
from rlgraph.ops.program_work import model_operations, replayed_models, shared_work, user_code_usage
from rlgraph.ops.shared_base_models import has_adapters
from rlgraph.passes.placement.adapter_errors import adapter_errors
from rlgraph.passes.placement.admission_order import admission_orders, length_predictors
from rlgraph.passes.placement.fused_pipelines import align_fused_stages, fused_trainings
from rlgraph.passes.placement.model_configs import model_optimizer, weight_update_pairs
from rlgraph.passes.placement.routing_errors import routing_errors
from rlgraph.passes.placement.shared_processes import shared_process_errors
from rlgraph.passes.placement.support_errors import support_errors
from rlgraph.passes.placement.tails import tail_moves_in_plan
from rlgraph.passes.placement.unfollowed_lines import TAKING, unfollowed_line_errors

Shapes = Mapping[str, Shape | UnsupportedModel]
"""The shape of each model; a model whose configuration is out of reach has none."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to run on."""

    devices: int = 1
    """The devices of a schedule that declares no pools."""
    kind: Literal["cpu", "gpu"] = "gpu"
    """Decides which engines the defaults choose; what a schedule names may be for another machine."""


@dataclass(frozen=True, slots=True)
class _GroupKey:
    """The key of a group: work with equal keys is done by the same processes."""

    pool: str
    engine: str
    mesh: Mesh


def place(program: Program, schedule: Schedule, machine: Machine, shapes: Shapes, installed: Container[str]) -> Plan:
    """Return the plan of where everything runs. `installed` holds the names of the engines that defaults may choose.

    Raises ProgramError where an engine cannot hold a model as the schedule wants it, with a caret in the schedule.
    """
    placer = _Placer(program, schedule, machine, shapes, installed)
    placer.assign_groups()
    _refuse(placer.unsupported_errors())
    plan = placer.make_plan()
    tails, fused, admits = (
        tail_moves_in_plan(schedule, plan, program),
        fused_trainings(schedule),
        admission_orders(schedule),
    )
    plan = align_fused_stages(replace(plan, tails=tails, fused=fused, admits=admits))
    _refuse(unfollowed_line_errors(schedule, plan, program))
    return plan


def _refuse(problems: Iterable[Diagnostic]) -> None:
    distinct = dict.fromkeys(problems)
    if distinct:
        raise ProgramError(sorted(distinct, key=lambda problem: (problem.span.line, problem.span.column)))


BLOCK = 64
"""Rows that travel together where nobody says how many, and there is no cluster to choose by."""


class _Placer:
    """Assigns a group to each piece of work of a program, and makes a plan of them."""

    def __init__(
        self, program: Program, schedule: Schedule, machine: Machine, shapes: Shapes, installed: Container[str]
    ) -> None:
        self.program, self.schedule, self.machine = program, schedule, machine
        self.shapes, self.installed = shapes, installed
        self.pools = {pool.name: pool.devices for pool in schedule.pools if pool.devices} or {"all": machine.devices}
        self.cpus = {pool.name: pool.cpus for pool in schedule.pools if pool.cpus and pool.name != HOST}
        self.work = {
            model: sorted(done, key=MODEL_OPERATIONS.index) for model, done in model_operations(program).items()
        }
        self.pins = {(s.model, s.operation): placement for placement in schedule.placements for s in placement.work}
        self.keys: dict[tuple[str, str], _GroupKey] = {}
        self.shared = shared_work(program)

    # The keys of groups

    def assign_groups(self) -> None:
        """Give each piece of work the key of its group. Models go in the order in which they are declared, so that
        copies follow originals."""
        for model in self.program.models:
            work = self.work[model.name]
            for operation in work:
                if pin := self.pinned_placement(model.name, operation):
                    self.keys[model.name, operation] = self.pinned_group_key(model, operation, pin)
            # Training comes first: it is where the model's other work can stay.
            for operation in sorted(work, key=lambda name: not NODES[name].trains):
                if (model.name, operation) not in self.keys:
                    self.keys[model.name, operation] = self.default_group_key(model, operation)
        for shared in self.shared:
            home = next((work for work in shared.work if self.pinned_placement(*work)), shared.work[0])
            self.keys |= {work: self.keys[home] for work in shared.work if not self.pinned_placement(*work)}
        order = [(model, operation) for model, work in self.work.items() for operation in work]
        self.keys = {work: self.keys[work] for work in order}

    def pinned_placement(self, model: str, operation: str) -> PlacementLine | None:
        return self.pins.get((model, operation)) or self.pins.get((model, None))

    def pinned_group_key(self, model: Model, operation: str, pin: PlacementLine) -> _GroupKey:
        split, has_copies = make_mesh(**pin.axis_sizes()), "dp" in pin.axis_sizes()
        split = split if has_copies else split.with_replicas(self.pools[pin.pool] // split.rank_count)
        return _GroupKey(pin.pool, pin.engine or self.best_engine(model, operation, split), split)

    def default_group_key(self, model: Model, operation: str) -> _GroupKey:
        others = self.group_keys_of_model(model.name)
        pool = others[0].pool if others else self.default_pool(model)
        split = make_mesh(dp=self.pools[pool])
        engine = self.best_engine(model, operation, split)
        for key in others:
            able = spec_of(key.engine).supports(operation, key.mesh.split_axes)
            able = able and self.has_optimizer(model, operation, key.engine)
            if able and (engine == key.engine or not NODES[operation].generates):
                return key
        return _GroupKey(pool, engine, split)

    def group_keys_of_model(self, model: str) -> list[_GroupKey]:
        """Return the group keys of a model's work as far as they are assigned, its training first."""
        keys = [(not NODES[name].trains, key) for (owner, name), key in self.keys.items() if owner == model]
        return [key for _, key in sorted(keys, key=lambda ranked: ranked[0])]

    def default_pool(self, model: Model) -> str:
        """Return the pool of a model of which nothing is placed."""
        original = self.group_keys_of_model(model.copy_of) if model.copy_of else []
        return original[0].pool if original else next(iter(self.pools))

    def best_engine(self, model: Model, operation: str, split: Mesh) -> str:
        """Return the best installed engine that can do the operation; where there is none, the one that has to be
        installed for this split."""
        wanted = set(split.split_axes)
        able = [
            spec.name
            for spec in engines_by_preference(operation)
            if wanted <= set(spec.axes) and spec.supports(operation, wanted)
        ]
        for shared in self.shared:
            if shared.sums and (model.name, operation) in shared.work:
                able = [name for name in able if spec_of(name).reads_jointly(wanted, shared.mixes)] or able
        if model.name in replayed_models(self.program):
            able = [name for name in able if spec_of(name).replays_routes] or able
        usable = (name for name in able if name in self.installed and self.can_hold_model(model, name, split))
        return next((name for name in usable if self.has_optimizer(model, operation, name)), able[-1])

    def has_optimizer(self, model: Model, operation: str, engine: str) -> bool:
        """Return whether an engine has the optimizer, where the operation needs one."""
        return not NODES[operation].trains or model_optimizer(model, self.program).name in spec_of(engine).optimizers

    def can_hold_model(self, model: Model, engine: str, split: Mesh) -> bool:
        shape = self.shapes.get(model.name)
        spec = spec_of(engine)
        legal = isinstance(shape, Shape) and not (
            layout_problems(shape, engine, split, cast(ModelKind, model.kind))
            or spec.device_faults(shape, self.machine.kind)
        )
        if self.program.autocast_of_model(model) and (not spec.autocast or split.split_axes):
            return False
        anything = spec.every_model and not set(split.split_axes) & spec.misfits.keys()
        return anything or legal and spec.can_compute(self.program.dtype_of_model(model), self.machine.kind)

    # What is wrong

    def unsupported_errors(self) -> Iterator[Diagnostic]:
        """Yield what no engine can do as the schedule wants it: each placement and model once."""
        names = self.group_names()
        placed = {work: Group(names[key], key.pool, key.engine, key.mesh, ()) for work, key in self.keys.items()}
        yield from shared_process_errors(self.program, placed, self.schedule, self.shapes)
        yield from routing_errors(self.program, placed, self.shapes)
        yield from support_errors(self.program, placed)
        seen, checked, reported = set(), set(), set[str]()
        for (name, operation), key in self.keys.items():
            pin = self.pinned_placement(name, operation)
            spec = spec_of(key.engine)
            if pin and name not in reported and (other := self.conflicting_attention_line(name, operation, pin)):
                reported.add(name)
                message = f"two lines say how `{name}` computes attention where `{key.engine}` has it once"
                related = (Related(other.option_span("attention"), "the other one"),)
                yield Diagnostic("E0905", message, pin.option_span("attention"), "keep one of them", related)
            if pin and (name, key, pin.gather) not in seen:
                # Lines that place the model's other work on the same ranks say nothing of its parameters.
                seen.add((name, key, pin.gather))
                yield from _ungathered(name, key.mesh, pin)
            if pin and (name, key) not in checked:
                checked.add((name, key))
                check = self.axis_errors if spec.every_model else self.engine_errors
                yield from check(self.program.model(name), key, pin)

    def conflicting_attention_line(self, model: str, operation: str, pin: PlacementLine) -> PlacementLine | None:
        """Return an earlier line that gives another way to compute attention for the same group and model."""
        for (name, other), key in self.keys.items():
            if (name, other) == (model, operation):
                break
            if name == model and key == self.keys[model, operation]:
                line = self.pinned_placement(model, other)
                if pin.attention and line and line.attention not in (None, pin.attention):
                    return line
        return None

    def engine_errors(self, model: Model, key: _GroupKey, pin: PlacementLine) -> Iterator[Diagnostic]:
        """Yield what is wrong with a placement on an engine that knows only some models."""
        engine, shape, dtype = key.engine, self.shapes.get(model.name), self.program.dtype_of_model(model)
        subject = next(s.span for s in pin.work if s.model == model.name)
        engine_span = pin.option_span("engine") if pin.engine else subject
        optimizer = model_optimizer(model, self.program).name
        done = [operation for (name, operation), other in self.keys.items() if (name, other) == (model.name, key)]
        if not all(self.has_optimizer(model, operation, engine) for operation in done):
            yield Diagnostic(
                "E0912",
                f"`{engine}` does not have `{optimizer}`, with which `{model.name}` is trained",
                engine_span,
                f"`engine={embedded_engine().name}` does",
            )
        if not spec_of(engine).can_compute(dtype):
            yield Diagnostic(
                "E0912",
                f"`{engine}` does not compute in {dtype}, the dtype of `{model.name}`",
                engine_span,
                f"`engine={embedded_engine().name}` does",
            )
        if self.program.autocast_of_model(model) and not spec_of(engine).autocast:
            yield Diagnostic(
                "E0912",
                f"`{engine}` has no products in bfloat16 of float32 weights, the `autocast` of `{model.name}`",
                engine_span,
                f"`engine={embedded_engine().name}` does",
            )
        if isinstance(shape, UnsupportedModel):
            yield Diagnostic(
                "E0912",
                f"`{engine}` cannot hold `{model.name}`: {explain_unsupported(shape, engine)}",
                engine_span,
                f"`engine={embedded_engine().name}` takes every architecture",
            )
        elif shape is None and has_adapters(self.program, model.name) and not spec_of(engine).adapters:
            yield Diagnostic("E0912", f"`{model.name}`: {no_adapters_message(spec_of(engine))}", engine_span)
        elif shape is not None:
            yield from adapter_errors(model.name, engine, shape, dtype, self.machine.kind, pin)
            unsplit = layout_problems(shape, engine, make_mesh(), cast(ModelKind, model.kind))
            yield from (Diagnostic("E0912", f"`{model.name}`: {text}", engine_span) for text in unsplit)
            yield from self.axis_size_errors(model, shape, key, pin, unsplit)

    def axis_errors(self, model: Model, key: _GroupKey, pin: PlacementLine) -> Iterator[Diagnostic]:
        """Yield what is wrong with a placement on an engine that takes every architecture, but splits only those it
        knows by some axes."""
        spec, shape = spec_of(key.engine), self.shapes.get(model.name)
        if isinstance(shape, UnsupportedModel):
            for axis in (axis for axis in key.mesh.split_axes if axis in spec.misfits):
                message = (
                    f"`{model.name}`: {axis}={key.mesh.axis_size(axis)} needs a model whose numbers are known: {shape}"
                )
                yield Diagnostic("E0911", message, pin.option_span(axis), f"leave out `{axis}`")
        elif shape is not None:
            yield from self.axis_size_errors(model, shape, key, pin, ())

    def axis_size_errors(
        self, model: Model, shape: Shape, key: _GroupKey, pin: PlacementLine, known: Sequence[str]
    ) -> Iterator[Diagnostic]:
        """Yield what is wrong with the size of an axis, but for what is `known` already; where nothing is, what is
        wrong with several axes together."""
        wrong = [
            (text, axis)
            for axis, size in key.mesh.rank_axes
            for text in layout_problems(shape, key.engine, Mesh(((axis, size),)), cast(ModelKind, model.kind))
            if text not in known
        ]
        if not wrong:
            texts = layout_problems(shape, key.engine, key.mesh, cast(ModelKind, model.kind))
            axes = [axis for axis, size in key.mesh.axes if size > 1]
            wrong = [(text, _axis(text, axes)) for text in texts if text not in known]
        yield from (Diagnostic("E0911", f"`{model.name}`: {text}", pin.option_span(axis)) for text, axis in wrong)

    # The plan

    def make_plan(self) -> Plan:
        names = self.group_names()
        roles = [Role(model, work, names[key]) for (model, work), key in self.keys.items()]
        owners = {model: names[self.group_keys_of_model(model)[0]] for model, work in self.work.items() if work}
        for pair in weight_update_pairs(self.program):
            # A model that only takes another's weights, or only gives them, is where the other one is.
            home = next((owners[model] for model in pair if model in owners), None)
            owners = {**dict.fromkeys(pair, home), **owners} if home else owners
        processes = self.schedule.host_processes
        cpus = processes if processes > 1 else 0
        host = Group(HOST, HOST, HOST, make_mesh(dp=processes), tuple(range(cpus)))
        keys = {name: key for key, name in names.items()}
        groups = [self.make_group(name, key, roles, owners) for name, key in keys.items()]
        groups = [replace(group, devices=self.devices_of_ranks(group, owners, keys)) for group in groups]
        groups += self.user_code_groups()
        plan = Plan(
            self.program.name,
            (
                Pool(HOST, 0, cpus=cpus),
                *(Pool(name, devices) for name, devices in self.pools.items()),
                *(Pool(name, 0, cpus=cpus) for name, cpus in self.cpus.items()),
            ),
            (host, *groups),
            tuple(roles),
            tuple((model, owners[model]) for model in self.work if model in owners),
            tuple((stream.table, stream.block or BLOCK) for stream in self.schedule.streams),
            free=tuple(stream.table for stream in self.schedule.streams if stream.free),
        )
        deltas = {(send.model, send.pool) for send in self.schedule.sends if send.delta}
        ways_in = {by: {(line.model, line.pool) for line in self.schedule.refreshes if line.by == by} for by in TAKING}
        replicas = {(line.model, line.pool) for line in self.schedule.refreshes if line.replica}
        synced = [(model, group) for model, _, group in plan.syncs()]
        settings = self.group_settings(names)
        ways = [(model, group, (model, plan.group(group).pool)) for model, group in dict.fromkeys([*synced, *settings])]
        holdings = (
            ModelHolding(
                model,
                group,
                delta=(model, group) in synced and way in deltas,
                replica=(model, group) in synced and way in replicas,
                **settings.get((model, group), {}),
                reread=(model, group) in synced and way in ways_in["reread"],
                keep=(model, group) in synced and way in ways_in["keep"],
            )
            for model, group, way in ways
        )
        return replace(
            plan,
            holdings=tuple(holding for holding in holdings if holding != ModelHolding(holding.model, holding.group)),
        )

    def group_settings(self, names: Mapping[_GroupKey, str]) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the settings of the schedule for each model and group."""
        settings: dict[tuple[str, str], dict[str, Any]] = {}
        for (model, operation), key in self.keys.items():
            pin = self.pinned_placement(model, operation)
            if pin is None:
                continue
            line_settings: dict[str, Any] = {"attention": pin.attention} if pin.attention else {}
            if pin.adapters:
                line_settings["adapters"] = pin.adapters
            if pin.recompute and NODES[operation].trains:
                line_settings["recompute"] = True
            if pin.gather and NODES[operation].trains:
                line_settings["gather"] = pin.gather
            if pin.optimizer and NODES[operation].trains:
                line_settings["optimizer"] = pin.optimizer
            if pin.sleep:
                line_settings["offload"] = True
            if NODES[operation].generates:
                said = {"kv_bytes": int(pin.cache or 0), "share": pin.share or 0.0, "max_len": pin.max_len or 0}
                line_settings |= {name: value for name, value in said.items() if value}
            if line_settings:
                settings.setdefault((model, names[key]), {}).update(line_settings)
        return settings

    def group_names(self) -> dict[_GroupKey, str]:
        """Return the name of each group: `POOL.ENGINE`; with the split, where a pool has several groups of an engine:
        `POOL.ENGINE.tp4pp2`."""
        order = list(self.pools)
        keys = sorted(dict.fromkeys(self.keys.values()), key=lambda key: order.index(key.pool))
        kinds = [(key.pool, key.engine) for key in keys]
        repeated = {kind for kind in kinds if kinds.count(kind) > 1}
        return {
            key: ".".join([*kind, _split(key.mesh)] if kind in repeated else kind)
            for key, kind in zip(keys, kinds, strict=True)
        }

    def make_group(self, name: str, key: _GroupKey, roles: list[Role], owners: Mapping[str, str]) -> Group:
        held = {role.model for role in roles if role.group == name}
        held |= {model for model, home in owners.items() if home == name}
        models = tuple(model.name for model in self.program.models if model.name in held)
        return Group(name, key.pool, key.engine, key.mesh, tuple(range(key.mesh.rank_count)), models)

    def user_code_groups(self) -> Iterator[Group]:
        """Yield the groups that run functions and environments: one for each pool of cpus that has any."""
        functions = user_code_usage(self.program) | dict.fromkeys(length_predictors(self.schedule), True)
        for pool, cpus in self.cpus.items():
            placed = [work.model for line in self.schedule.placements if line.pool == pool for work in line.work]
            names = tuple(name for name in functions if name in placed and functions[name])
            if names:
                yield Group(f"{pool}.{CODE}", pool, CODE, make_mesh(dp=cpus), tuple(range(cpus)), code=names)

    def devices_of_ranks(
        self, group: Group, owners: Mapping[str, str], keys: Mapping[str, _GroupKey]
    ) -> tuple[int, ...]:
        """Return the device of each rank in the pool: where other processes on the same devices own the weights, the
        assignment for which the least has to move."""
        for model in group.models:
            owner, shape = keys[owners[model]], self.shapes.get(model)
            independent = (
                owner.pool != group.pool
                or owner.mesh.rank_count != group.mesh.rank_count
                or owners[model] == group.name
            )
            if independent or not isinstance(shape, Shape):
                continue
            # It needs numpy, which takes longer to load than most programs to compile.
            from rlgraph.passes.resharding.rank_assignment import assign_ranks

            kind = cast(ModelKind, self.program.model(model).kind)
            # Copies repeat: what is best for the first few is best for all.
            few, count = _repeated(owner.mesh, group.mesh)
            held, needed = (
                [spec_of(engine).transferred_tensors(shape, split, rank, kind) for rank in range(split.rank_count)]
                for engine, split in zip((owner.engine, group.engine), few, strict=True)
            )
            ranks = assign_ranks(held, needed, few[1]).ranks
            first = sorted(range(len(ranks)), key=ranks.__getitem__)
            return tuple(part * len(first) + index for part in range(count) for index in first)
        return group.devices


def _ungathered(model: str, split: Mesh, pin: PlacementLine) -> Iterator[Diagnostic]:
    """Yield an error for a setting of how to gather parameters that are not sharded."""
    if pin.gather and split.axis_size("fsdp") == 1:
        message = f"`{model}`: no rank shares its parameters out, so that none are gathered"
        yield Diagnostic(
            "E0912", message, pin.option_span("gather"), "leave `gather` out, or say over how many ranks: `fsdp=2`"
        )


def _axis(text: str, axes: Sequence[str]) -> str:
    """Return the axis that a message is about; of several the last one."""
    return next((axis for axis in axes if text.startswith(f"{axis}=")), axes[-1])


def _repeated(a: Mesh, b: Mesh) -> tuple[tuple[Mesh, Mesh], int]:
    """Return the smallest parts of two meshes of the same size that whole replicas of both fill, and the number of
    parts."""
    sizes = [split.replica_size for split in (a, b)]
    part = math.lcm(*sizes)
    if a.rank_count % part:
        return (a, b), 1
    return (a.with_replicas(part // sizes[0]), b.with_replicas(part // sizes[1])), a.rank_count // part


def _split(split: Mesh) -> str:
    return "".join(f"{name}{size}" for name, size in reversed(split.axes) if size > 1) or "one"
