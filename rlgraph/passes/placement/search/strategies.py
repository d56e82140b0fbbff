"""The strategies of a component: every engine, mesh and setting by which one replica can do its work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain, groupby, zip_longest

from rlgraph.backends.enginespec.layout_checks import adapter_choices, model_chunk_counts
from rlgraph.backends.enginespec.registry import embedded_engine, engines_by_preference
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.backends.enginespec.spec import ReservedCache
from rlgraph.catalog.clusters.cluster import DeviceKind, NodeGroup
from rlgraph.ir.mesh import AXES, make_mesh
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost import work
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.decoding_slots import cache_bytes_per_token
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.memory import MemoryModel
from rlgraph.passes.cost.peak_memory import usable_device_bytes
from rlgraph.passes.cost.predict import TaskCostModel, memory_model, task_cost_model
from rlgraph.passes.cost.task import Task
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.kv_cache_sizes import KVCacheSizes
from rlgraph.passes.placement.search.meshes import legal_replica_meshes, pinned_axis_sizes
from rlgraph.passes.placement.search.search_settings import SearchSettings
from rlgraph.passes.placement.search.strategy import Strategy
from rlgraph.passes.placement.search.virtual_stages import ChunkedStrategy

MICROS: tuple[int, ...] = (1, 2, 4, 8)
"""The numbers of longest rows that fit into the micro-batches that are tried."""

TOKENS = 8192
"""The fewest tokens of the longest row for each of the ranks over which the tokens of rows are split."""


class Strategies:
    """The strategies of all components, which do not depend on the number of devices, computed once."""

    def __init__(self, tasks: Sequence[Task], constants: Constants, settings: SearchSettings) -> None:
        self.tasks, self.constants, self.settings = tasks, constants, settings
        self.components: dict[int, Component] = {}
        """The components by their ids, which are the keys of the other caches: several problems may share components,
        and options."""
        self.kin: Strategies | None = None
        """Strategies of the same work in another cluster, some of whose node groups may be like those of this one."""
        self.strategies: dict[tuple[int, int], list[list[Strategy]]] = {}
        self._task_models: dict[tuple[int, ModelConfig, Deployment], TaskCostModel] = {}

    def strategies_by_split(self, component: Component, island: NodeGroup) -> list[list[Strategy]]:
        """Return the strategies of a component on a node group, those of each split together, computed once."""

        def group_strategies_by_split() -> list[list[Strategy]]:
            self.components[id(component)] = component
            by_split = groupby(
                self.all_strategies(component, island),
                lambda strategy: (
                    strategy.deployment.mesh,
                    strategy.deployment.adapters,
                    strategy.deployment.gather,
                    strategy.deployment.optimizer,
                ),
            )
            return [list(same_split) for _, same_split in by_split]

        return get_or_compute(self.strategies, (id(component), id(island)), group_strategies_by_split)

    def all_strategies(self, component: Component, island: NodeGroup) -> Iterator[Strategy]:
        """Yield the strategies of every engine, every legal mesh and every setting."""
        fit, known = usable_device_bytes(island, self.constants), self.strategies_of_kin(component, island)
        islands = {id(plain.deployment.island): plain.deployment.island for plain, *_ in known.values()}
        as_fast = {key for key, other in islands.items() if other.takes_as_long_as(island)}
        for deployment in self.legal_deployments(component, island):
            alike: Strategy | None = None
            for full in self.deployments_with_settings(component, deployment):
                plain, *chunked = known.get(_settings(full), (None,))
                takes_as_long = plain is not None and id(plain.deployment.island) in as_fast
                if plain is None:
                    strategy = self.strategy_with_caches(component, full, alike)
                elif takes_as_long:
                    strategy = plain.on_like_nodes(island, alike)
                else:
                    strategy = self.make_strategy(component, full, alike, plain)
                alike = alike or strategy
                most = strategy.most_replicas(island.device_count)
                if most > strategy.beyond and strategy.least_device_bytes(most) <= fit:
                    yield strategy
                    if takes_as_long:
                        yield from (other.on_like_nodes(island, strategy) for other in chunked)
                    else:
                        yield from self.chunked_strategies(component, strategy)

    def strategies_of_kin(
        self, component: Component, island: NodeGroup
    ) -> dict[tuple[object, ...], tuple[Strategy, ...]]:
        """Return, by their settings, strategies with one cache that are known of a node group where everything needs as
        much memory, each with the one in which stages have several parts of the layers if there is one."""
        result: dict[tuple[object, ...], tuple[Strategy, ...]] = {}
        known, components = (self.kin.strategies, self.kin.components) if self.kin else ({}, {})
        for (number, _), by_split in known.items():
            if components[number] == component:
                for strategy in chain.from_iterable(by_split):
                    deployment = strategy.deployment
                    if not strategy.caches and deployment.island.has_like_nodes(island):
                        # A chunked one comes after its plain one.
                        result[_settings(deployment)] = (*result.get(_settings(deployment), ()), strategy)
        return result

    def chunked_strategies(self, component: Component, plain: Strategy) -> Iterator[ChunkedStrategy]:
        """Yield the strategy with several parts of the layers on each stage of a model that is trained, if it may have
        them."""
        deployment = plain.deployment
        pinned = component.pin is not None and "chunks" in component.pin.axis_sizes()
        if component.work != "train" or pinned or deployment.pp == 1:
            return
        sizes = model_chunk_counts(deployment.engine_spec, component.config.shape, deployment.pp)
        if sizes:

            def strategy_with_chunks(size: int) -> Strategy:
                split = make_mesh(**(dict(deployment.mesh.axes) | {"chunks": size}))
                strategy = self.make_strategy(component, replace(deployment, mesh=split), plain)
                # A training that shares a pipeline works while other stages wait: the search gives it one part there.
                strategy.fuses = False
                return strategy

            yield ChunkedStrategy(
                plain, sizes, [self.tasks[number].repetitions for number in component.tasks], strategy_with_chunks
            )

    def legal_deployments(self, component: Component, island: NodeGroup) -> Iterator[Deployment]:
        """Yield the deployments of a replica that engines can do, with every way of adapters and of gathering
        parameters."""
        pin = component.pin
        config, pinned, tokens = (
            component.config,
            pinned_axis_sizes(component),
            _power(self.longest_row_tokens(component) // TOKENS),
        )
        for engine in [pin.engine] if pin and pin.engine else self.preferred_engines(component, island.device.kind):
            widest = self.max_tensor_parallel_ranks(component, engine, island)
            for split in legal_replica_meshes(
                config.shape, engine, config.kind, island.per_node, pinned, tokens, widest
            ):
                can_do = all(
                    spec_of(engine).supports(operation, split.split_axes) for operation in component.operations
                )
                # What a schedule says of the engine is kept, and refused where the plan is made.
                is_said = pin is not None and pin.engine is not None
                can_do &= not component.replays_routes or is_said or spec_of(engine).replays_routes
                can_do &= (
                    not component.sums_jointly
                    or is_said
                    or spec_of(engine).reads_jointly(split.split_axes, component.mixes)
                )
                rooms = [part.device_count for part in island.parts or (island,)]
                if can_do and split.rank_count <= min(rooms):
                    deployment = Deployment(engine, island, split, attention=(pin.attention if pin else None) or "")
                    ways = adapter_choices(
                        spec_of(engine),
                        config.shape,
                        config.dtype,
                        island.device.kind,
                        (pin.adapters if pin else None) or "",
                    )
                    gathers: Sequence[str] = ("",)
                    optimizers: Sequence[str] = ("",)
                    if component.work == "train":
                        gathers = spec_of(engine).gather_choices(split, (pin.gather if pin else None) or "")
                        optimizers = spec_of(engine).optimizer_choices(
                            (pin.optimizer if pin else None) or "", self.settings.host_optimizer
                        )
                    yield from (
                        replace(deployment, adapters=way, gather=gather, optimizer=optimizer)
                        for optimizer in optimizers
                        for gather in gathers
                        for way in ways
                    )

    def max_tensor_parallel_ranks(self, component: Component, engine: str, island: NodeGroup) -> int:
        """Return the most ranks over which columns of a layer are split: those of two nodes, or with an engine that
        splits by nothing else as many as leave half of each device besides the weights, for a model that needs so
        many."""
        most, config = 2 * island.per_node, component.config
        if any(axis.splits in ("layers", "shards") and axis.name in spec_of(engine).axes for axis in AXES):
            return most
        half = usable_device_bytes(island, self.constants) / 2
        while 2 * most <= island.device_count and (
            work.model_parallel_parameter_count(config.shape, config.kind, 1, most) * config.item_bytes > half
        ):
            most *= 2
        return most

    def preferred_engines(self, component: Component, kind: DeviceKind = "gpu") -> list[str]:
        """Return the engine that is preferred for a component's work, of those that can hold its model on a kind of
        device as the schedule says."""
        config, pinned = component.config, pinned_axis_sizes(component)
        for spec in engines_by_preference(component.operations[0]):
            available = spec.embedded or spec.name in self.settings.engines
            capable = spec.operations.issuperset(component.operations)
            if component.work == "train":
                capable &= config.optimizer.name in spec.optimizers
            capable &= spec.autocast or not config.autocast
            capable &= not spec.device_faults(config.shape, kind)
            capable &= not component.replays_routes or spec.replays_routes
            capable &= not component.sums_jointly or spec.reads_jointly((), component.mixes)
            if config.shape.adapters and spec.adapters:
                capable &= bool(spec.adapter_ways(config.shape, config.dtype, kind))
            if available and capable and legal_replica_meshes(config.shape, spec.name, config.kind, 1, pinned):
                return [spec.name]
        return [embedded_engine().name]

    def deployments_with_settings(self, component: Component, deployment: Deployment) -> Iterator[Deployment]:
        """Yield the deployment with every setting: sizes of micro-batches, recomputation, the smallest cache."""
        width = self.longest_row_tokens(component) + 1
        settings = deployment.engine_spec.settings
        if component.work == "generate" and "kv_bytes" in settings:
            cache = deployment.engine_spec.memory.cache
            room = cache.room_tokens(width, deployment.on_cpu) if isinstance(cache, ReservedCache) else width
            least = math.ceil(cache_bytes_per_token(component.config, deployment) * room)
            yield replace(deployment, kv_bytes=int(pinned_cache_bytes(component) or least))
            return
        micros = component.work != "generate" and "micro_tokens" in settings
        recomputes = [False, True] if component.work == "train" and "recompute" in settings else [False]
        if component.pin and component.pin.recompute is not None and component.work == "train":
            recomputes = [setting for setting in recomputes if setting == component.pin.recompute]
        for tokens in [rows * width for rows in MICROS] if micros else [deployment.micro_tokens]:
            for recompute in recomputes:
                yield replace(deployment, micro_tokens=tokens, recompute=recompute)

    def strategy_with_caches(
        self, component: Component, deployment: Deployment, alike: Strategy | None = None
    ) -> Strategy:
        """Return the strategy of a split and its settings, with the larger caches that it can have."""
        strategy = self.make_strategy(component, deployment, alike)
        if deployment.kv_bytes and not pinned_cache_bytes(component):

            def strategy_with_cache_size(number: int, size: int) -> Strategy:
                larger = self.make_strategy(component, replace(deployment, kv_bytes=size), strategy)
                larger.caches, larger.cache = strategy.caches, number
                return larger

            strategy.caches = KVCacheSizes(deployment.kv_bytes, strategy, strategy_with_cache_size)
        return strategy

    def make_strategy(
        self,
        component: Component,
        deployment: Deployment,
        alike: Strategy | None = None,
        kin: Strategy | None = None,
    ) -> Strategy:
        """Return the strategy of a split and its settings. alike: the first one of the same split. kin: the same one on
        another node group, where everything needs as much memory."""
        config, done = component.config, list(component.operation_batches(self.tasks))
        accumulates = self.settings.streams and deployment.engine_spec.accumulates

        def make_memory_model(op: str, batches: Sequence[Batch], similar: MemoryModel | None) -> MemoryModel:
            return memory_model(
                "accumulate" if accumulates and NODES[op].trains else op, config, deployment, batches, similar
            )

        def make_task_model(
            number: int, op: str, batches: Sequence[Batch], similar: TaskCostModel | None
        ) -> TaskCostModel:
            # What trains and reads has the tasks of its parts.
            return get_or_compute(
                self._task_models,
                (number, config, deployment),
                lambda: task_cost_model(op, config, deployment, self.constants, batches, similar),
            )

        idle_operations = [op for op in component.operations if op not in dict(done)]
        models = [
            make_task_model(number, op, batches, similar)
            for number, (op, batches), similar in zip_longest(component.tasks, done, alike.tasks if alike else ())
        ]
        memory: Sequence[MemoryModel]
        idle: Sequence[MemoryModel]
        if kin:
            memory, idle = kin.memory, kin.idle
        else:
            memory = [
                make_memory_model(op, batches, similar)
                for (op, batches), similar in zip_longest(done, alike.memory if alike else ())
            ]
            idle = [
                make_memory_model(op, (), similar)
                for op, similar in zip_longest(idle_operations, alike.idle if alike else ())
            ]
        if alike:
            process = alike.process
        else:
            process = (
                deployment.process_bytes(self.constants),
                deployment.with_replicas(2).process_bytes(self.constants),
            )
        fuses = component.work == "train" and component.model_name in self.settings.fuses
        fuses = fuses and deployment.pp > 1 and deployment.engine_spec.fuses and not deployment.island.parts
        strategy = Strategy(deployment, models, memory, idle, process, alike, fuses, component.fewest_replicas)
        if kin:
            strategy.share_memory(kin)
        return strategy

    def longest_row_tokens(self, component: Component) -> int:
        """Return the tokens of its longest row."""
        longest = max((batch.mean_row_tokens.longest for batch in component.batches_to_try(self.tasks)), default=1.0)
        return max(int(longest), (component.pin.max_len if component.pin else None) or 0)


def _settings(deployment: Deployment) -> tuple[object, ...]:
    """Return all of a deployment but its node group."""
    return tuple([getattr(deployment, setting.name) for setting in fields(deployment) if setting.name != "island"])


def pinned_cache_bytes(component: Component) -> float | None:
    """Return the bytes that the schedule says of a component's cache; None where it says nothing."""
    return component.pin.cache if component.pin else None


def _power(most: int) -> int:
    """Return the largest power of two that is no more; 1 at least."""
    return 1 << max(0, most.bit_length() - 1)
