"""The options of a component: how it can be split over so many devices, what each strategy takes, and what it needs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, groupby, product, zip_longest
from operator import le, lt

from rlgraph.backends.enginespec.legal import adapter_choices, parts, problems
from rlgraph.backends.enginespec.registry import embedded, preferred
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.backends.enginespec.spec import ReservedCache
from rlgraph.catalog.clusters.cluster import DeviceKind, NodeGroup
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import AXES, Mesh, MeshAxis, mesh
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost import work
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.decoding import at_once, cached_token_bytes
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.memory import MemoryModel
from rlgraph.passes.cost.peak import lodges, usable
from rlgraph.passes.cost.predict import memory_model, onload, task_model
from rlgraph.passes.cost.tasks import Task, stays
from rlgraph.passes.cost.weights import sync_cost
from rlgraph.passes.placement.search.caches import Caches
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.option import Key, Option, Ranks, SeparateOption, Split, Strategy, undominated
from rlgraph.passes.placement.search.parts import ChunkedStrategy

Sharing = Mapping[Ranks, Sequence[Option]]
"""Options that may share a pipeline, by how they are split."""

MICROS: tuple[int, ...] = (1, 2, 4, 8)
"""The numbers of longest rows that fit into the micro-batches that are tried."""

TOKENS = 8192
"""The fewest tokens of the longest row for each of the ranks over which the tokens of rows are split."""

EACH = 16
"""Replicas of a trained model up to which every number of them is tried."""

FASTER = 0.9
"""The share of the trainers' own seconds that separate readers may take to be worth weights of their own."""

_NODES = 8
"""The most nodes over which a replica's parameters are sharded, whatever its layers are split by."""


class Options:
    """The options of all components, computed once for each number of devices."""

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
        """engines: those that may be chosen where the schedule names none. offload: whether models may be in the host's
        memory while they are not at work. apart: whether rows may travel between node groups, where more replicas have
        more links. streams: whether rows may come to a training while others are made, and gradients are added up
        meanwhile. parts: components that train and read, each with its training part and its reading part, which may be
        split differently in a pool. fuses: models whose training may share a pipeline."""
        self.tasks, self.constants, self.engines, self.offload = tasks, constants, engines, offload
        self.apart, self.streams, self.fuses = apart, streams, fuses
        self.parts = {id(undivided): (undivided, trainer, reader) for undivided, trainer, reader in parts}
        self._synced: dict[tuple[object, ...], float] = {}
        self._together: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._reading: dict[tuple[int, Deployment], Strategy] = {}
        self._separate: dict[tuple[int, int, int], list[Option]] = {}
        self._apart: dict[tuple[int, int, int], Option] = {}
        self._components: dict[int, Component] = {}
        """The components by their ids, which are the keys of the other caches: several problems may share components,
        and options."""
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

    def of(self, component: Component, island: NodeGroup, devices: int) -> tuple[Option, ...]:
        """Return the options of a component on at most so many devices of a node group, none of which another one
        dominates, fastest first. More devices have all the options of fewer."""
        key = (id(component), id(island), devices)
        if key not in self._found:
            # Neighbouring numbers of devices often have the same options.
            strategies = self.known(component, island)
            rooms = [self.room(component, island, same_split[0].room(devices)) for same_split in strategies]
            part_options = [self.of(part, island, _rounded(devices)) for part in self.parts.get(id(component), ())[1:]]
            # Of several node groups it may need fewer.
            inner = self.of(component, island.inner, min(devices, island.inner.devices)) if island.inner else ()
            front = (id(component), id(island), *rooms, *map(id, part_options), id(inner))
            if front not in self._fronts:
                options = [
                    option
                    for room, same_split in zip(rooms, strategies, strict=True)
                    for option in self.fitting(component, same_split, room)
                ]
                if part_options:
                    options += self.separate(component, *part_options)
                if inner:
                    options = [*dict.fromkeys((*inner, *options))]
                self._fronts[front] = tuple(undominated(options, usable(island, self.constants), self.lodges(island)))
            self._found[key] = self._fronts[front]
        return self._found[key]

    def sleeps(self, deployment: Deployment) -> bool:
        """Return whether a model may be offloaded to the host's memory while it is not at work. What is called a CPU's
        device memory is the host's memory already."""
        return self.offload and deployment.spec.sleeps and deployment.island.device.kind != "cpu"

    def lodges(self, island: NodeGroup) -> float:
        """Return the bytes of a node's host for offloaded models; infinity where none may be."""
        return lodges(island, self.constants) if self.offload else math.inf

    def sharing(self, component: Component, island: NodeGroup, devices: int) -> Sharing:
        """Return, by split, the options that may share a pipeline; also some that others dominate that share none."""
        fusible = [same_split for same_split in self.known(component, island) if same_split[0].fuses]
        rooms = [self.room(component, island, same_split[0].room(devices)) for same_split in fusible]
        key = (id(component), id(island), *rooms)
        if key not in self._sharing:
            result: dict[Ranks, Sequence[Option]] = {}
            for same_split, room in zip(fusible, rooms, strict=True):
                result |= self.filled(component, same_split, room)
            if island.inner:
                result |= self.sharing(component, island.inner, min(devices, island.inner.devices))
            self._sharing[key] = result
        return self._sharing[key]

    def filled(self, component: Component, own: list[Strategy], most: int) -> Sharing:
        """Return, by split, the options of the strategies of one mesh that may share a pipeline, where there is room
        for so many replicas."""
        key = (id(own), most)
        if key not in self._filled:
            splits: dict[Ranks, list[Option]] = {}
            for option in self.fitting(component, own, most):
                if option.fuses:
                    splits.setdefault(option.split.ranks, []).append(option)
            self._filled[key] = splits
        return self._filled[key]

    def room(self, component: Component, island: NodeGroup, most: int) -> int:
        """Return the fewest replicas that there can be room for instead of `most` with equal `numbers`."""
        few = max(EACH, island.per_node) + 1
        return most if most <= few else max(few, next(_copies(component, self.units(component), most), 0))

    def fitting(self, component: Component, own: list[Strategy], most: int) -> list[Option]:
        """Return the options of the strategies of one split, where there is room for so many replicas."""
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
        """Yield the ways to train and read with a split of its own each that are worth it: some of what is read is
        there earlier by a tenth than if who trains it read, and no other reader is better in all."""
        for trainer in trainers:
            key = (id(whole), id(trainer), id(readers))
            if key not in self._separate:
                self._separate[key] = list(self.beside(whole, trainer, readers))
            yield from self._separate[key]

    def beside(self, whole: Component, trainer: Option, readers: Sequence[Option]) -> Iterator[Option]:
        """Yield these ways for one way to train."""
        _, trained, read = self.parts[id(whole)]
        together = [FASTER * task_s for task_s in self.together(whole, read, trainer)]
        keys: list[Key] = []
        for reader in readers:
            if reader.total >= sum(together) and len(together) == 1:
                break
            wait = self.synced(whole, trainer, reader)
            first, *others = reader.seconds
            seconds = (first + wait, *others)
            if trainer.split == reader.split or not any(map(lt, seconds, together)):
                continue
            reader_key = (*seconds, reader.resident, *reader.active)
            if any(all(map(le, other, reader_key)) for other in keys):
                continue
            keys.append(reader_key)
            key = (id(whole), id(trainer), id(reader))
            if key not in self._apart:
                seconds_of = dict(zip(trained.tasks, trainer.seconds, strict=True)) | dict(
                    zip(read.tasks, seconds, strict=True)
                )
                bytes_of = dict(zip(trained.tasks, trainer.active, strict=True))
                bytes_of |= zip(read.tasks, reader.active, strict=True)
                kind, sent = _sent(whole, trainer.strategy.deployment, trainer.split)
                self._apart[key] = SeparateOption(
                    trainer,
                    reader,
                    tuple([seconds_of[task] for task in whole.tasks]),
                    tuple([bytes_of[task] for task in whole.tasks]),
                    kind,
                    (*sent, -trainer.copies) if self.apart else sent,
                )
            yield self._apart[key]

    def together(self, whole: Component, read: Component, trainer: Option) -> tuple[float, ...]:
        """Return the seconds of what is read, by those who train."""
        key = (id(whole), trainer.strategy.deployment, trainer.copies)
        if key not in self._together:
            strategy_key = id(whole), trainer.strategy.deployment
            if strategy_key not in self._reading:
                self._reading[strategy_key] = self.strategy(whole, trainer.strategy.deployment)
            seconds = self._reading[strategy_key].seconds(trainer.copies)
            seconds_of = dict(zip(whole.tasks, seconds, strict=True))
            self._together[key] = tuple([seconds_of[task] * self.tasks[task].times for task in read.tasks])
        return self._together[key]

    def synced(self, component: Component, source: Option, target: Option) -> float:
        """Return the seconds that weights take from some processes to others in their pool."""
        key = (id(component), source.split.weights, target.split.weights)
        if key not in self._synced:
            ends = source.deployment, target.deployment
            self._synced[key] = sync_cost(component.config, *ends, True, self.constants).seconds
        return self._synced[key]

    def all(self, component: Component, island: NodeGroup, devices: int) -> Iterator[Option]:
        """Yield all options that may be worth it, also those that do not fit next to others."""
        if island.inner:
            yield from self.all(component, island.inner, min(devices, island.inner.devices))
        for strategy in chain.from_iterable(self.known(component, island)):
            for copies in self.numbers(component, strategy, strategy.room(devices)):
                yield from self.made(component, strategy, copies)

    def numbers(self, component: Component, strategy: Strategy, most: int) -> list[int]:
        """Return how many replicas a component can have where there is room for `most`, without the numbers that are no
        faster than more replicas and need no less memory, of devices and of hosts."""
        if isinstance(strategy, ChunkedStrategy):
            all_numbers = self.copies(component, strategy.room(strategy.deployment.island.devices))
            numbers = list(strategy.numbers(all_numbers, most))
            if self.sleeps(strategy.deployment) and not component.brought:
                near = min(most, strategy.near)
                numbers += [
                    number for number in strategy.records(all_numbers) if number <= near and number not in numbers
                ]
            return numbers
        numbers = list(self.paying(component, strategy, most))
        # What replicas exchange takes a step less of time where all of them are on one node.
        if strategy.near < most:
            for copies in self.paying(component, strategy, strategy.near):
                if copies in numbers:
                    break
                numbers.append(copies)
        numbers += [number for number in self.lighter(component, strategy) if number <= most and number not in numbers]
        if self.sleeps(strategy.deployment) and not component.brought:
            # Fewer on a node offload less to it.
            numbers += [number for number in self.copies(component, min(most, strategy.near)) if number not in numbers]
        return [number for number in numbers if number > strategy.beyond] if strategy.beyond else numbers

    def paying(self, component: Component, strategy: Strategy, most: int) -> list[int]:
        """Return, of at most so many replicas, the numbers that are faster than more of them, and the first that is
        not."""
        if most not in strategy.paying:
            no_sync, numbers = _needs_no_sync(component, strategy.deployment), []
            previous: tuple[float, ...] = ()
            for copies in self.copies(component, most):
                if copies <= strategy.beyond:
                    break
                numbers.append(copies)
                seconds = self.made(component, strategy, copies)[0].seconds
                # Fewer replicas have less to exchange. Where that does not pay, still fewer do not pay either.
                if previous and not any(map(lt, seconds, previous)) and not no_sync:
                    break
                previous = seconds
            strategy.paying[most] = numbers
        return strategy.paying[most]

    def known(self, component: Component, island: NodeGroup) -> list[list[Strategy]]:
        """Return the strategies of a component on a node group, those of each split together, computed once."""
        key = (id(component), id(island))
        if key not in self._strategies:
            self._components[id(component)] = component
            by_split = groupby(
                self.strategies(component, island),
                lambda strategy: (strategy.deployment.mesh, strategy.deployment.adapters, strategy.deployment.gather),
            )
            self._strategies[key] = [list(same_split) for _, same_split in by_split]
        return self._strategies[key]

    def copies(self, component: Component, most: int) -> list[int]:
        """Return the result of `_copies`, computed once."""
        key = (id(component), most)
        if key not in self._copies:
            self._copies[key] = list(_copies(component, self.units(component), most))
        return self._copies[key]

    def made(self, component: Component, strategy: Strategy, copies: int) -> tuple[Option, ...]:
        """Return the options of so many replicas, computed once."""
        if copies not in strategy.made:
            strategy.made[copies] = self.options(component, strategy, copies)
        return strategy.made[copies]

    def lighter(self, component: Component, strategy: Strategy) -> list[int]:
        """Return the numbers of replicas that may need less memory than more replicas do."""
        if strategy.fewer is None:
            island = strategy.deployment.island
            key = (id(component), id(island), strategy.process, *(model.loads for model in strategy.memory))
            if key not in self._lighter:
                self._lighter[key] = strategy.lighter(self.copies(component, island.devices))
            strategy.fewer = self._lighter[key]
        return strategy.fewer

    # What does not depend on the number of devices

    def strategies(self, component: Component, island: NodeGroup) -> Iterator[Strategy]:
        """Yield the strategies of every engine, every legal mesh and every setting."""
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

    def parted(self, component: Component, plain: Strategy) -> Iterator[ChunkedStrategy]:
        """Yield the strategy with several parts of the layers on each stage of a model that is trained, if it may have
        them."""
        deployment = plain.deployment
        pinned = component.pin is not None and "chunks" in component.pin.splits()
        if component.work != "train" or pinned or deployment.pp == 1:
            return
        sizes = parts(deployment.spec, component.config.shape, deployment.pp)
        if sizes:

            def divide(size: int) -> Strategy:
                split = mesh(**(dict(deployment.mesh.axes) | {"chunks": size}))
                strategy = self.strategy(component, replace(deployment, mesh=split), plain)
                # A training that shares a pipeline works while other stages wait: the search gives it one part there.
                strategy.fuses = False
                return strategy

            yield ChunkedStrategy(plain, sizes, [self.tasks[number].times for number in component.tasks], divide)

    def splits(self, component: Component, island: NodeGroup) -> Iterator[Deployment]:
        """Yield the deployments of a replica that engines can do, with every way of adapters and of gathering
        parameters."""
        pin = component.pin
        config, pinned, tokens = component.config, _pinned_sizes(component), _power(self.longest(component) // TOKENS)
        for engine in [pin.engine] if pin and pin.engine else self.able(component, island.device.kind):
            widest = self.widest(component, engine, island)
            for split in legal_meshes(config.shape, engine, config.kind, island.per_node, pinned, tokens, widest):
                can_do = all(spec_of(engine).does(operation, split.splits) for operation in component.operations)
                rooms = [part.devices for part in island.parts or (island,)]
                if can_do and split.size <= min(rooms):
                    deployment = Deployment(engine, island, split, attention=(pin.attention if pin else None) or "")
                    ways = adapter_choices(
                        spec_of(engine),
                        config.shape,
                        config.dtype,
                        island.device.kind,
                        (pin.adapters if pin else None) or "",
                    )
                    gathers: Sequence[str] = ("",)
                    if component.work == "train":
                        gathers = spec_of(engine).gathers(split, (pin.gather if pin else None) or "")
                    yield from (replace(deployment, adapters=way, gather=gather) for gather in gathers for way in ways)

    def widest(self, component: Component, engine: str, island: NodeGroup) -> int:
        """Return the most ranks over which columns of a layer are split: those of two nodes, or with an engine that
        splits by nothing else as many as leave half of each device besides the weights, for a model that needs so
        many."""
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
        """Return the engine that is preferred for a component's work, of those that can hold its model on a kind of
        device as the schedule says."""
        config, pinned = component.config, _pinned_sizes(component)
        for spec in preferred(component.operations[0]):
            available = spec.embedded or spec.name in self.engines
            capable = spec.operations.issuperset(component.operations)
            if component.work == "train":
                capable &= config.optimizer.name in spec.optimizers
            if config.shape.adapters and spec.adapters:
                capable &= bool(spec.adapts(config.shape, config.dtype, kind))
            if available and capable and legal_meshes(config.shape, spec.name, config.kind, 1, pinned):
                return [spec.name]
        return [embedded().name]

    def knobs(self, component: Component, deployment: Deployment) -> Iterator[Deployment]:
        """Yield the deployment with every setting: sizes of micro-batches, recomputation, the smallest cache."""
        width = self.longest(component) + 1
        settings = deployment.spec.settings
        if component.work == "generate" and "kv_bytes" in settings:
            cache = deployment.spec.memory.cache
            room = cache.room(width, deployment.on_cpu) if isinstance(cache, ReservedCache) else width
            yield replace(deployment, kv_bytes=math.ceil(cached_token_bytes(component.config, deployment) * room))
            return
        micros = component.work != "generate" and "micro_tokens" in settings
        recomputes = [False, True] if component.work == "train" and "recompute" in settings else [False]
        if component.pin and component.pin.recompute is not None and component.work == "train":
            recomputes = [setting for setting in recomputes if setting == component.pin.recompute]
        for tokens in [rows * width for rows in MICROS] if micros else [deployment.micro_tokens]:
            for recompute in recomputes:
                yield replace(deployment, micro_tokens=tokens, recompute=recompute)

    def whole(self, component: Component, deployment: Deployment, alike: Strategy | None = None) -> Strategy:
        """Return the strategy of a split and its settings, with the larger caches that it can have."""
        strategy = self.strategy(component, deployment, alike)
        if deployment.kv_bytes:

            def made(number: int, size: int) -> Strategy:
                larger = self.strategy(component, replace(deployment, kv_bytes=size), strategy)
                larger.caches, larger.cache = strategy.caches, number
                return larger

            strategy.caches = Caches(strategy, made)
        return strategy

    def strategy(self, component: Component, deployment: Deployment, alike: Strategy | None = None) -> Strategy:
        """Return the strategy of a split and its settings. alike: the first one of the same split."""
        config, done = component.config, list(component.batches(self.tasks))
        accumulates = self.streams and deployment.spec.accumulates

        def memory_of(op: str, batches: Sequence[Batch], similar: MemoryModel | None) -> MemoryModel:
            return memory_model(
                "accumulate" if accumulates and NODES[op].trains else op, config, deployment, batches, similar
            )

        idle_operations = [op for op in component.operations if op not in dict(done)]
        models = [
            task_model(op, config, deployment, self.constants, batches, similar)
            for (op, batches), similar in zip_longest(done, alike.tasks if alike else ())
        ]
        memory = [
            memory_of(op, batches, similar)
            for (op, batches), similar in zip_longest(done, alike.memory if alike else ())
        ]
        idle = [memory_of(op, (), similar) for op, similar in zip_longest(idle_operations, alike.idle if alike else ())]
        if alike:
            process = alike.process
        else:
            process = deployment.process(self.constants), deployment.copied(2).process(self.constants)
        fuses = component.work == "train" and component.model in self.fuses
        fuses = fuses and deployment.pp > 1 and deployment.spec.fuses and not deployment.island.parts
        return Strategy(deployment, models, memory, idle, process, alike, fuses, component.fewest)

    def batches(self, component: Component) -> list[Batch]:
        """Return the rows of all operations that a component does."""
        return [batch for _, batches in component.batches(self.tasks) for batch in batches]

    def longest(self, component: Component) -> int:
        """Return the tokens of its longest row."""
        return int(max((batch.row.longest for batch in component.tried(self.tasks)), default=1.0))

    def filling(self, component: Component, deployment: Deployment, copies: int, longest: bool = False) -> float:
        """Return the bytes of the cache that its rows fill in the end, with which it is as fast as with more. longest:
        if all of them are the longest."""
        most, rows = at_once(deployment), self.batches(component)
        tokens = [
            min(most, batch.share(copies)) * (batch.row.longest if longest else batch.prompt.mean + batch.response.mean)
            for batch in rows
        ]
        return cached_token_bytes(component.config, deployment) * max(tokens, default=0.0)

    def stays(self, component: Component) -> tuple[float, ...]:
        """Return for each of its tasks how often in a step it comes to its devices, if it is offloaded in between."""
        if id(component) not in self._stays:
            numbers = component.tasks
            self._stays[id(component)] = tuple([stays(self.tasks, number, numbers) for number in numbers])
        return self._stays[id(component)]

    def units(self, component: Component) -> list[float]:
        """Return the numbers of rows of its tasks that can be sharded: samples of one prompt stay together."""
        if id(component) not in self._units:
            counts = {batch.rows / batch.samples for batch in component.tried(self.tasks)}
            self._units[id(component)] = sorted(counts) or [1.0]
        return self._units[id(component)]

    # What depends on the number of devices

    def options(self, component: Component, strategy: Strategy, copies: int) -> tuple[Option, ...]:
        """Return the options of so many replicas: with the model staying on its devices and, where it may be, offloaded
        in between."""
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
            # With a cache of more than its rows fill it is no faster.
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
        """Return for each of its tasks the seconds of a step in which an offloaded model is brought back for it, and
        offloaded again."""
        deployment, (resident, _) = strategy.deployment, strategy.needs(copies)
        once = onload(component.kind, resident - deployment.kv_bytes, deployment, component.brought).seconds
        return tuple([once * times for times in self.stays(component)])


def _rounded(devices: int) -> int:
    """Return the largest number that is no more, and has only zeros after its first three binary digits."""
    more = max(0, devices.bit_length() - 3)
    return devices >> more << more


def _pinned_sizes(component: Component) -> tuple[tuple[str, int], ...]:
    """Return the sizes of a replica's axes that its schedule says."""
    return tuple((name, size) for name, size in component.pin.sizes if name != "dp") if component.pin else ()


@cache
def legal_meshes(
    shape: Shape,
    engine: str,
    kind: ModelKind,
    per_node: int,
    said: tuple[tuple[str, int], ...] = (),
    tokens: int = 1,
    widest: int = 0,
) -> tuple[Mesh, ...]:
    """Return the meshes that an engine can split one replica of a model by. said: sizes of axes that are not searched
    for. tokens: the most ranks over which those of a row are split. widest: those over which columns are, where two
    nodes are too few."""
    if problems(shape, engine, mesh(), kind):
        return ()
    axes = [axis for axis in AXES if axis.name in spec_of(engine).axes and axis.splits != "rows"]
    sizes = dict(said)
    if any(size > 1 and name not in [axis.name for axis in axes] for name, size in said):
        return ()
    # What is wrong with one axis does not depend on the others, if there are ranks along it.
    axis_sizes = [
        [
            (axis.name, size)
            for size in ([sizes[axis.name]] if axis.name in sizes else _sizes(axis, shape, per_node, tokens, widest))
            if not axis.spread or not problems(shape, engine, mesh(**{axis.name: size}), kind)
        ]
        for axis in axes
    ]
    columns = spec_of(engine).columns
    meshes = (mesh(**dict(sizes)) for sizes in product(*axis_sizes))
    meshes = (split for split in meshes if split.axes == split.spread or not problems(shape, engine, split, kind))
    unmixed = (split for split in meshes if sum(split.length(axis) > 1 for axis in columns) < 2)
    most = max(widest, _NODES * per_node)
    return tuple(split for split in unmixed if said or split.length("fsdp") * split.length("tp") <= most)


def _power(most: int) -> int:
    """Return the largest power of two that is no more; 1 at least."""
    return 1 << max(0, most.bit_length() - 1)


def _sizes(axis: MeshAxis, shape: Shape, per_node: int, tokens: int, widest: int) -> Sequence[int]:
    """Return the sizes of an axis that are tried: any number of stages, one part of them, else powers of two, over two
    nodes at most, but for models that are too large for that; parameters are also sharded over whole nodes, up to
    eight. tokens, widest: as `legal` has them."""
    if axis.splits == "layers":
        return range(1, min(shape.layers, 64) + 1)
    if axis.splits == "rounds":
        return [1]
    powers = [2**power for power in range(12) if 2**power <= max(widest, 2 * per_node)]
    if axis.splits == "tokens":
        return [power for power in powers if power <= tokens]
    if axis.splits == "shards":
        return sorted({*powers, *(per_node * nodes for nodes in (1, 2, 4, _NODES))})
    return powers


def _copies(component: Component, units: Sequence[float], most: int) -> Iterator[int]:
    """Yield how many data-parallel replicas a component can have, most first: what is pinned, or for each number of
    rows that the fullest replica can have the fewest, since more replicas would wait, and need requests. Of trained
    models, more replicas may need less memory, and take less time to get new weights: all numbers up to `EACH` are
    there."""
    pinned = component.pin.splits().get("dp") if component.pin else None
    if pinned:
        if pinned <= most:
            yield pinned
        return
    while most > 0:
        fewest = max(math.ceil(count / math.ceil(count / most)) for count in units)
        if component.trained and most <= EACH:
            yield from range(most, fewest, -1)
        yield fewest
        most = fewest - 1


def _split(component: Component, deployment: Deployment, copies: int) -> Split:
    """Return the split of so many replicas; deployment: that of one."""
    island, reach = deployment.island, deployment.size
    ranks = deployment.engine, id(island), deployment.mesh, copies
    weights = (
        id(island),
        deployment.tp,
        deployment.parts,
        reach,
        min(reach * copies, island.per_node),
        deployment.adapters,
    )
    shared = _needs_no_sync(component, deployment)
    return Split(*ranks, shared, ranks if shared else weights)


def _sent(component: Component, deployment: Deployment, split: Split) -> tuple[object, tuple[float, ...]]:
    """Return what decides how fast weights come from so many replicas of a component, or to them (`cost.time.sync`): of
    options of the same kind, they come at least as fast with the one that is no greater in each number. deployment:
    that of a replica."""
    if not component.linked:
        return None, ()
    reach, per_node = deployment.size, deployment.island.per_node
    if _needs_no_sync(component, deployment) or per_node & (per_node - 1) or deployment.island.parts:
        # Tensors are split by powers of two, which may not divide such a node: only the same split is sure to be as
        # good. The same holds for several node groups, with transfers from and to others that lie on one of them.
        return (split, deployment.adapters), ()
    width = -min(reach * split.copies, per_node)
    if component.brought:
        kind = deployment.tp, deployment.adapters
        return kind, (width, -deployment.parts, not deployment.island.near(reach))
    return deployment.tp, (width, deployment.pp, reach > per_node or per_node % reach != 0)


def _needs_no_sync(component: Component, deployment: Deployment) -> bool:
    """Return whether one engine trains and does what else is done with the model: with the same split in both, weights
    do not travel at all."""
    generates = component.generates and deployment.spec.generates
    return component.trained and deployment.spec.trains and (generates or component.apart == "said")
