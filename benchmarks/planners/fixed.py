"""The placements that other systems always take, with our times of single pieces of work.

DeepSpeed-Chat: all models on all devices, ZeRO's third stage, tensor parallelism within a machine while it generates.
OpenRLHF: a pool for each model, ZeRO's third stage, and a pool for generation.
NeMo-Aligner: actor and reference on one half, critic and the rest on the other, generation split as training is.

What differs beside the placement is not counted: kernels, batching, and how generation is written are ours for all of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from benchmarks.planners.caches import settled
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost import decoding, work
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.latency import latency_model
from rlgraph.passes.cost.optimizer import optimizer_bytes_per_weight
from rlgraph.passes.cost.peak_memory import usable_device_bytes
from rlgraph.passes.cost.predict import memory_footprint
from rlgraph.passes.cost.weights import weight_sync_cost
from rlgraph.passes.placement.search.colocation import Blocks, PartitionBlock
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.strategies import MICROS

WIDTH = 2049
"""Tokens of the longest row, and one."""


@dataclass(frozen=True)
class Piece:
    """A component on some devices: what an `Option` says, for splits that we do not choose."""

    seconds: tuple[float, ...]
    resident: float
    active: float
    """More bytes while it works."""
    deployment: Deployment


def deepspeed(problem: PlacementProblem) -> float:
    """Seconds of a step as DeepSpeed-Chat places it; infinite where it does not fit."""
    blocks = (PartitionBlock(tuple(range(len(problem.components))), 0),)
    return _best(problem, blocks, (problem.cluster.device_count,), gathered=True)


def openrlhf(problem: PlacementProblem) -> float:
    """The same of OpenRLHF: what trains or generates gets twice the devices of what only reads."""
    shares = [1 if component.work == "read" else 2 for component in problem.components]
    devices = _shared(problem.cluster.device_count, shares)
    return _best(problem, tuple(PartitionBlock((number,), 0) for number in range(len(shares))), devices, gathered=True)


def nemo(problem: PlacementProblem) -> float:
    """The same of NeMo-Aligner; infinite where there is no critic."""
    near = tuple(
        number for number, component in enumerate(problem.components) if component.model_name in ("actor", "ref")
    )
    far = tuple(number for number in range(len(problem.components)) if number not in near)
    if not any(problem.components[number].work == "train" for number in far):
        return inf
    half = problem.cluster.device_count // 2
    tensors = (1, 2, 4, 8)
    return min(
        _best(problem, (PartitionBlock(near, 0), PartitionBlock(far, 0)), (half, half), gathered=False, tensor=tp)
        for tp in tensors
    )


def _shared(devices: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Devices in proportion to shares, in powers of two and their multiples that machines have."""
    whole = sum(shares)
    found = [max(1, devices * share // whole) for share in shares]
    return tuple(count if count < 8 else count // 8 * 8 for count in map(_power_below_a_machine, found))


def _power_below_a_machine(count: int) -> int:
    return count if count >= 8 else 1 << (count.bit_length() - 1)


def _best(
    problem: PlacementProblem, blocks: Blocks, devices: tuple[int, ...], gathered: bool, tensor: int = 0
) -> float:
    """The fastest choice of knobs, one component after the other in the memory that is left; all is trained with
    `tensor`."""
    chosen: dict[int, Piece] = {}
    for block, count in zip(blocks, devices, strict=True):
        order = sorted(
            block.components, key=lambda at: ("train", "read", "generate").index(problem.components[at].work)
        )
        found = _pool(problem, order, chosen, count, gathered, tensor)
        if found is None:
            return inf
        chosen |= found
    colocation = problem.make_colocation(blocks)
    syncs = [
        _sync(
            problem, chosen[a], chosen[b], colocation.pool_of_component[a] == colocation.pool_of_component[b], gathered
        )
        for a, b in problem.sync_pairs
    ]
    return problem.step_seconds({number: piece.seconds for number, piece in chosen.items()}, syncs, colocation)


def _pool(
    problem: PlacementProblem,
    order: Sequence[int],
    before: Mapping[int, Piece],
    devices: int,
    gathered: bool,
    tensor: int,
) -> dict[int, Piece] | None:
    """Of the components of one pool; None where they do not fit together."""
    room = usable_device_bytes(problem.cluster.islands[0], problem.constants)
    least = {
        number: min(
            (piece.resident for piece in _pieces(problem, number, devices, gathered, tensor, before)), default=inf
        )
        for number in order
    }
    found: dict[int, Piece] = {}
    for number in order:
        held = sum(found[other].resident if other in found else least[other] for other in order if other != number)
        active = max((piece.active for piece in found.values()), default=0.0)
        own = _pieces(problem, number, devices, gathered, tensor, {**before, **found})
        fit = [piece for piece in own if held + piece.resident + max(active, piece.active) <= room]
        if not fit:
            return None
        found[number] = min(fit, key=lambda piece: sum(piece.seconds))
    return found


def _pieces(
    problem: PlacementProblem, number: int, devices: int, gathered: bool, tensor: int, chosen: Mapping[int, Piece]
) -> Iterator[Piece]:
    """The options of a component's work. Without ZeRO, what generates is split as what is chosen for training, once
    that is."""
    component, island = problem.components[number], problem.cluster.islands[0]
    if gathered and component.work != "generate":
        yield from _zero(problem, component, devices)
        return
    trained = next(
        (chosen[a].deployment for a, b in problem.sync_pairs if b == number and a in chosen and not gathered), None
    )
    for option in settled(problem.options.all_options(component, island, devices)):
        if option.offload or option.deployment.tp > island.per_node:
            continue
        if tensor and component.work == "train" and option.deployment.tp != tensor:
            continue
        if trained is None:
            yield Piece(option.seconds, option.resident, option.peak - option.resident, option.deployment)
        elif option.deployment.tp == trained.tp:
            yield _staged(problem, component, option, trained)


def _staged(problem: PlacementProblem, component: Component, option: Option, trained: Deployment) -> Piece:
    """Generating with the stages of training: a token passes one after the other, and each has its share of the weights
    and of the cache."""
    tasks = [problem.tasks[number] for number in component.tasks]
    kept = option.deployment.kv_bytes * trained.pp
    deployment = replace(option.deployment.with_replicas(trained.dp), kv_bytes=kept)
    passes = [
        decoding.generation_cost(component.config, deployment, problem.constants, task.batches[0]).seconds
        * task.repetitions
        for task in tasks
    ]
    weights = (
        work.stage_parameter_count(component.config.shape, component.config.kind, 1)
        * component.config.item_bytes
        / trained.tp
    )
    held = option.resident - weights * (1 - 1 / trained.pp)
    return Piece(tuple(passes), held, option.peak - option.resident, deployment)


def _zero(problem: PlacementProblem, component: Component, devices: int) -> Iterator[Piece]:
    """ZeRO's third stage: all weights, gradients and moments are shared out, and gathered for each micro-batch. Copies
    on one machine use its adapters together. As everywhere in the cost model, computing hides no communication."""
    island, constants = problem.cluster.islands[0], problem.constants
    weights = work.stage_parameter_count(component.config.shape, component.config.kind, 1)
    reach = island.device.link if devices <= island.per_node else island.network * island.per_node
    gather = weights * component.config.item_bytes * (devices - 1) / devices / (reach * constants.collective)
    trains = component.work == "train"
    for rows in MICROS:
        for recompute in (False, True)[: 1 + trains]:
            deployment = Deployment("megatron", island, make_mesh(devices), rows * WIDTH, recompute)
            seconds, active = [], 0.0
            for op, batches in component.operation_batches(problem.tasks):
                passes = latency_model(
                    "train" if op == "train" else "forward", component.config, deployment, constants, batches
                )
                mine = sum(batch.rows_of_fullest_replica(devices) for batch in batches)
                sent = gather * (3 if op == "train" else 1) * passes.micro_batch_count(mine)
                update = (
                    optimizer_bytes_per_weight().memory_traffic_bytes * weights / devices / island.device.bandwidth
                    if op == "train"
                    else 0.0
                )
                seconds.append(passes.seconds(mine) + sent + update)
                active = max(active, memory_footprint(op, component.config, deployment, batches).active.total)
            layer = weights / component.config.shape.layers * component.config.item_bytes
            held = weights * (component.config.item_bytes + (16 if trains else 0)) / devices
            times = [problem.tasks[number].repetitions for number in component.tasks]
            yield Piece(tuple(s * t for s, t in zip(seconds, times, strict=True)), held, active + 2 * layer, deployment)


def _sync(problem: PlacementProblem, source: Piece, target: Piece, together: bool, gathered: bool) -> float:
    """Weights from training to generation."""
    if not gathered:
        return 0.0
    if not together:
        return weight_sync_cost(
            _config(problem), source.deployment, target.deployment, False, problem.constants
        ).seconds
    # Each device gathers all weights and keeps its share (HybridFlow, table 2).
    island, config = problem.cluster.islands[0], _config(problem)
    size = work.stage_parameter_count(config.shape, config.kind, 1) * config.item_bytes
    reach = island.device.link if source.deployment.dp <= island.per_node else island.network * island.per_node
    return size / (reach * problem.constants.transfer) + problem.constants.sync


def _config(problem: PlacementProblem) -> ModelConfig:
    return problem.components[problem.sync_pairs[0][0]].config
