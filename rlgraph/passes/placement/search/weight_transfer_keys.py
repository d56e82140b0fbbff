"""Tells splits apart by how fast weights come from them, or to them."""

from __future__ import annotations

from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.strategy import Split


def make_split(component: Component, deployment: Deployment, copies: int) -> Split:
    """Return the split of so many replicas; deployment: that of one."""
    island, reach = deployment.island, deployment.rank_count
    ranks = deployment.engine, id(island), deployment.mesh, copies
    weights = (
        id(island),
        deployment.tp,
        deployment.weight_shard_count,
        reach,
        min(reach * copies, island.per_node),
        deployment.adapters,
        (copies, deployment.pp, deployment.ep, deployment.fsdp, deployment.whole_expert_rank_count),
    )
    shared = needs_no_sync(component, deployment)
    return Split(*ranks, shared, ranks if shared else weights)


def weight_transfer_key(component: Component, deployment: Deployment, split: Split) -> tuple[object, tuple[float, ...]]:
    """Return what decides how fast weights come from so many replicas of a component, or to them
    (`cost.weights.sync_cost`): of options of the same kind, they come at least as fast with the one that is no greater
    in each number. deployment: that of a replica."""
    if not component.syncs_weights:
        return None, ()
    reach, per_node = deployment.rank_count, deployment.island.per_node
    if needs_no_sync(component, deployment) or per_node & (per_node - 1) or deployment.island.parts:
        # Tensors are split by powers of two, which may not divide such a node: only the same split is sure to be as
        # good. The same holds for several node groups, with transfers from and to others that lie on one of them.
        return (split, deployment.adapters), ()
    width = -min(reach * split.copies, per_node)
    if component.receives_weights:
        kind = deployment.tp, deployment.adapters, deployment.whole_expert_rank_count
        far = not deployment.island.blocks_stay_within_nodes(reach)
        return kind, (width, -deployment.weight_shard_count, far, per_node // reach)
    streams = deployment.pp, deployment.fsdp, -split.copies * deployment.cp
    return (deployment.tp, deployment.ep), (width, *streams, reach > per_node or per_node % reach != 0)


def needs_no_sync(component: Component, deployment: Deployment) -> bool:
    """Return whether one engine trains and does what else is done with the model: with the same split in both, weights
    do not travel at all."""
    generates = component.generates and deployment.engine_spec.generates
    return component.trained and deployment.engine_spec.trains and (generates or component.separated_by == "said")
