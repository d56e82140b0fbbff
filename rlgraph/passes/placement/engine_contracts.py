"""What the processes of a plan are opened with, computed from the plan alone: it is printed with the plan, and what
engines ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rlgraph.backends.enginespec.memory import ReservedCache
from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.backends.enginespec.spec import EngineSpec
from rlgraph.catalog.clusters.cluster import Cluster, DeviceKind
from rlgraph.catalog.clusters.units import format_quantity
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from rlgraph.errors import count_phrase
from rlgraph.ir.dtypes import ITEM_BYTES
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.passes.cost.cache_reservation import CacheReservation, CacheSizingInput, cache_reservation
from rlgraph.passes.placement.model_load_order import model_load_rounds, reserves_cache


@dataclass(frozen=True, slots=True)
class EngineContract:
    """What each process of a group is opened with for one of its models."""

    group: str
    model: str
    opens: int
    """The round in which it loads its models, counted from 1: it waits for those before."""
    visible_devices: int
    """The devices that each process sees."""
    cache: CacheReservation | None
    """What an engine that reserves a cache is asked for; None: it reserves none, or the model's numbers are unknown."""
    asleep_during: tuple[str, ...]
    """The work on its pool during which it is in the host's memory: `actor.train`."""
    environment: Mapping[str, str]
    """The variables that its processes begin with, where the user has not set them."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plan files have it, without what is empty."""
        cache = {}
        if self.cache is not None:
            cache = {"max_len": self.cache.row_tokens, "kv_bytes": self.cache.cache_bytes, "share": self.cache.share}
        data = {
            "group": self.group,
            "model": self.model,
            "opens": self.opens,
            "visible_devices": self.visible_devices,
            **cache,
            "asleep_during": list(self.asleep_during),
            "environment": dict(self.environment),
        }
        return {name: value for name, value in data.items() if value not in (None, [], {})}


def engine_contracts(
    program: Program,
    plan: Plan,
    shapes: Mapping[str, Shape | UnsupportedModel],
    cluster: Cluster | None,
    kind: DeviceKind,
) -> tuple[EngineContract, ...]:
    """Return the contract of each model of each group, in the order in which they are opened. kind: of the devices
    where no cluster is named."""
    opens = {name: number for number, names in enumerate(model_load_rounds(plan), start=1) for name in names}
    groups = sorted((group for group in plan.groups if group.models), key=lambda group: opens[group.name])
    return tuple(
        EngineContract(
            group.name,
            model,
            opens[group.name],
            int(device == "gpu"),
            _cache(program, plan, group, model, shapes.get(model), device, memory),
            tuple(_others(plan, group, model)) if plan.holding(model, group.name).offload else (),
            engines_by_name()[group.engine].gpu_environment
            if device == "gpu" and group.engine in engines_by_name()
            else {},
        )
        for group in groups
        for device, memory in [device_of_group(plan, group, cluster, kind)]
        for model in group.models
    )


def contract_lines(contracts: Sequence[EngineContract]) -> Iterator[tuple[str, str, str]]:
    """Yield for each contract the round in which it opens, the group with the model, and what it is opened with."""
    for contract in contracts:
        terms = []
        if contract.visible_devices:
            terms.append(f"each process sees {count_phrase(contract.visible_devices, 'device')}")
        if (cache := contract.cache) is not None:
            terms.append(f"rows of {cache.row_tokens:,} tokens at most")
            if cache.cache_bytes is not None:
                terms.append(f"a cache of {format_quantity(cache.cache_bytes, 'bytes')}")
            if contract.visible_devices:
                terms.append(f"{cache.share:.0%} of a device free at the start")
        if contract.asleep_during:
            terms.append(f"asleep during {', '.join(contract.asleep_during)}")
        terms += [f"{name}={value}" for name, value in contract.environment.items()]
        yield str(contract.opens), f"{contract.group} {contract.model}", "; ".join(terms)


def device_of_group(
    plan: Plan, group: Group, cluster: Cluster | None, kind: DeviceKind
) -> tuple[DeviceKind, float | None]:
    """Return the kind of a group's devices, and the bytes of the smallest one, where a cluster says so."""
    if cluster is None:
        return kind, None
    first = next(pool.first for pool in plan.pools if pool.name == group.pool)
    numbers = {cluster.node_group_number(first + device) for device in group.devices}
    device = min((cluster.islands[number].device for number in numbers), key=lambda device: device.memory)
    return device.kind, device.memory


def cache_question(
    program: Program,
    plan: Plan,
    group: Group,
    model: str,
    shape: Shape | UnsupportedModel | None,
    device: DeviceKind,
    memory: float | None,
) -> tuple[CacheSizingInput, ReservedCache] | None:
    """Return what the cache of a model is sized by, and how its engine reserves one. None: it reserves none, or the
    model's numbers are unknown. memory: bytes of the device, where they are known."""
    spec = engines_by_name().get(group.engine)
    if spec is None or not isinstance(spec.memory.cache, ReservedCache) or not reserves_cache(plan, group):
        return None
    if not isinstance(shape, Shape):
        return None
    kind, ranks = cast(ModelKind, program.model(model).kind), spec.column_rank_count(group.mesh)
    question = CacheSizingInput(shape, kind, ranks, _itemsize(program, model, spec, device), device == "cpu", memory)
    return question, spec.memory.cache


def _cache(
    program: Program,
    plan: Plan,
    group: Group,
    model: str,
    shape: Shape | UnsupportedModel | None,
    device: DeviceKind,
    memory: float | None,
) -> CacheReservation | None:
    asked, holding = cache_question(program, plan, group, model, shape, device, memory), plan.holding(model, group.name)
    if asked is None:
        return None
    question, cache = asked
    share = holding.share or cache.share
    return cache_reservation(question, cache, holding.max_len or None, holding.kv_bytes or None, share)


def _itemsize(program: Program, model: str, spec: EngineSpec, device: DeviceKind) -> int:
    stored = (
        spec.memory.cpu_dtype
        if device == "cpu" and spec.memory.cpu_dtype
        else program.dtype_of_model(program.model(model))
    )
    return ITEM_BYTES[stored]


def _others(plan: Plan, group: Group, model: str) -> Iterator[str]:
    """Yield the other work on a group's pool."""
    for role in plan.roles:
        if (role.model, role.group) != (model, group.name) and plan.group(role.group).pool == group.pool:
            yield f"{role.model}.{role.operation}"
