"""Estimates how many parameters a rank of a model holds, and how long new weights take to other processes."""

from __future__ import annotations

import math
from functools import cache

from rlgraph.backends.enginespec.registry import engine
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import Mesh
from rlgraph.passes.cost import work
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.transfer_pieces import transfer_counts


def rank_parameter_count(config: ModelConfig, deployment: Deployment) -> float:
    """Return how many parameters the fullest rank keeps."""
    if deployment.fsdp > 1:
        return work.fsdp_shard_parameter_count(config.shape, config.kind, deployment.fsdp) / deployment.tp
    return work.model_parallel_parameter_count(
        config.shape, config.kind, deployment.pp, deployment.tp, deployment.ep, deployment.chunks_per_stage
    )


def rank_trained_parameter_count(config: ModelConfig, deployment: Deployment) -> float:
    """Return how many of these parameters, and of its adapters, training changes."""
    return (
        rank_parameter_count(config, deployment)
        if config.shape.adapters is None
        else _carried(config, deployment, config.kind)
    )


def stage_trained_count(config: ModelConfig, deployment: Deployment) -> float:
    """Return how many parameters training changes of those that a tensor-parallel rank of the fullest stage would keep
    if ranks split no experts."""
    if config.shape.adapters is not None:
        return rank_trained_parameter_count(config, deployment)
    stage = work.stage_parameter_count(config.shape, config.kind, deployment.pp, deployment.chunks_per_stage)
    return stage / deployment.tp


def rank_adapter_parameter_count(config: ModelConfig, deployment: Deployment) -> float:
    """Return how many numbers of adapters the fullest rank keeps."""
    return _carried(config, deployment, "causal_lm") if config.shape.adapters else 0


def _carried(config: ModelConfig, deployment: Deployment, kind: ModelKind) -> float:
    """Return how many numbers travel of a model with adapters."""
    if deployment.weight_shard_count == 1:
        return work.trained_parameter_count(config.shape, kind)
    return _laid_out(deployment.engine, config.shape, deployment.mesh.with_replicas(1), kind)


@cache
def _laid_out(name: str, shape: Shape, split: Mesh, kind: ModelKind) -> int:
    """Return how many numbers travel from the rank of a split that has most."""
    return max(
        sum(math.prod(tensor.shape) for tensor in engine(name).transferred_tensors(shape, split, rank, kind))
        for rank in (split.rank_at(pp=stage) for stage in range(split.axis_size("pp")))
    )


def weight_sync_cost(
    config: ModelConfig,
    source: Deployment,
    target: Deployment,
    together: bool,
    constants: Constants,
    apart: tuple[float, float] | None = None,
) -> Cost:
    """Return the cost of new weights from the group that trains to a group that generates.

    together: both are on the same devices, and each keeps what it already holds of them; what moves then is its shard
    less the overlap (HybridFlow, arXiv 2409.19256, table 2). Where tensors are split finer than in training, some
    device holds nothing of its part. Otherwise, and where one of them has replicas in a node group in which the other
    has none, all nodes of the target get the weights once over the network, as fast as a node of the source sends or
    one of the target receives, each passing on what it got; replicas on a node get them from each other. Each piece
    takes time at both ends beside its bytes (`rlgraph.passes.cost.transfer_pieces`).

    apart: bytes a second of a device and seconds of a message between node groups, where the two are in different ones.
    """
    size = work.trained_parameter_count(config.shape, config.kind) * config.trained_item_bytes
    one, merged = target.weight_shard_count, adapter_merge_cost(config, target, constants)
    if together and source.island != target.island:
        # In a pool over several node groups, one has replicas where the other has none.
        wider = max(source.island, target.island, key=lambda island: len(island.parts))
        together, apart = False, (wider.between, wider.between_latency)
    if together:
        held = size / source.weight_shard_count if target.tp <= source.tp else 0.0
        near, moved = (
            transfer_bandwidth(source, max(source.mesh.replica_size, target.mesh.replica_size), constants),
            max(0.0, size / one - held),
        )
        ends = transfer_counts(config.shape, config.kind, source, target, moved, 0.0)
        return (
            Cost(communication=moved / near, overhead=constants.sync + sum(end.seconds(constants) for end in ends))
            + merged
        )
    bandwidth, latency = apart or (math.inf, 0.0)
    network = min(source.island.network, target.island.network, bandwidth) * constants.transfer
    least = min(source.rank_count, target.rank_count, source.island.per_node, target.island.per_node)
    passed = size / one / transfer_bandwidth(target, target.mesh.replica_size, constants)
    sent = size / least / network
    ends = transfer_counts(config.shape, config.kind, source, target, size / one, sent)
    overhead = constants.sync + sum(end.seconds(constants) for end in ends)
    return Cost(communication=sent + passed + latency, overhead=overhead) + merged


def received_adapter_bytes(config: ModelConfig, deployment: Deployment, item: int) -> float:
    """Return the bytes of adapters that an engine receives, and of what it keeps to compute with them; 0 without
    adapters. item: bytes of a number of the weights."""
    shape, spec = config.shape, deployment.engine_spec
    if shape.adapters is None:
        return 0.0
    room, wide = spec.allocated_adapter_rank(shape.adapters.rank), max(item, config.trained_item_bytes)
    return work.adapter_extra_bytes(
        shape, deployment.merges_adapters, item, wide, room, deployment.tp, deployment.on_cpu
    )


def adapter_merge_cost(config: ModelConfig, target: Deployment, constants: Constants) -> Cost:
    """Return the cost of merging received adapters into the weights of an engine: for each matrix the copy without
    adapters is read, their product is added in the adapters' dtype, and the sum is written to the weights."""
    if config.shape.adapters is None or not target.merges_adapters:
        return Cost()
    device, rates = target.island.device, constants.rates[target.engine, "generate"]
    numbers = work.adapted_parameter_count(config.shape) / target.tp
    widened = 2 * config.trained_item_bytes if config.item_bytes < config.trained_item_bytes else 0
    moved = numbers * (2 * config.item_bytes + 2 * config.trained_item_bytes + widened)
    products = 2.0 * config.shape.adapters.rank * numbers / (device.matmul_flops("float32") * rates.compute)
    return Cost(compute=products, memory=moved / (device.stream_bandwidth * rates.memory))


def transfer_bandwidth(deployment: Deployment, reach: int, constants: Constants) -> float:
    """Return the bytes a second of planned transfers among so many devices in a row."""
    island = deployment.island
    return (island.device.link if island.blocks_stay_within_nodes(reach) else island.network) * constants.transfer
