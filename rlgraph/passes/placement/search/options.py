"""How a component can be split over so many devices, what each strategy takes, and what it needs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, groupby, product, zip_longest
from operator import le, lt

from rlgraph.backends.enginespec.legal import adapted, parts, problems
from rlgraph.backends.enginespec.registry import embedded, preferred
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.backends.enginespec.spec import Reserved
from rlgraph.catalog.clusters.cluster import DeviceKind, Island
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import AXES, Mesh, MeshAxis, mesh
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost import work
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.decoding import at_once, cached
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.memory import MemoryModel
from rlgraph.passes.cost.peak import lodges, usable
from rlgraph.passes.cost.predict import memory_model, onload, task_model
from rlgraph.passes.cost.tasks import Task, stays
from rlgraph.passes.cost.time import Batch, sync
from rlgraph.passes.placement.search.caches import Caches
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.option import Apart, Key, Option, Ranks, Split, Strategy, undominated
from rlgraph.passes.placement.search.parts import Parted

Sharing = Mapping[Ranks, Sequence[Option]]
"""Options that may share a pipeline, by how they are split."""

MICROS: tuple[int, ...] = (1, 2, 4, 8)
"""Longest rows that fit into a micro-batch."""

TOKENS = 8192
"""Of the longest row, that each of the ranks has at least over which the tokens of rows are split."""

EACH = 16
"""Copies of a model that is trained up to which each number of them is tried."""

FASTER = 0.9
"""As long, beside those who train a model, others may take to read it that are worth weights of their own."""

_NODES = 8
"""Over which a copy's parameters are shared out at most, whatever its layers are split by."""


class Options:
    """The options of all components, worked out once for each number of devices."""

    def __init__(
        self,
        tasks: Sequence[Task],
        constants: Constants,
        engines: Sequence[str],
        *,
        offload: bool = True,
        apart: bool = False,
        streams: bool = False,
        parts: Sequence[tuple[Component, Component, Component]] = (),
        fuses: Collection[str] = (),
    ) -> None:
        """engines: those that may be chosen where the schedule names none. offload: models may be in the host's memory
        while they are not at work. apart: rows may travel between islands, where more copies have more links. streams:
        rows may come to a training while others are made, and gradients are added up meanwhile. parts: components that
        train and read, with what trains and what reads of them: in a pool they may be split each in its own way. fuses:
        models whose training may share a pipeline."""
        self.tasks, self.constants, self.engines, self.offload = tasks, constants, engines, offload
        self.apart, self.streams, self.fuses = apart, streams, fuses
        self.parts = {id(whole): (whole, trainer, reader) for whole, trainer, reader in parts}
        self._synced: dict[tuple[object, ...], float] = {}
        self._together: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._reading: dict[tuple[int, Deployment], Strategy] = {}
        self._separate: dict[tuple[int, int, int], list[Option]] = {}
        self._apart: dict[tuple[int, int, int], Option] = {}
        self._components: dict[int, Component] = {}
        """By their identities, by which the rest is known: several problems may share components, and options."""
        self._strategies: dict[tuple[int, int], list[list[Strategy]]] = {}
        self._splits: dict[Split, Split] = {}
        self._units: dict[int, list[float]] = {}
        self._stays: dict[int, tuple[float, ...]] = {}
        self._copies: dict[tuple[int, int], list[int]] = {}
        self._fitting: dict[tuple[int, int], list[Option]] = {}
        self._fronts: dict[tuple[object, ...], tuple[Option, ...]] = {}
        self._found: dict[tuple[int, int, int], tuple[Option, ...]] = {}
        self._lighter: dict[object, list[int]] = {}
        self._sharing: dict[tuple[object, ...], Sharing] = {}
        self._filled: dict[tuple[int, int], Sharing] = {}

    def of(self, component: Component, island: Island, devices: int) -> tuple[Option, ...]:
        """The options of a component on at most so many devices of an island, none of which another one beats in
        everything, fastest first. More devices have all the options of fewer."""
        key = (id(component), id(island), devices)
        if key not in self._found:
            # Neighbouring numbers of devices often have the same options.
            known = self.known(component, island)
            rooms = [self.room(component, island, own[0].room(devices)) for own in known]
            pair = [self.of(part, island, _rounded(devices)) for part in self.parts.get(id(component), ())[1:]]
            # Of several islands it may need fewer.
            inner = self.of(component, island.inner, min(devices, island.inner.devices)) if island.inner else ()
            front = (id(component), id(island), *rooms, *map(id, pair), id(inner))
            if front not in self._fronts:
                found = [
                    option
                    for room, own in zip(rooms, known, strict=True)
                    for option in self.fitting(component, own, room)
                ]
                if pair:
                    found += self.separate(component, *pair)
                if inner:
                    found = [*dict.fromkeys((*inner, *found))]
                self._fronts[front] = tuple(undominated(found, usable(island, self.constants), self.lodges(island)))
            self._found[key] = self._fronts[front]
        return self._found[key]

    def sleeps(self, deployment: Deployment) -> bool:
        """Whether a model may be in the host's memory while it is not at work. What is called a CPU's device memory is
        that."""
        return self.offload and deployment.spec.sleeps and deployment.island.device.kind != "cpu"

    def lodges(self, island: Island) -> float:
        """Bytes of a node's host for models that sleep; endless where none may."""
        return lodges(island, self.constants) if self.offload else math.inf

    def sharing(self, component: Component, island: Island, devices: int) -> Sharing:
        """By split those options that may share a pipeline; also some that others beat that share none."""
        able = [own for own in self.known(component, island) if own[0].fuses]
        rooms = [self.room(component, island, own[0].room(devices)) for own in able]
        key = (id(component), id(island), *rooms)
        if key not in self._sharing:
            found: dict[Ranks, Sequence[Option]] = {}
            for own, room in zip(able, rooms, strict=True):
                found |= self.filled(component, own, room)
            if island.inner:
                found |= self.sharing(component, island.inner, min(devices, island.inner.devices))
            self._sharing[key] = found
        return self._sharing[key]

    def filled(self, component: Component, own: list[Strategy], most: int) -> Sharing:
        """The same of the strategies of one mesh, where there is room for so many copies."""
        key = (id(own), most)
        if key not in self._filled:
            splits: dict[Ranks, list[Option]] = {}
            for option in self.fitting(component, own, most):
                if option.fuses:
                    splits.setdefault(option.split.ranks, []).append(option)
            self._filled[key] = splits
        return self._filled[key]

    def room(self, component: Component, island: Island, most: int) -> int:
        """The fewest copies that there can be room for instead of `most` with no other `numbers`."""
        few = max(EACH, island.per_node) + 1
        return most if most <= few else max(few, next(_copies(component, self.units(component), most), 0))

    def fitting(self, component: Component, own: list[Strategy], most: int) -> list[Option]:
        """The same of the strategies of one split, where there is room for so many copies."""
        key = (id(own), most)
        if key not in self._fitting:
            self._fitting[key] = [
                option
                for strategy in own
                for copies in self.numbers(component, strategy, most)
                for option in self.made(component, strategy, copies)
            ]
        return self._fitting[key]

    def separate(self, whole: Component, trainers: Sequence[Option], readers: tuple[Option, ...]) -> Iterator[Option]:
        """Ways to train and read with a split of its own each, of those that are worth it: some of what is read is
        there earlier by a tenth than if who trains it read, and no other reader is better in all."""
        for trainer in trainers:
            key = (id(whole), id(trainer), id(readers))
            if key not in self._separate:
                self._separate[key] = list(self.beside(whole, trainer, readers))
            yield from self._separate[key]

    def beside(self, whole: Component, trainer: Option, readers: Sequence[Option]) -> Iterator[Option]:
        """The same of one way to train."""
        _, trained, read = self.parts[id(whole)]
        together = [FASTER * each for each in self.together(whole, read, trainer)]
        kept: list[Key] = []
        for reader in readers:
            if reader.total >= sum(together) and len(together) == 1:
                break
            wait = self.synced(whole, trainer, reader)
            first, *others = reader.seconds
            seconds = (first + wait, *others)
            if trainer.split == reader.split or not any(map(lt, seconds, together)):
                continue
            own = (*seconds, reader.resident, *reader.active)
            if any(all(map(le, other, own)) for other in kept):
                continue
            kept.append(own)
            key = (id(whole), id(trainer), id(reader))
            if key not in self._apart:
                taken = dict(zip(trained.tasks, trainer.seconds, strict=True)) | dict(
                    zip(read.tasks, seconds, strict=True)
                )
                needed = dict(zip(trained.tasks, trainer.active, strict=True))
                needed |= zip(read.tasks, reader.active, strict=True)
                kind, sent = _sent(whole, trainer.strategy.deployment, trainer.split)
                self._apart[key] = Apart(
                    trainer,
                    reader,
                    tuple([taken[task] for task in whole.tasks]),
                    tuple([needed[task] for task in whole.tasks]),
                    kind,
                    (*sent, -trainer.copies) if self.apart else sent,
                )
            yield self._apart[key]

    def together(self, whole: Component, read: Component, trainer: Option) -> tuple[float, ...]:
        """Seconds of what is read, by those who train."""
        key = (id(whole), trainer.strategy.deployment, trainer.copies)
        if key not in self._together:
            own = id(whole), trainer.strategy.deployment
            if own not in self._reading:
                self._reading[own] = self.strategy(whole, trainer.strategy.deployment)
            seconds = self._reading[own].seconds(trainer.copies)
            known = dict(zip(whole.tasks, seconds, strict=True))
            self._together[key] = tuple([known[task] * self.tasks[task].times for task in read.tasks])
        return self._together[key]

    def synced(self, component: Component, source: Option, target: Option) -> float:
        """Seconds that weights take from some processes to others in their pool."""
        key = (id(component), source.split.weights, target.split.weights)
        if key not in self._synced:
            ends = source.deployment, target.deployment
            self._synced[key] = sync(component.config, *ends, True, self.constants).seconds
        return self._synced[key]

    def all(self, component: Component, island: Island, devices: int) -> Iterator[Option]:
        """All options that may be worth it, also those that do not fit beside others."""
        if island.inner:
            yield from self.all(component, island.inner, min(devices, island.inner.devices))
        for strategy in chain.from_iterable(self.known(component, island)):
            for copies in self.numbers(component, strategy, strategy.room(devices)):
                yield from self.made(component, strategy, copies)

    def numbers(self, component: Component, strategy: Strategy, most: int) -> list[int]:
        """How many copies a component can have where there is room for `most`, without those that are no faster than
        more copies and need no less memory, of devices and of hosts."""
        if isinstance(strategy, Parted):
            every = self.copies(component, strategy.room(strategy.deployment.island.devices))
            found = list(strategy.numbers(every, most))
            if self.sleeps(strategy.deployment) and not component.brought:
                near = min(most, strategy.near)
                found += [each for each in strategy.records(every) if each <= near and each not in found]
            return found
        found = list(self.paying(component, strategy, most))
        # What copies exchange takes a step less of time where all of them are on one node.
        if strategy.near < most:
            for copies in self.paying(component, strategy, strategy.near):
                if copies in found:
                    break
                found.append(copies)
        found += [each for each in self.lighter(component, strategy) if each <= most and each not in found]
        if self.sleeps(strategy.deployment) and not component.brought:
            # Fewer on a node put less to sleep there.
            found += [each for each in self.copies(component, min(most, strategy.near)) if each not in found]
        return [each for each in found if each > strategy.beyond] if strategy.beyond else found

    def paying(self, component: Component, strategy: Strategy, most: int) -> list[int]:
        """Of at most so many copies those numbers that are faster than more of them, and the first that is not."""
        if most not in strategy.paying:
            alike, found = _alike(component, strategy.deployment), []
            before: tuple[float, ...] = ()
            for copies in self.copies(component, most):
                if copies <= strategy.beyond:
                    break
                found.append(copies)
                seconds = self.made(component, strategy, copies)[0].seconds
                # Fewer copies have less to exchange. Where that does not pay, still fewer do not pay either.
                if before and not any(map(lt, seconds, before)) and not alike:
                    break
                before = seconds
            strategy.paying[most] = found
        return strategy.paying[most]

    def known(self, component: Component, island: Island) -> list[list[Strategy]]:
        """The strategies of a component on an island, those of each split together, worked out once."""
        key = (id(component), id(island))
        if key not in self._strategies:
            self._components[id(component)] = component
            same = groupby(
                self.strategies(component, island),
                lambda each: (each.deployment.mesh, each.deployment.adapters, each.deployment.gather),
            )
            self._strategies[key] = [list(own) for _, own in same]
        return self._strategies[key]

    def copies(self, component: Component, most: int) -> list[int]:
        """`_copies`, worked out once."""
        key = (id(component), most)
        if key not in self._copies:
            self._copies[key] = list(_copies(component, self.units(component), most))
        return self._copies[key]

    def made(self, component: Component, strategy: Strategy, copies: int) -> tuple[Option, ...]:
        """The options of so many copies, worked out once."""
        if copies not in strategy.made:
            strategy.made[copies] = self.options(component, strategy, copies)
        return strategy.made[copies]

    def lighter(self, component: Component, strategy: Strategy) -> list[int]:
        """Numbers of copies that may need less memory than more copies do."""
        if strategy.fewer is None:
            island = strategy.deployment.island
            key = (id(component), id(island), strategy.process, *(each.loads for each in strategy.memory))
            if key not in self._lighter:
                self._lighter[key] = strategy.lighter(self.copies(component, island.devices))
            strategy.fewer = self._lighter[key]
        return strategy.fewer

    # What does not depend on the number of devices

    def strategies(self, component: Component, island: Island) -> Iterator[Strategy]:
        """Every engine, every legal tp and pp, every setting."""
        fit = usable(island, self.constants)
        for deployment in self.splits(component, island):
            alike: Strategy | None = None
            for full in self.knobs(component, deployment):
                strategy = self.whole(component, full, alike)
                alike = alike or strategy
                most = strategy.room(island.devices)
                if most > strategy.beyond and strategy.least(most) <= fit:
                    yield strategy
                    yield from self.parted(component, strategy)

    def parted(self, component: Component, plain: Strategy) -> Iterator[Parted]:
        """The same with several parts of the layers on each stage of a model that is trained, if it may have them."""
        deployment = plain.deployment
        said = component.pin is not None and "chunks" in component.pin.splits()
        if component.work != "train" or said or deployment.pp == 1:
            return
        sizes = parts(deployment.spec, component.config.shape, deployment.pp)
        if sizes:

            def divide(size: int) -> Strategy:
                split = mesh(**(dict(deployment.mesh.axes) | {"chunks": size}))
                found = self.strategy(component, replace(deployment, mesh=split), plain)
                # Who shares a pipeline works while its stages wait: what is searched has one part there.
                found.fuses = False
                return found

            yield Parted(plain, sizes, [self.tasks[number].times for number in component.tasks], divide)

    def splits(self, component: Component, island: Island) -> Iterator[Deployment]:
        pin = component.pin
        config, said, tokens = component.config, _said(component), _power(self.longest(component) // TOKENS)
        for engine in [pin.engine] if pin and pin.engine else self.able(component, island.device.kind):
            widest = self.widest(component, engine, island)
            for split in legal(config.shape, engine, config.kind, island.per_node, said, tokens, widest):
                able = all(spec_of(engine).does(each, split.splits) for each in component.operations)
                rooms = [part.devices for part in island.parts or (island,)]
                if able and split.size <= min(rooms):
                    found = Deployment(engine, island, split, attention=(pin.attention if pin else None) or "")
                    ways = adapted(
                        spec_of(engine),
                        config.shape,
                        config.dtype,
                        island.device.kind,
                        (pin.adapters if pin else None) or "",
                    )
                    gathers: Sequence[str] = ("",)
                    if component.work == "train":
                        gathers = spec_of(engine).gathers(split, (pin.gather if pin else None) or "")
                    yield from (replace(found, adapters=way, gather=gather) for gather in gathers for way in ways)

    def widest(self, component: Component, engine: str, island: Island) -> int:
        """Ranks over which columns of a layer are split at most: those of two nodes, or with an engine that splits by
        nothing else as many as leave half of each device beside the weights, of a model that needs so many."""
        most, config = 2 * island.per_node, component.config
        if any(axis.splits in ("layers", "shards") and axis.name in spec_of(engine).axes for axis in AXES):
            return most
        half = usable(island, self.constants) / 2
        while 2 * most <= island.devices and (
            work.rank_parameters(config.shape, config.kind, 1, most) * config.item > half
        ):
            most *= 2
        return most

    def able(self, component: Component, kind: DeviceKind = "gpu") -> list[str]:
        """The engine that is preferred for a component's work, of those that can hold its model as it is said on a kind
        of device."""
        config, said = component.config, _said(component)
        for spec in preferred(component.operations[0]):
            there = spec.embedded or spec.name in self.engines
            able = spec.operations.issuperset(component.operations)
            if component.work == "train":
                able &= config.optimizer.name in spec.optimizers
            if config.shape.adapters and spec.adapters:
                able &= bool(spec.adapts(config.shape, config.dtype, kind))
            if there and able and legal(config.shape, spec.name, config.kind, 1, said):
                return [spec.name]
        return [embedded().name]

    def knobs(self, component: Component, deployment: Deployment) -> Iterator[Deployment]:
        """Sizes of micro-batches, recomputation; the smallest cache."""
        width = self.longest(component) + 1
        settings = deployment.spec.settings
        if component.work == "generate" and "kv_bytes" in settings:
            cache = deployment.spec.memory.cache
            room = cache.room(width, deployment.on_cpu) if isinstance(cache, Reserved) else width
            yield replace(deployment, kv_bytes=math.ceil(cached(component.config, deployment) * room))
            return
        micros = component.work != "generate" and "micro_tokens" in settings
        again = [False, True] if component.work == "train" and "recompute" in settings else [False]
        if component.pin and component.pin.recompute is not None and component.work == "train":
            again = [each for each in again if each == component.pin.recompute]
        for tokens in [rows * width for rows in MICROS] if micros else [deployment.micro_tokens]:
            for recompute in again:
                yield replace(deployment, micro_tokens=tokens, recompute=recompute)

    def whole(self, component: Component, deployment: Deployment, alike: Strategy | None = None) -> Strategy:
        """A split and its settings, with the larger caches that it can have."""
        strategy = self.strategy(component, deployment, alike)
        if deployment.kv_bytes:

            def made(number: int, size: int) -> Strategy:
                found = self.strategy(component, replace(deployment, kv_bytes=size), strategy)
                found.caches, found.cache = strategy.caches, number
                return found

            strategy.caches = Caches(strategy, made)
        return strategy

    def strategy(self, component: Component, deployment: Deployment, alike: Strategy | None = None) -> Strategy:
        """alike: the first one of the same split."""
        config, done = component.config, list(component.batches(self.tasks))
        early = self.streams and deployment.spec.accumulates

        def needs(op: str, batches: Sequence[Batch], known: MemoryModel | None) -> MemoryModel:
            return memory_model("accumulate" if early and NODES[op].trains else op, config, deployment, batches, known)

        resting = [op for op in component.operations if op not in dict(done)]
        found = [
            task_model(op, config, deployment, self.constants, batches, own)
            for (op, batches), own in zip_longest(done, alike.tasks if alike else ())
        ]
        memory = [needs(op, batches, own) for (op, batches), own in zip_longest(done, alike.memory if alike else ())]
        idle = [needs(op, (), own) for op, own in zip_longest(resting, alike.idle if alike else ())]
        if alike:
            held = alike.process
        else:
            held = deployment.process(self.constants), deployment.copied(2).process(self.constants)
        fuses = component.work == "train" and component.model in self.fuses
        fuses = fuses and deployment.pp > 1 and deployment.spec.fuses and not deployment.island.parts
        return Strategy(deployment, found, memory, idle, held, alike, fuses, component.fewest)

    def batches(self, component: Component) -> list[Batch]:
        return [batch for _, each in component.batches(self.tasks) for batch in each]

    def longest(self, component: Component) -> int:
        """Tokens of its longest row."""
        return int(max((batch.row.longest for batch in component.tried(self.tasks)), default=1.0))

    def filling(self, component: Component, deployment: Deployment, copies: int, longest: bool = False) -> float:
        """Bytes of the cache that its rows fill in the end, with which it is as fast as with more. longest: if all of
        them are the longest."""
        most, rows = at_once(deployment), self.batches(component)
        tokens = [
            min(most, each.share(copies)) * (each.row.longest if longest else each.prompt.mean + each.response.mean)
            for each in rows
        ]
        return cached(component.config, deployment) * max(tokens, default=0.0)

    def stays(self, component: Component) -> tuple[float, ...]:
        """How often in a step it comes to its devices for each of its tasks, if it sleeps in between."""
        if id(component) not in self._stays:
            own = component.tasks
            self._stays[id(component)] = tuple([stays(self.tasks, number, own) for number in own])
        return self._stays[id(component)]

    def units(self, component: Component) -> list[float]:
        """How many rows tasks have that can be dealt out: samples of one prompt stay together."""
        if id(component) not in self._units:
            found = {batch.rows / batch.samples for batch in component.tried(self.tasks)}
            self._units[id(component)] = sorted(found) or [1.0]
        return self._units[id(component)]

    # What does

    def options(self, component: Component, strategy: Strategy, copies: int) -> tuple[Option, ...]:
        """With the model staying there, and with the model in the host's memory in between."""
        strategy = strategy.at(copies)
        deployment = strategy.deployment
        times = tuple([self.tasks[number].times for number in component.tasks])
        if copies not in strategy.sent:
            split = _split(component, deployment, copies)
            split = self._splits.setdefault(split, split)
            kind, sent = _sent(component, deployment, split)
            strategy.sent[copies] = split, kind, (*sent, -copies) if self.apart else sent
        split, kind, sent = strategy.sent[copies]
        high = strategy
        if strategy.caches:
            # With more than all of its rows fill it is no faster.
            high = strategy.caches.over(self.filling(component, deployment, copies))
            kind = kind, deployment.mesh, deployment.adapters
        still, sleeps = (0.0,) * len(times), self.sleeps(deployment)
        staying = Option(strategy, copies, split, False, times, still, kind, sent, high, (0.0,) * self.offload)
        if not sleeps:
            return (staying,)
        moved = self.coming(component, strategy, copies)
        hosted = (0.0 if component.brought else strategy.kept(copies),)
        return staying, Option(strategy, copies, split, True, times, moved, kind, sent, high, hosted)

    def coming(self, component: Component, strategy: Strategy, copies: int) -> tuple[float, ...]:
        """Of each of its tasks the seconds of a step in which a model that sleeps comes for it, and goes."""
        deployment, (resident, _) = strategy.deployment, strategy.needs(copies)
        once = onload(component.kind, resident - deployment.kv_bytes, deployment, component.brought).seconds
        return tuple([once * each for each in self.stays(component)])


def _rounded(devices: int) -> int:
    """The largest number that is no more, and has four digits or fewer between its first and its last one as a binary
    number."""
    more = max(0, devices.bit_length() - 3)
    return devices >> more << more


def _said(component: Component) -> tuple[tuple[str, int], ...]:
    """The sizes of a copy's axes that its schedule says."""
    return tuple((name, size) for name, size in component.pin.sizes if name != "dp") if component.pin else ()


@cache
def legal(
    shape: Shape,
    engine: str,
    kind: ModelKind,
    per_node: int,
    said: tuple[tuple[str, int], ...] = (),
    tokens: int = 1,
    widest: int = 0,
) -> tuple[Mesh, ...]:
    """The meshes that an engine can split one copy of a model by. said: sizes of axes that are not searched for.
    tokens: most ranks over which those of a row are split. widest: those over which columns are, where two nodes are
    too few."""
    if problems(shape, engine, mesh(), kind):
        return ()
    axes = [axis for axis in AXES if axis.name in spec_of(engine).axes and axis.splits != "rows"]
    sizes = dict(said)
    if any(size > 1 and name not in [axis.name for axis in axes] for name, size in said):
        return ()
    # What is wrong with one axis does not depend on the others, if there are ranks along it.
    able = [
        [
            (axis.name, size)
            for size in ([sizes[axis.name]] if axis.name in sizes else _sizes(axis, shape, per_node, tokens, widest))
            if not axis.spread or not problems(shape, engine, mesh(**{axis.name: size}), kind)
        ]
        for axis in axes
    ]
    columns = spec_of(engine).columns
    found = (mesh(**dict(sizes)) for sizes in product(*able))
    found = (split for split in found if split.axes == split.spread or not problems(shape, engine, split, kind))
    alone = (split for split in found if sum(split.length(axis) > 1 for axis in columns) < 2)
    most = max(widest, _NODES * per_node)
    return tuple(split for split in alone if said or split.length("fsdp") * split.length("tp") <= most)


def _power(most: int) -> int:
    """The largest power of two that is no more; 1 at least."""
    return 1 << max(0, most.bit_length() - 1)


def _sizes(axis: MeshAxis, shape: Shape, per_node: int, tokens: int, widest: int) -> Sequence[int]:
    """That are tried: of stages any, no parts of them, else powers of two, over two nodes at most, but for models that
    are too large for that; what is shared out is also over whole nodes, up to eight. tokens, widest: as `legal` has
    them."""
    if axis.splits == "layers":
        return range(1, min(shape.layers, 64) + 1)
    if axis.splits == "rounds":
        return [1]
    powers = [2**power for power in range(12) if 2**power <= max(widest, 2 * per_node)]
    if axis.splits == "tokens":
        return [each for each in powers if each <= tokens]
    if axis.splits == "shards":
        return sorted({*powers, *(per_node * nodes for nodes in (1, 2, 4, _NODES))})
    return powers


def _copies(component: Component, units: Sequence[float], most: int) -> Iterator[int]:
    """How many data-parallel copies a component can have, most first: what is pinned, or for each number of rows that
    the fullest copy can have the fewest, since more copies would wait, and have to be told. Of models that are trained,
    more copies may need less memory, and take less time to get new weights: all numbers up to `EACH` are there."""
    said = component.pin.splits().get("dp") if component.pin else None
    if said:
        if said <= most:
            yield said
        return
    while most > 0:
        fewest = max(math.ceil(count / math.ceil(count / most)) for count in units)
        if component.trained and most <= EACH:
            yield from range(most, fewest, -1)
        yield fewest
        most = fewest - 1


def _split(component: Component, deployment: Deployment, copies: int) -> Split:
    """Of so many copies; deployment: of one."""
    island, reach = deployment.island, deployment.size
    own = deployment.engine, id(island), deployment.mesh, copies
    weights = (
        id(island),
        deployment.tp,
        deployment.parts,
        reach,
        min(reach * copies, island.per_node),
        deployment.adapters,
    )
    shared = _alike(component, deployment)
    return Split(*own, shared, own if shared else weights)


def _sent(component: Component, deployment: Deployment, split: Split) -> tuple[object, tuple[float, ...]]:
    """What decides how fast weights come from so many copies of a component, or to them (`cost.time.sync`): of options
    of the same kind, they come at least as fast with the one that is the lesser in each number. deployment: of a
    copy."""
    if not component.linked:
        return None, ()
    reach, per_node = deployment.size, deployment.island.per_node
    if _alike(component, deployment) or per_node & (per_node - 1) or deployment.island.parts:
        # Tensors are split by powers of two, which may not divide such a node: only the same split is sure to be as
        # good. So it is of several islands, from and to which others go that lie on one of them.
        return (split, deployment.adapters), ()
    width = -min(reach * split.copies, per_node)
    if component.brought:
        kind = deployment.tp, deployment.adapters
        return kind, (width, -deployment.parts, not deployment.island.near(reach))
    return deployment.tp, (width, deployment.pp, reach > per_node or per_node % reach != 0)


def _alike(component: Component, deployment: Deployment) -> bool:
    """Whether one engine trains and does what else is done with the model: with the same split in both, weights do not
    travel at all."""
    generates = component.generates and deployment.spec.generates
    return component.trained and deployment.spec.trains and (generates or component.apart == "said")
