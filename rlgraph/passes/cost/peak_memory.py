"""Finds the fullest moment of each pool over a step, and what fills its devices then.

Groups of a pool take turns: all of them hold their models, and one of them works. An off-loaded model occupies the
device only while it works. A process occupies it all the time, with what it uses beside tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.clusters.cluster import Cluster, NodeGroup
from rlgraph.catalog.models.families import parameter_count
from rlgraph.ir.plan import Group, Plan, Pool
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.batch import Batch, total_rows
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.cost.forward_backward_memory import AccumulatingTrainingMemory
from rlgraph.passes.cost.fused_pipelines import FusedPipeline
from rlgraph.passes.cost.memory import KEPT, NEVER_OFFLOADED, BytesByUse, Footprint
from rlgraph.passes.cost.predict import Predictor, memory_footprint, memory_model
from rlgraph.passes.cost.task import Task

TIGHT = 0.95
"""A device is reported as tight if more than this share of its usable memory is used: docs/why/memory.md has counts
that are 5% off."""

Parts = tuple[tuple[str, str, float], ...]
"""Bytes as triples: a model, what of it, and its bytes."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak memory of the fullest device of a pool."""

    moment: str
    """The task during which it is fullest; empty for a pool that only holds models."""
    parts: Parts
    """What the device holds then, the largest first."""
    capacity: float
    """Bytes of the device that a plan may use."""
    device: str
    """The name of the device."""
    moments: tuple[tuple[str, float], ...]
    """The bytes on that device during each task of the pool, in the order of the tasks."""
    host: float = 0.0
    """Bytes of the host's memory for copies of the models that the device has off-loaded."""
    asleep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The off-loaded models (`actor`, or `actor.train` where a model is held twice), each with the tasks during which
    it is off-loaded."""
    optimizers: tuple[str, ...] = ()
    """The models whose optimizer keeps its state in the host's memory."""

    @property
    def used_bytes(self) -> float:
        """Return the bytes on the device at that moment."""
        return sum(size for _, _, size in self.parts)

    @property
    def fits(self) -> bool:
        """Return whether the bytes fit into the capacity."""
        return self.used_bytes <= self.capacity

    @property
    def is_tight(self) -> bool:
        """Return whether less is left than the count may be off."""
        return self.used_bytes > TIGHT * self.capacity


def usable_device_bytes(island: NodeGroup, constants: Constants) -> float:
    """Return the bytes of a device that a plan may use."""
    memory = island.device.memory
    return min(memory * (1 - constants.fragmentation) - constants.reserved, memory * (1 - constants.spare))


def pool_peaks(
    plan: Plan,
    tasks: Sequence[Task],
    configs: Mapping[str, ModelConfig],
    cluster: Cluster,
    constants: Constants,
    threads: int = 1,
    accumulated: Collection[str] = (),
) -> dict[str, Peak]:
    """Return the peak of each pool with devices. Models without a config count as nothing. threads: as for
    `Predictor`. accumulated: models whose gradients are added up while others work."""
    predictor = Predictor(plan, configs, cluster, constants, threads)
    by_pool = {}
    for pool in plan.pools:
        groups = [group for group in plan.groups if group.pool == pool.name and group.models]
        if groups:
            by_pool[pool.name] = _Filling(predictor, tasks, pool, groups, accumulated).fullest_device_peak()
    return by_pool


@dataclass(frozen=True, slots=True)
class OffloadedBytes:
    """The off-loaded models in the host memory of a node."""

    parts: tuple[tuple[str, float], ...]
    """Each model (`actor`, or `actor.train` where a model is held twice) with its bytes; the largest first."""
    capacity: float
    """Bytes that off-loaded models may use there."""

    @property
    def used_bytes(self) -> float:
        """Return the bytes of all models."""
        return sum(size for _, size in self.parts)

    @property
    def fits(self) -> bool:
        """Return whether the bytes fit into the capacity."""
        return self.used_bytes <= self.capacity


def usable_host_bytes(island: NodeGroup, constants: Constants) -> float:
    """Return the bytes of a node's host memory that off-loaded models may use."""
    return island.host_memory * constants.asleep


def offloaded_bytes_by_host(
    plan: Plan,
    tasks: Sequence[Task],
    configs: Mapping[str, ModelConfig],
    cluster: Cluster,
    constants: Constants,
    accumulated: Collection[str] = (),
) -> dict[int, OffloadedBytes]:
    """Return the off-loaded models of each node that has any, by the number of the node. Arguments are as for
    `pool_peaks`. Copies of weights and of optimizer state stay in the host's memory when their model is loaded again,
    so that all models that are off-loaded at some time are there at once."""
    predictor = Predictor(plan, configs, cluster, constants)
    by_node: dict[int, dict[str, float]] = {}
    unpinned: dict[int, float] = {}
    for pool in plan.pools:
        groups = [group for group in plan.groups if group.pool == pool.name and group.models]
        on_hosts = [
            (model, holder)
            for holder in groups
            for model in holder.models
            if plan.holding(model, holder.name).offload or plan.holding(model, holder.name).optimizer == "host"
        ]
        filling = _Filling(predictor, tasks, pool, groups, accumulated) if on_hosts else None
        for model, group in on_hosts:
            assert filling is not None
            optimizer = filling.optimizer_host_bytes(model, group)
            size = optimizer + filling.host_copy_bytes(model, group) * plan.holding(model, group.name).offload
            for device in group.devices if size else ():
                node = cluster.node_of_device(pool.first + device)
                sizes, name = by_node.setdefault(node, {}), plan.describe_model_work(model, group.name)
                sizes[name] = sizes.get(name, 0.0) + size
                unpinned[node] = unpinned.get(node, 0.0) + optimizer
    return {
        node: OffloadedBytes(
            tuple(sorted(sizes.items(), key=lambda part: -part[1])),
            usable_host_bytes(cluster.node_group_of_node(node), constants)
            + unpinned[node] * (1 - constants.unpinned_part),
        )
        for node, sizes in sorted(by_node.items())
    }


def in_flight_bytes(predictor: Predictor, works: Sequence[tuple[str, Sequence[Batch]]], by: FusedPipeline) -> Parts:
    """Return the bytes that in-flight micro-batches need in a pipeline, for all models that share it, on the stage and
    at the moment where they are most. works: models, each with its rows. by: the lists that they follow."""
    moments = []
    for moment in by.in_flight:
        parts: list[tuple[str, str, float]] = []
        for (model, batches), counts in zip(works, moment, strict=True):
            if any(counts):
                deployed = predictor.deployment(model, predictor.plan.group_of_role(model, "train"))
                deployment = replace(deployed, in_flight=counts)
                needed = memory_footprint("train", predictor.configs[model], deployment, batches).active
                parts += [(model, what, size) for what, size in needed.parts]
        moments.append(tuple(parts))
    return max(moments, key=_sum)


class _Filling:
    """The memory of the devices of one pool over a step."""

    def __init__(
        self,
        predictor: Predictor,
        tasks: Sequence[Task],
        pool: Pool,
        groups: Sequence[Group],
        accumulated: Collection[str],
    ) -> None:
        self.predictor, self.plan, self.pool, self.groups = predictor, predictor.plan, pool, groups
        self.accumulated = accumulated
        self.work = [(task, group) for task in tasks if (group := self.group_of_task(task)) is not None]
        """The pool's tasks, each with the group that does it."""
        self.held = {
            (model, group.name): self.resident_bytes(model, group)
            for group in groups
            for model in group.models
            if model in predictor.configs
        }

    def group_of_task(self, task: Task) -> Group | None:
        """Return the group of this pool that does a task, or None."""
        if task.model is None or task.model not in self.predictor.configs:
            return None
        group = self.plan.group_of_role(task.model, task.op)
        return group if group.pool == self.pool.name else None

    def footprint(self, operation: str, model: str, group: Group, batches: Sequence[Batch]) -> Footprint:
        """Return the footprint of an operation, where training may accumulate gradients."""
        if model in self.accumulated and NODES[operation].trains:
            operation = "accumulate"
        return memory_footprint(
            operation, self.predictor.configs[model], self.predictor.deployment(model, group), batches
        )

    def resident_bytes(self, model: str, group: Group) -> BytesByUse:
        """Return what a group keeps of a model from step to step: the resident bytes of the work that keeps most."""
        works: list[tuple[str, Sequence[Batch]]] = [
            (role.operation, ()) for role in self.plan.roles if (role.model, role.group) == (model, group.name)
        ]
        works += [
            (task.op, task.batches) for task, owner in self.work if (task.model, owner.name) == (model, group.name)
        ]
        resident = [self.footprint(operation, model, group, batches).resident for operation, batches in works]
        most = max(resident, key=lambda sizes: sizes.total, default=BytesByUse())
        return most + self.shared_base_credit(model, group) if resident else most

    def shared_base_credit(self, model: str, group: Group) -> BytesByUse:
        """Return minus the bytes of a base model that an earlier model of the group already holds, or nothing."""
        configs = self.predictor.configs
        config, stays = configs[model], not any(self.plan.holding(name, group.name).offload for name in group.models)
        earlier = group.models[: group.models.index(model)]
        if config.base and stays and spec_of(group.engine).shares_base(group.mesh):
            for lender in earlier:
                if lender in configs and configs[lender].base == config.base:
                    return BytesByUse(
                        (("weights", -float(parameter_count(config.shape, config.kind) * config.item_bytes)),)
                    )
        return BytesByUse()

    def fullest_device_peak(self) -> Peak:
        """Return the peak of the device with the least memory left."""
        # Devices with the same groups hold the same: one of each kind is examined in each node group.
        kinds: dict[tuple[int, tuple[bool, ...]], int] = {}
        device_sets = [set(group.devices) for group in self.groups]
        for device in sorted(set().union(*device_sets)):
            kinds.setdefault(
                (self.node_group_number(device), tuple(device in devices for devices in device_sets)), device
            )
        return max(
            (self.device_peak(device) for device in kinds.values()), key=lambda peak: peak.used_bytes - peak.capacity
        )

    def node_group_number(self, device: int) -> int:
        """Return the number of the node group of one of the devices of the pool."""
        return self.predictor.cluster.node_group_number(self.pool.first + device)

    def device_peak(self, device: int) -> Peak:
        """Return the peak of one device."""
        island = self.predictor.cluster.islands[self.node_group_number(device)]
        here = [
            (task.name, self.device_bytes_during(device, task, group))
            for task, group in self.work
            if device in group.devices
        ]
        resting: list[tuple[str, Parts]] = [("", tuple(self.resident_memory_parts(device, None)))]
        moment, parts = max(here or resting, key=lambda named: _sum(named[1]))
        largest = tuple(sorted(parts, key=lambda part: -part[2]))
        moments = tuple((name, _sum(held)) for name, held in here)
        capacity = usable_device_bytes(island, self.predictor.constants)
        return Peak(moment, largest, capacity, island.device.name, moments, *self.offloaded_bytes_and_models(device))

    def offloaded_bytes_and_models(
        self, device: int
    ) -> tuple[float, tuple[tuple[str, tuple[str, ...]], ...], tuple[str, ...]]:
        """Return the bytes that the host keeps of the models that a device has off-loaded, which are all that cannot
        be computed or sent again, and of optimizers; these models, each with the tasks during which it is off-loaded;
        and the models of these optimizers."""
        copied, asleep, optimizers = 0.0, [], list[str]()
        here = [(model, group) for group in self.groups if device in group.devices for model in group.models]
        for model, group in here:
            if state := self.optimizer_host_bytes(model, group):
                copied += state
                optimizers.append(self.plan.describe_model_work(model, group.name))
            if not self.plan.holding(model, group.name).offload:
                continue
            copied += self.host_copy_bytes(model, group)
            others = [task.name for task, owner in self.work if (task.model, owner) != (model, group)]
            asleep.append((self.plan.describe_model_work(model, group.name), tuple(others)))
        return copied, tuple(asleep), tuple(optimizers)

    def optimizer_host_bytes(self, model: str, group: Group) -> float:
        """Return the bytes of the optimizer's state that the host has of a model all the time, for one rank."""
        deployment = self.predictor.deployment(model, group)
        if not deployment.optimizer_on_host:
            return 0.0
        trained = memory_model("train", self.predictor.configs[model], deployment, ())
        return trained.optimizer_host_bytes(deployment.dp)

    def host_copy_bytes(self, model: str, group: Group) -> float:
        """Return the bytes that the host keeps of an off-loaded model for one rank."""
        if self.plan.gets_synced(model, group.name):
            return 0.0
        names = AccumulatingTrainingMemory.keeps if model in self.accumulated else KEPT
        return self.held.get((model, group.name), BytesByUse()).total_of(names)

    def device_bytes_during(self, device: int, task: Task, group: Group) -> Parts:
        """Return what a device holds during a task of one of its groups."""
        assert task.model
        more = self.active_memory_parts(task, task.model, group)
        totals: dict[tuple[str, str], float] = {}
        for model, what, size in (*self.resident_memory_parts(device, (task.model, group.name)), *more):
            totals[model, what] = totals.get((model, what), 0.0) + size
        return tuple((model, what, size) for (model, what), size in totals.items() if size)

    def active_memory_parts(self, task: Task, model: str, group: Group) -> Iterator[tuple[str, str, float]]:
        """Yield what work needs beside what stays: fused trainings need it together, on the stage and at the moment
        where they need most."""
        shared = self.plan.fused_with(model) if NODES[task.op].trains else None
        if shared is None:
            for what, size in self.footprint(task.op, model, group, task.batches).active.parts:
                yield model, what, size
            return
        fed = {
            name: [
                training.batches for training, _ in self.work if training.model == name and NODES[training.op].trains
            ]
            for name in shared.models
        }
        fullest = {name: max(batches, key=total_rows) for name, batches in fed.items() if batches}
        works = [*fullest.items()]
        yield from in_flight_bytes(self.predictor, works, self.predictor.fused_pipeline(works))

    def resident_memory_parts(self, device: int, busy: tuple[str, str] | None) -> Iterator[tuple[str, str, float]]:
        """Yield what a device holds while one model works."""
        for group in self.groups:
            if device in group.devices and (process := self.process_bytes(group)):
                yield group.models[0], "runtime", process
            for model in group.models if device in group.devices else ():
                away = self.plan.holding(model, group.name).offload and (model, group.name) != busy
                for what, size in self.held.get((model, group.name), BytesByUse()).parts:
                    if not away or what in NEVER_OFFLOADED:
                        yield model, what, size

    def process_bytes(self, group: Group) -> float:
        """Return the bytes that one process of a group uses beside tensors."""
        return self.predictor.deployment(group.models[0], group).process_bytes(self.predictor.constants)


def _sum(parts: Parts) -> float:
    return sum(size for _, _, size in parts)
