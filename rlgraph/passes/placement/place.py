"""Placement: each piece of a program's work gets a group of processes. Class: exact; it makes a plan, not a graph.

What a schedule pins is done; the rest gets simple defaults:

  - without pools, one pool `all` holds the machine's devices;
  - work that is not placed runs where the model's other work runs; a model of which nothing is placed runs where the
  model
    that it is a copy of runs, or else in the first pool;
  - of the engines that are installed and know the model, the preferred one does a piece of work; the embedded one does
    all else;
  - a model is split as little as is said, and the copies that share the rows fill the pool;
  - a function or an environment that is not placed runs where it is used: on the host, or where the model acts.

Work with the same pool, engine and mesh is done by the same processes.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from rlgraph.backends.enginespec.legal import held, no_adapters, problems
from rlgraph.backends.enginespec.registry import embedded, preferred
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from rlgraph.errors import Diagnostic, ProgramError, Related, listed
from rlgraph.ir.graph import Model, Program
from rlgraph.ir.mesh import Mesh, mesh
from rlgraph.ir.plan import CODE, HOST, Group, Holding, Plan, Pool, Role
from rlgraph.ir.schedule import Placement, Refresh, Schedule, Send
from rlgraph.ir.types import Handle
from rlgraph.ops.bases import bases, has_adapters
from rlgraph.ops.nodes import MODEL_OPERATIONS, NODES
from rlgraph.ops.optimizers import ADAMW, Optimizer, optimizer_of
from rlgraph.ops.work import code, operations
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.placement.admits import admit_problems, admits_of, called
from rlgraph.passes.placement.fusing import fuse_problems, fused_of, on_same_stages
from rlgraph.passes.placement.tails import tail_problems, tails_of

Shapes = Mapping[str, Shape | UnsupportedModel]
"""What is known of each model; nothing, where its configuration is out of reach."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to run on."""

    devices: int = 1
    """Of a schedule that declares no pools."""
    kind: Literal["cpu", "gpu"] = "gpu"
    """Which engines the defaults choose; what a schedule names may be for another machine."""


@dataclass(frozen=True, slots=True)
class _Seat:
    """What makes a group: work with equal seats is done by the same processes."""

    pool: str
    engine: str
    mesh: Mesh


def place(program: Program, schedule: Schedule, machine: Machine, shapes: Shapes, installed: Container[str]) -> Plan:
    """Where everything runs. `installed` holds the names of the engines that defaults may choose.

    Raises ProgramError where an engine cannot hold a model as the schedule wants it, with a caret in the schedule.
    """
    placer = _Placer(program, schedule, machine, shapes, installed)
    placer.sit()
    _refuse(placer.problems())
    plan = placer.plan()
    tails, fused, admits = tails_of(schedule, plan, program), fused_of(schedule), admits_of(schedule)
    plan = on_same_stages(replace(plan, tails=tails, fused=fused, admits=admits))
    problems = [*_idle(schedule, plan), *_unable(schedule.refreshes, plan), *tail_problems(schedule, plan, program)]
    _refuse([*problems, *fuse_problems(schedule, plan, program), *admit_problems(schedule, plan, program)])
    return plan


def _refuse(problems: Iterable[Diagnostic]) -> None:
    wrong = dict.fromkeys(problems)
    if wrong:
        raise ProgramError(sorted(wrong, key=lambda found: (found.span.line, found.span.column)))


def _idle(schedule: Schedule, plan: Plan) -> Iterator[Diagnostic]:
    """Lines about weights that do not travel."""
    ways = {(model, plan.group(group).pool) for model, _, group in plan.syncs()}
    lines: list[tuple[Send | Refresh, str, str]] = [(each, "send", "to") for each in schedule.sends]
    lines += [(each, "refresh", "on") for each in schedule.refreshes]
    for each, word, to in lines:
        if (each.model, each.pool) not in ways:
            others = [f"{word} {model} {to} {pool}" for model, pool in sorted(ways)]
            yield Diagnostic(
                "E0915",
                f"no weights of `{each.model}` are sent to `{each.pool}`",
                each.span,
                f"write {listed(others, 'or')}" if others else "no weights travel: leave the line out",
            )


BLOCK = 64
"""Rows that travel together where nobody says how many, and no cluster is there to choose by."""

_BY = {"reread": "rereads", "keep": "keeps"}
"""How new weights come to rows that are sampled, and what an engine says that can do it."""


def _unable(refreshes: Sequence[Refresh], plan: Plan) -> Iterator[Diagnostic]:
    """Lines about engines that sample with the weights that they have begun with."""
    for each in refreshes:
        roles = (role for role in plan.roles if role.model == each.model and NODES[role.operation].generates)
        groups = [
            group for group in map(plan.group, dict.fromkeys(role.group for role in roles)) if group.pool == each.pool
        ]
        for group in groups:
            if each.by in _BY and not getattr(spec_of(group.engine), _BY[each.by]):
                able = [spec.name for spec in preferred("generate") if getattr(spec, _BY[each.by])]
                how = " and keeps what it has of rows" if each.by == "keep" else ""
                message = f"`{group.engine}` takes no new weights while it samples{how}"
                yield Diagnostic("E0918", message, each.span, f"`by=drain`, or the engine {listed(able, 'or')}")


def config_of(model: Model, shape: Shape, program: Program) -> ModelConfig:
    """A program's model as cost and memory are reckoned of it."""
    kind, optimizer = cast(ModelKind, model.kind), _optimizer(model, program)
    return ModelConfig(model.name, shape, kind, program.dtype(model), optimizer, bases(program).get(model.name, ""))


def _optimizer(model: Model, program: Program) -> Optimizer:
    """That which keeps most for each weight, of those that it is trained with."""
    found = []
    for phase in program.phases:
        types = phase.graph.values()
        for node in phase.graph.walk():
            if NODES[node.op].trains and cast(Handle, types[node.inputs[0]]).name == model.name:
                found.append(optimizer_of(node))
    return max(found, key=lambda each: each.kept, default=ADAMW)


def updates(program: Program) -> Iterator[tuple[str, str]]:
    """The models of each `update`: which takes the weights, and whose they are."""
    for phase in program.phases:
        types = phase.graph.values()
        for node in phase.graph.walk():
            if NODES[node.op].updates and not NODES[node.op].trains:
                target, source = (types[name] for name in node.inputs)
                assert isinstance(target, Handle) and isinstance(source, Handle)
                yield target.name, source.name


class _Placer:
    def __init__(
        self, program: Program, schedule: Schedule, machine: Machine, shapes: Shapes, installed: Container[str]
    ) -> None:
        self.program, self.schedule, self.machine = program, schedule, machine
        self.shapes, self.installed = shapes, installed
        self.pools = {pool.name: pool.devices for pool in schedule.pools if pool.devices} or {"all": machine.devices}
        self.cpus = {pool.name: pool.cpus for pool in schedule.pools if pool.cpus}
        self.work = {model: sorted(found, key=MODEL_OPERATIONS.index) for model, found in operations(program).items()}
        self.pins = {(s.model, s.operation): placement for placement in schedule.placements for s in placement.work}
        self.seats: dict[tuple[str, str], _Seat] = {}

    # Seats

    def sit(self) -> None:
        """Gives each piece of work its seat, models in the order in which they are declared: copies follow
        originals."""
        for model in self.program.models:
            work = self.work[model.name]
            for operation in work:
                if pin := self.pin(model.name, operation):
                    self.seats[model.name, operation] = self.pinned(model, operation, pin)
            # Training comes first: it is where the model's other work can stay.
            for operation in sorted(work, key=lambda name: not NODES[name].trains):
                if (model.name, operation) not in self.seats:
                    self.seats[model.name, operation] = self.default(model, operation)
        order = [(model, operation) for model, work in self.work.items() for operation in work]
        self.seats = {work: self.seats[work] for work in order}

    def pin(self, model: str, operation: str) -> Placement | None:
        return self.pins.get((model, operation)) or self.pins.get((model, None))

    def pinned(self, model: Model, operation: str, pin: Placement) -> _Seat:
        split, said = mesh(**pin.splits()), "dp" in pin.splits()
        split = split if said else split.copied(self.pools[pin.pool] // split.size)
        return _Seat(pin.pool, pin.engine or self.engine(model, operation, split), split)

    def default(self, model: Model, operation: str) -> _Seat:
        others = self.own(model.name)
        pool = others[0].pool if others else self.home(model)
        split = mesh(dp=self.pools[pool])
        engine = self.engine(model, operation, split)
        for seat in others:
            able = spec_of(seat.engine).does(operation, seat.mesh.splits)
            able = able and self.can_step(model, operation, seat.engine)
            if able and (engine == seat.engine or not NODES[operation].generates):
                return seat
        return _Seat(pool, engine, split)

    def own(self, model: str) -> list[_Seat]:
        """Where a model's work runs as far as that is known, its training first."""
        found = [(not NODES[name].trains, seat) for (owner, name), seat in self.seats.items() if owner == model]
        return [seat for _, seat in sorted(found, key=lambda each: each[0])]

    def home(self, model: Model) -> str:
        """The pool of a model of which nothing is placed."""
        original = self.own(model.copy_of) if model.copy_of else []
        return original[0].pool if original else next(iter(self.pools))

    def engine(self, model: Model, operation: str, split: Mesh) -> str:
        """The best engine that is there and can; where none is, the one that has to be installed for this split."""
        wanted = set(split.splits)
        able = [each.name for each in preferred(operation) if wanted <= set(each.axes) and each.does(operation, wanted)]
        there = (name for name in able if name in self.installed and self.fits(model, name, split))
        return next((name for name in there if self.can_step(model, operation, name)), able[-1])

    def can_step(self, model: Model, operation: str, engine: str) -> bool:
        """Whether an engine has the optimizer, where the operation needs one."""
        return not NODES[operation].trains or _optimizer(model, self.program).name in spec_of(engine).optimizers

    def fits(self, model: Model, engine: str, split: Mesh) -> bool:
        shape = self.shapes.get(model.name)
        known = isinstance(shape, Shape) and not problems(shape, engine, split, cast(ModelKind, model.kind))
        spec = spec_of(engine)
        anything = spec.every_model and not set(split.splits) & spec.misfits.keys()
        return anything or known and spec.can_compute(self.program.dtype(model), self.machine.kind)

    # What is wrong

    def problems(self) -> Iterator[Diagnostic]:
        """What no engine can do as the schedule wants it: each placement and model once."""
        seen, twice = set(), set[str]()
        for (name, operation), seat in self.seats.items():
            pin = self.pin(name, operation)
            spec = spec_of(seat.engine)
            if pin and name not in twice and (other := self.otherwise(name, operation, pin)):
                twice.add(name)
                message = f"two lines say how `{name}` computes attention where `{seat.engine}` has it once"
                related = (Related(other.at("attention"), "the other one"),)
                yield Diagnostic("E0905", message, pin.at("attention"), "keep one of them", related)
            if pin and (name, seat) not in seen:
                seen.add((name, seat))
                yield from _ungathered(name, seat.mesh, pin)
                check = self.apart if spec.every_model else self.wrong
                yield from check(self.program.model(name), seat, pin)

    def otherwise(self, model: str, operation: str, pin: Placement) -> Placement | None:
        """An earlier line that says another way to compute attention for the same copy of a model."""
        for (name, other), seat in self.seats.items():
            if (name, other) == (model, operation):
                break
            if name == model and seat == self.seats[model, operation]:
                found = self.pin(model, other)
                if pin.attention and found and found.attention not in (None, pin.attention):
                    return found
        return None

    def wrong(self, model: Model, seat: _Seat, pin: Placement) -> Iterator[Diagnostic]:
        engine, shape, dtype = seat.engine, self.shapes.get(model.name), self.program.dtype(model)
        subject = next(s.span for s in pin.work if s.model == model.name)
        named = pin.at("engine") if pin.engine else subject
        optimizer = _optimizer(model, self.program).name
        done = [operation for (name, operation), each in self.seats.items() if (name, each) == (model.name, seat)]
        if not all(self.can_step(model, operation, engine) for operation in done):
            yield Diagnostic(
                "E0912",
                f"`{engine}` does not have `{optimizer}`, with which `{model.name}` is trained",
                named,
                f"`engine={embedded().name}` does",
            )
        if not spec_of(engine).can_compute(dtype):
            yield Diagnostic(
                "E0912",
                f"`{engine}` does not compute in {dtype}, the dtype of `{model.name}`",
                named,
                f"`engine={embedded().name}` does",
            )
        if isinstance(shape, UnsupportedModel):
            yield Diagnostic(
                "E0912",
                f"`{engine}` cannot hold `{model.name}`: {held(shape, engine)}",
                named,
                f"`engine={embedded().name}` takes every architecture",
            )
        elif shape is None and has_adapters(self.program, model.name) and not spec_of(engine).adapters:
            yield Diagnostic("E0912", f"`{model.name}`: {no_adapters(spec_of(engine))}", named)
        elif shape is not None:
            yield from unheld(model.name, engine, shape, dtype, self.machine.kind, pin)
            whole = problems(shape, engine, mesh(), cast(ModelKind, model.kind))
            yield from (Diagnostic("E0912", f"`{model.name}`: {text}", named) for text in whole)
            yield from self.unfit(model, shape, seat, pin, whole)

    def apart(self, model: Model, seat: _Seat, pin: Placement) -> Iterator[Diagnostic]:
        """The same of an engine that takes every architecture, but splits those by some axes that it knows."""
        spec, shape = spec_of(seat.engine), self.shapes.get(model.name)
        if isinstance(shape, UnsupportedModel):
            for axis in (axis for axis in seat.mesh.splits if axis in spec.misfits):
                message = (
                    f"`{model.name}`: {axis}={seat.mesh.length(axis)} needs a model whose numbers are known: {shape}"
                )
                yield Diagnostic("E0911", message, pin.at(axis), f"leave out `{axis}`")
        elif shape is not None:
            yield from self.unfit(model, shape, seat, pin, ())

    def unfit(
        self, model: Model, shape: Shape, seat: _Seat, pin: Placement, known: Sequence[str]
    ) -> Iterator[Diagnostic]:
        """What is wrong with the size of an axis, but for what is known; where nothing is, with several of them."""
        wrong = [
            (text, axis)
            for axis, size in seat.mesh.spread
            for text in problems(shape, seat.engine, Mesh(((axis, size),)), cast(ModelKind, model.kind))
            if text not in known
        ]
        if not wrong:
            found = problems(shape, seat.engine, seat.mesh, cast(ModelKind, model.kind))
            axes = [axis for axis, size in seat.mesh.axes if size > 1]
            wrong = [(text, _axis(text, axes)) for text in found if text not in known]
        yield from (Diagnostic("E0911", f"`{model.name}`: {text}", pin.at(axis)) for text, axis in wrong)

    # The plan

    def plan(self) -> Plan:
        names = self.names()
        roles = [Role(model, work, names[seat]) for (model, work), seat in self.seats.items()]
        owners = {model: names[self.own(model)[0]] for model, work in self.work.items() if work}
        for pair in updates(self.program):
            # A model that only takes another's weights, or only gives them, is where the other one is.
            home = next((owners[model] for model in pair if model in owners), None)
            owners = {**dict.fromkeys(pair, home), **owners} if home else owners
        host = Group(HOST, HOST, HOST, mesh(), ())
        seats = {name: seat for seat, name in names.items()}
        groups = [self.group(name, seat, roles, owners) for name, seat in seats.items()]
        groups = [replace(group, devices=self.devices(group, owners, seats)) for group in groups]
        groups += self.coded()
        plan = Plan(
            self.program.name,
            (
                Pool(HOST, 0),
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
        ways_in = {by: {(line.model, line.pool) for line in self.schedule.refreshes if line.by == by} for by in _BY}
        replicas = {(line.model, line.pool) for line in self.schedule.refreshes if line.replica}
        sent = [(model, group) for model, _, group in plan.syncs()]
        said = self.said(names)
        ways = [(model, group, (model, plan.group(group).pool)) for model, group in dict.fromkeys([*sent, *said])]
        holdings = (
            Holding(
                model,
                group,
                delta=(model, group) in sent and way in deltas,
                replica=(model, group) in sent and way in replicas,
                **said.get((model, group), {}),
                reread=(model, group) in sent and way in ways_in["reread"],
                keep=(model, group) in sent and way in ways_in["keep"],
            )
            for model, group, way in ways
        )
        return replace(plan, holdings=tuple(each for each in holdings if each != Holding(each.model, each.group)))

    def said(self, names: Mapping[_Seat, str]) -> dict[tuple[str, str], dict[str, Any]]:
        """For a model and a group, what the schedule says of how it is worked with."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for (model, operation), seat in self.seats.items():
            pin = self.pin(model, operation)
            if pin is None:
                continue
            said: dict[str, Any] = {"attention": pin.attention} if pin.attention else {}
            if pin.adapters:
                said["adapters"] = pin.adapters
            if pin.recompute and NODES[operation].trains:
                said["recompute"] = True
            if pin.gather and NODES[operation].trains:
                said["gather"] = pin.gather
            if said:
                found.setdefault((model, names[seat]), {}).update(said)
        return found

    def names(self) -> dict[_Seat, str]:
        """`POOL.ENGINE`; with the split, where a pool has several groups of an engine: `POOL.ENGINE.tp4pp2`."""
        order = list(self.pools)
        seats = sorted(dict.fromkeys(self.seats.values()), key=lambda seat: order.index(seat.pool))
        kinds = [(seat.pool, seat.engine) for seat in seats]
        several = {kind for kind in kinds if kinds.count(kind) > 1}
        return {
            seat: ".".join([*kind, _split(seat.mesh)] if kind in several else kind)
            for seat, kind in zip(seats, kinds, strict=True)
        }

    def group(self, name: str, seat: _Seat, roles: list[Role], owners: Mapping[str, str]) -> Group:
        held = {role.model for role in roles if role.group == name}
        held |= {model for model, home in owners.items() if home == name}
        models = tuple(model.name for model in self.program.models if model.name in held)
        return Group(name, seat.pool, seat.engine, seat.mesh, tuple(range(seat.mesh.size)), models)

    def coded(self) -> Iterator[Group]:
        """The groups that run functions and environments: one for each pool of cpus that has any."""
        run = code(self.program) | dict.fromkeys(called(self.schedule), True)
        for pool, cpus in self.cpus.items():
            placed = [work.model for line in self.schedule.placements if line.pool == pool for work in line.work]
            names = tuple(name for name in run if name in placed and run[name])
            if names:
                yield Group(f"{pool}.{CODE}", pool, CODE, mesh(dp=cpus), tuple(range(cpus)), code=names)

    def devices(self, group: Group, owners: Mapping[str, str], seats: Mapping[str, _Seat]) -> tuple[int, ...]:
        """For each rank its device of the pool: where other processes of the same devices own the weights, that of
        which the least has to move."""
        for model in group.models:
            owner, shape = seats[owners[model]], self.shapes.get(model)
            apart = owner.pool != group.pool or owner.mesh.size != group.mesh.size or owners[model] == group.name
            if apart or not isinstance(shape, Shape):
                continue
            # It needs numpy, which takes longer to load than most programs to compile.
            from rlgraph.passes.resharding.assignment import assign

            kind = cast(ModelKind, self.program.model(model).kind)
            # Copies repeat: what is best for the first few is best for all.
            few, count = _repeated(owner.mesh, group.mesh)
            held, needed = (
                [spec_of(engine).carried(shape, split, rank, kind) for rank in range(split.size)]
                for engine, split in zip((owner.engine, group.engine), few, strict=True)
            )
            ranks = assign(held, needed, few[1]).ranks
            first = sorted(range(len(ranks)), key=ranks.__getitem__)
            return tuple(part * len(first) + place for part in range(count) for place in first)
        return group.devices


_WIDE = '`dtype="float32"`'


def unheld(model: str, engine: str, shape: Shape, dtype: str, kind: DeviceKind, pin: Placement) -> Iterator[Diagnostic]:
    """Adapters that an engine cannot hold as a schedule says, or in no way."""
    spec = spec_of(engine)
    ways = spec.adapts(shape, dtype, kind)
    if pin.adapters:
        hint = "leave `adapters` out"
        if shape.adapters and pin.adapters in spec.adapter_dtypes:
            hint = f"write {' or '.join([*(f'`adapters={way}`' for way in ways), f'{_WIDE} of the model'])}"
        for text in spec.unheld(pin.adapters, shape, dtype, kind):
            yield Diagnostic("E0912", f"`{model}`: {engine} {text}", pin.at("adapters"), hint)
    elif shape.adapters and spec.adapters and not ways:
        why = [text for way in spec.adapters for text in spec.unheld(way, shape, dtype, kind)]
        hint = f"write {_WIDE} of the model, or `engine={embedded().name}`"
        yield Diagnostic("E0912", f"`{model}`: {engine} {', and '.join(why)}", pin.at("engine"), hint)


def _ungathered(model: str, split: Mesh, pin: Placement) -> Iterator[Diagnostic]:
    """A way to gather what nobody shares out."""
    if pin.gather and split.length("fsdp") == 1:
        message = f"`{model}`: no rank shares its parameters out, so that none are gathered"
        yield Diagnostic("E0912", message, pin.at("gather"), "leave `gather` out, or say over how many ranks: `fsdp=2`")


def _axis(text: str, axes: Sequence[str]) -> str:
    """Of which axis something is said; of several the last one."""
    return next((axis for axis in axes if text.startswith(f"{axis}=")), axes[-1])


def _repeated(a: Mesh, b: Mesh) -> tuple[tuple[Mesh, Mesh], int]:
    """The smallest parts of two meshes of the same size that whole copies of both fill, and how many parts there
    are."""
    own = [each.copy_size for each in (a, b)]
    part = math.lcm(*own)
    if a.size % part:
        return (a, b), 1
    return (a.copied(part // own[0]), b.copied(part // own[1])), a.size // part


def _split(split: Mesh) -> str:
    return "".join(f"{name}{size}" for name, size in reversed(split.axes) if size > 1) or "one"
