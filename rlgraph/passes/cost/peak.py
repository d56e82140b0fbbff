"""The fullest moment of each pool over a step, and what fills its devices then.

Groups of a pool take turns: all of them hold their models, and one of them works. A model that is off-loaded is there
only while it works. A process is
there all the time, with what it has beside tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.clusters.cluster import Cluster, Island
from rlgraph.catalog.models.families import count
from rlgraph.ir.plan import Group, Plan, Pool
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.cost.fusing import Fusion
from rlgraph.passes.cost.memory import KEPT, Accumulating, Bytes, Footprint
from rlgraph.passes.cost.predict import Predictor, footprint
from rlgraph.passes.cost.tasks import Task
from rlgraph.passes.cost.time import Batch

TIGHT = 0.95
"""Share of the memory that can be used beyond which a device is said to be tight: docs/why/memory.md has counts that
are 5% off."""

Parts = tuple[tuple[str, str, float], ...]
"""A model, what of it, and its bytes."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Of the fullest device of a pool."""

    moment: str
    """The task during which it is fullest; empty for a pool that only holds models."""
    parts: Parts
    """What is there then, the largest first."""
    capacity: float
    """Bytes of the device that a plan may use."""
    device: str
    """What it is called."""
    moments: tuple[tuple[str, float], ...]
    """The bytes on that device during each task of the pool, in the order of the tasks."""
    host: float = 0.0
    """Bytes of the host's memory, beside those, for copies of the models that the device has off-loaded."""
    asleep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Who these are (`actor`, or of a model that is there twice `actor.train`), and the tasks during which each of them
    sleeps."""

    @property
    def bytes(self) -> float:
        return sum(size for _, _, size in self.parts)

    @property
    def fits(self) -> bool:
        return self.bytes <= self.capacity

    @property
    def tight(self) -> bool:
        """What is left is less than the count may be off."""
        return self.bytes > TIGHT * self.capacity


def usable(island: Island, constants: Constants) -> float:
    """Bytes of a device that a plan may use."""
    return island.device.memory * (1 - constants.fragmentation) - constants.reserved


def peaks(
    plan: Plan,
    tasks: Sequence[Task],
    configs: Mapping[str, ModelConfig],
    cluster: Cluster,
    constants: Constants,
    threads: int = 1,
    accumulated: Collection[str] = (),
) -> dict[str, Peak]:
    """For each pool with devices. Models without a config count as nothing. threads: as `Predictor` has them.
    accumulated: models whose gradients are added up while others work."""
    predictor = Predictor(plan, configs, cluster, constants, threads)
    found = {}
    for pool in plan.pools:
        groups = [group for group in plan.groups if group.pool == pool.name and group.models]
        if groups:
            found[pool.name] = _Filling(predictor, tasks, pool, groups, accumulated).peak()
    return found


@dataclass(frozen=True, slots=True)
class Lodging:
    """What the memory of a node's host has of models that sleep."""

    parts: tuple[tuple[str, float], ...]
    """Who (`actor`, or of a model that is there twice `actor.train`), and bytes; the largest first."""
    capacity: float
    """Bytes that they may have there."""

    @property
    def bytes(self) -> float:
        return sum(size for _, size in self.parts)

    @property
    def fits(self) -> bool:
        return self.bytes <= self.capacity


def lodges(island: Island, constants: Constants) -> float:
    """Bytes of the memory of a node's host that models which sleep may have."""
    return island.host_memory * constants.asleep


def lodgings(
    plan: Plan,
    tasks: Sequence[Task],
    configs: Mapping[str, ModelConfig],
    cluster: Cluster,
    constants: Constants,
    accumulated: Collection[str] = (),
) -> dict[int, Lodging]:
    """For each node on which something sleeps, by its number. Arguments as `peaks` has them. Copies of weights and of
    an optimizer's state stay there when their model wakes up, so that all that sleeps at some time is there at once."""
    predictor = Predictor(plan, configs, cluster, constants)
    found: dict[int, dict[str, float]] = {}
    for pool in plan.pools:
        groups = [group for group in plan.groups if group.pool == pool.name and group.models]
        sleepy = [(model, each) for each in groups for model in each.models if plan.holding(model, each.name).offload]
        filling = _Filling(predictor, tasks, pool, groups, accumulated) if sleepy else None
        for model, group in sleepy:
            assert filling is not None
            size = filling.copied(model, group)
            for device in group.devices if size else ():
                own, name = found.setdefault(cluster.node(pool.first + device), {}), plan.part(model, group.name)
                own[name] = own.get(name, 0.0) + size
    return {
        node: Lodging(tuple(sorted(own.items(), key=lambda part: -part[1])), lodges(cluster.home(node), constants))
        for node, own in sorted(found.items())
    }


def in_flight(predictor: Predictor, works: Sequence[tuple[str, Sequence[Batch]]], by: Fusion) -> Parts:
    """What micro-batches need in a pipeline, of all models that share it, on the stage and at the moment where that is
    most. works: models, each with its rows. by: their lists."""
    moments = []
    for moment in by.in_flight:
        parts: list[tuple[str, str, float]] = []
        for (model, batches), counts in zip(works, moment, strict=True):
            if any(counts):
                known = predictor.deployment(model, predictor.plan.role(model, "train"))
                deployment = replace(known, in_flight=counts)
                needed = footprint("train", predictor.configs[model], deployment, batches).active
                parts += [(model, what, size) for what, size in needed.parts]
        moments.append(tuple(parts))
    return max(moments, key=_sum)


class _Filling:
    """Of one pool."""

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
        self.work = [(task, group) for task in tasks if (group := self.group(task)) is not None]
        """The pool's tasks and who does them."""
        self.held = {
            (model, group.name): self.holds(model, group)
            for group in groups
            for model in group.models
            if model in predictor.configs
        }

    def group(self, task: Task) -> Group | None:
        if task.model is None or task.model not in self.predictor.configs:
            return None
        group = self.plan.role(task.model, task.op)
        return group if group.pool == self.pool.name else None

    def footprint(self, operation: str, model: str, group: Group, batches: Sequence[Batch]) -> Footprint:
        if model in self.accumulated and NODES[operation].trains:
            operation = "accumulate"
        return footprint(operation, self.predictor.configs[model], self.predictor.deployment(model, group), batches)

    def holds(self, model: str, group: Group) -> Bytes:
        """What a group keeps of a model from step to step: what the work needs that keeps most."""
        done: list[tuple[str, Sequence[Batch]]] = [
            (role.operation, ()) for role in self.plan.roles if (role.model, role.group) == (model, group.name)
        ]
        done += [(task.op, task.batches) for task, own in self.work if (task.model, own.name) == (model, group.name)]
        kept = [self.footprint(operation, model, group, batches).resident for operation, batches in done]
        found = max(kept, key=lambda each: each.total, default=Bytes())
        return found + self.lent(model, group) if kept else found

    def lent(self, model: str, group: Group) -> Bytes:
        """Less than nothing: the base of a model, where an earlier one of the group has it."""
        configs = self.predictor.configs
        config, stays = configs[model], not any(self.plan.holding(each, group.name).offload for each in group.models)
        others = group.models[: group.models.index(model)]
        if config.base and stays and spec_of(group.engine).lends(group.mesh):
            for other in others:
                if other in configs and configs[other].base == config.base:
                    return Bytes((("weights", -float(count(config.shape, config.kind) * config.item)),))
        return Bytes()

    def peak(self) -> Peak:
        # Devices that the same groups are on hold the same: one of each kind is looked at, on each island.
        kinds: dict[tuple[int, tuple[bool, ...]], int] = {}
        held = [set(group.devices) for group in self.groups]
        for device in sorted(set().union(*held)):
            kinds.setdefault((self.island(device), tuple(device in each for each in held)), device)
        return max((self.on(device) for device in kinds.values()), key=lambda each: each.bytes - each.capacity)

    def island(self, device: int) -> int:
        """The number of that which a device of the pool is in."""
        return self.predictor.cluster.island(self.pool.first + device)

    def on(self, device: int) -> Peak:
        island = self.predictor.cluster.islands[self.island(device)]
        here = [(task.name, self.parts(device, task, group)) for task, group in self.work if device in group.devices]
        resting: list[tuple[str, Parts]] = [("", tuple(self.staying(device, None)))]
        moment, parts = max(here or resting, key=lambda each: _sum(each[1]))
        largest = tuple(sorted(parts, key=lambda part: -part[2]))
        moments = tuple((name, _sum(each)) for name, each in here)
        capacity = usable(island, self.predictor.constants)
        return Peak(moment, largest, capacity, island.device.name, moments, *self.away(device))

    def away(self, device: int) -> tuple[float, tuple[tuple[str, tuple[str, ...]], ...]]:
        """What the host keeps of models that a device has off-loaded, all that cannot be made again or brought; and who
        these are, with the tasks during which they sleep."""
        copied, asleep = 0.0, []
        here = [(model, group) for group in self.groups if device in group.devices for model in group.models]
        for model, group in here:
            if not self.plan.holding(model, group.name).offload:
                continue
            copied += self.copied(model, group)
            others = [task.name for task, own in self.work if (task.model, own) != (model, group)]
            asleep.append((self.plan.part(model, group.name), tuple(others)))
        return copied, tuple(asleep)

    def copied(self, model: str, group: Group) -> float:
        """What the host keeps of an off-loaded model for one rank."""
        if self.plan.brought(model, group.name):
            return 0.0
        kept = Accumulating.keeps if model in self.accumulated else KEPT
        return self.held.get((model, group.name), Bytes()).of(kept)

    def parts(self, device: int, task: Task, group: Group) -> Parts:
        """What a device holds during a task of one of its groups."""
        assert task.model
        more = self.active(task, task.model, group)
        found: dict[tuple[str, str], float] = {}
        for model, what, size in (*self.staying(device, (task.model, group.name)), *more):
            found[model, what] = found.get((model, what), 0.0) + size
        return tuple((model, what, size) for (model, what), size in found.items() if size)

    def active(self, task: Task, model: str, group: Group) -> Iterator[tuple[str, str, float]]:
        """What work needs beside what stays: of fused trainings all need it together, on the stage and at the moment
        where that is most."""
        shared = self.plan.fused_with(model) if NODES[task.op].trains else None
        if shared is None:
            for what, size in self.footprint(task.op, model, group, task.batches).active.parts:
                yield model, what, size
            return
        fed = {
            each: [other.batches for other, _ in self.work if other.model == each and NODES[other.op].trains]
            for each in shared.models
        }
        fullest = {each: max(found, key=_rows) for each, found in fed.items() if found}
        works = [*fullest.items()]
        yield from in_flight(self.predictor, works, self.predictor.fused(works))

    def staying(self, device: int, busy: tuple[str, str] | None) -> Iterator[tuple[str, str, float]]:
        """What is held on a device while one model works."""
        for group in self.groups:
            if device in group.devices and (process := self.process(group)):
                yield group.models[0], "runtime", process
            for model in group.models if device in group.devices else ():
                away = self.plan.holding(model, group.name).offload and (model, group.name) != busy
                for what, size in () if away else self.held.get((model, group.name), Bytes()).parts:
                    yield model, what, size

    def process(self, group: Group) -> float:
        """What one process of a group has beside tensors."""
        return self.predictor.deployment(group.models[0], group).process(self.predictor.constants)


def _rows(batches: Sequence[Batch]) -> float:
    return sum(batch.rows for batch in batches)


def _sum(parts: Parts) -> float:
    return sum(size for _, _, size in parts)
