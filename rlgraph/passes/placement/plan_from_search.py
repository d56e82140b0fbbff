"""Writes what a search has found as a plan."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, count

from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.clusters.cluster import Cluster, NodeGroup
from rlgraph.ir.plan import Group, ModelHolding, Plan
from rlgraph.ir.schedule import PlacedWork, PlacementLine, PoolLine
from rlgraph.passes.placement.fused_pipelines import align_fused_stages, fused_trainings_of_plan
from rlgraph.passes.placement.place import Machine, place
from rlgraph.passes.placement.query import PlacementQuery
from rlgraph.passes.placement.search.colocation import PartitionBlock
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.partitions import pool_locations
from rlgraph.passes.placement.search.problem import PlacementProblem


def plan_from_search(question: PlacementQuery, problem: PlacementProblem, found: SearchResult) -> Plan:
    """Return the result of a search as a plan."""
    names = list(_pool_names(question, problem, found))
    lines = tuple(
        _placement(component, name, option)
        for name, block in zip(names, found.blocks, strict=True)
        for number in block.components
        for component, option in problem.split_component(number, found.options[number])
    )
    # Where functions run is what the schedule says.
    cpus = tuple(pool for pool in question.schedule.pools if pool.cpus)
    lines += tuple(line for line in question.schedule.placements if line.pool in {pool.name for pool in cpus})
    pools = (*(PoolLine(name, devices) for name, devices in zip(names, found.devices, strict=True)), *cpus)
    completed = replace(question.schedule, pools=pools, placements=lines)
    cpus_alone = all(island.device.kind == "cpu" for island in question.cluster.islands)
    machine = Machine(kind="cpu" if cpus_alone else "gpu")
    plan = place(question.program, completed, machine, question.shapes, question.engines)
    first = _firsts(question.cluster, found)
    located = tuple(
        replace(pool, first=first[names.index(pool.name)]) if pool.name in names else pool for pool in plan.pools
    )
    islands = {
        name: (problem.pool_node_group(block), _turned(question.cluster, block, devices))
        for name, block, devices in zip(names, found.blocks, found.devices, strict=True)
    }
    groups = tuple(_on_nodes(group, *islands[group.pool]) if group.models else group for group in plan.groups)
    holdings: dict[tuple[str, str], ModelHolding] = {}
    for component, option in problem.components_with_options(found.options):
        group = plan.group_of_role(component.model_name, component.operations[0]).name
        holding = replace(
            plan.holding(component.model_name, group),
            micro_tokens=option.deployment.micro_tokens,
            recompute=option.deployment.recompute,
            attention=option.deployment.attention,
            adapters=option.deployment.adapters,
            gather=option.deployment.gather,
            optimizer=option.deployment.optimizer,
            offload=option.offload,
            kv_bytes=option.deployment.kv_bytes,
            max_len=(component.pin.max_len if component.pin and option.deployment.kv_bytes else None) or 0,
        )
        # Of two that turn out to be the same processes the first one counts: that which trains.
        holdings.setdefault((component.model_name, group), holding)
    plan = replace(plan, holdings=tuple(holdings.values()))
    fused = fused_trainings_of_plan(
        plan, [[problem.components[number].model_name for number in piece] for piece in found.pieces]
    )
    return align_fused_stages(replace(plan, pools=located, groups=groups, cluster=question.cluster.text, fused=fused))


def _on_nodes(group: Group, island: NodeGroup, turned: int) -> Group:
    """Return the group with its ranks moved so that no tensor-parallel ranks are on two nodes where one has room for
    them, and no replica is on two node groups. turned: the devices of the last of several node groups, if those come
    first."""
    tp, size = spec_of(group.engine).column_rank_count(group.mesh), group.mesh.replica_size

    def devices_of_ranks(order: Sequence[int]) -> list[int]:
        return [island.rank_device(tp, size, number) for number in order]

    devices = devices_of_ranks(group.devices)
    if island.inner:
        first_islands = island.inner.device_count
        copies = [devices[at : at + size] for at in range(0, len(devices), size)]
        if any(_astride(island, copy) for copy in copies):
            # Who has to move the least would lie on two of them.
            devices = devices_of_ranks(range(len(devices)))
        devices = [
            device + turned if device < first_islands else device - first_islands * (turned > 0) for device in devices
        ]
    return replace(group, devices=tuple(devices))


def _astride(island: NodeGroup, devices: Sequence[int]) -> bool:
    """Return whether devices lie on more than one of a node group's parts."""
    ends = [*accumulate(part.device_count for part in island.parts)]
    return len({bisect(ends, device) for device in devices}) > 1


def _turned(cluster: Cluster, block: PartitionBlock, devices: int) -> int:
    """Return the devices of the last node group of a pool over several, if that one comes first in the cluster; else
    0."""
    before = block.other_islands and block.island < block.other_islands[0]
    return devices - sum(cluster.islands[number].device_count for number in block.other_islands) if before else 0


def _placement(component: Component, pool: str, option: Option) -> PlacementLine:
    """Return the line of a schedule that places a component as an option says."""
    deployment = option.deployment
    work = tuple(PlacedWork(component.model_name, operation) for operation in component.operations)
    return PlacementLine(work, pool, deployment.engine, deployment.mesh.axes)


def _pool_names(question: PlacementQuery, problem: PlacementProblem, found: SearchResult) -> Iterator[str]:
    """Yield a name for each pool that no other has."""
    taken = {"host", *(pool.name for pool in question.schedule.pools)}
    for block in found.blocks:
        placed = [problem.components[number] for number in block.components]
        name = block.name or next(name for name in _names(placed) if name not in taken)
        taken.add(name)
        yield name


def _names(placed: Sequence[Component]) -> Iterator[str]:
    """Yield names of a pool after what is there: `actor_generate` of one component, `actor_critic_ref` after models, of
    many after the first one. Two pools may have the same models, one to train and one to sample: then after components,
    and numbered."""
    names = list(dict.fromkeys(component.name.replace(".", "_") for component in placed))
    models = list(dict.fromkeys(component.model_name for component in placed))
    for shown in (names if len(names) == 1 else models), names:
        yield "_".join(shown) if len(shown) < 4 else f"{shown[0]}_and_{len(shown) - 1}_more"
    yield from (f"{models[0]}_{number}" for number in count(2))


def _firsts(cluster: Cluster, result: SearchResult) -> list[int]:
    """Return the first device of each pool."""
    offsets = [*accumulate((island.device_count for island in cluster.islands), initial=0)]
    pieces = pool_locations(cluster.islands, result.blocks, result.devices)
    return [offsets[number] + first for (number, first, _), *_ in pieces]
