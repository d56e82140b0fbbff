"""Computes what a chosen plan offloads to the memory of each node's host, and reports where that memory is too
small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.catalog.clusters.units import format_quantity
from rlgraph.errors import Diagnostic
from rlgraph.ir.plan import Pool
from rlgraph.passes.cost.peak_memory import OffloadedBytes, offloaded_bytes_by_host, usable_host_bytes
from rlgraph.passes.placement.choose import PlacementChoice, choose_before_deadline
from rlgraph.passes.placement.query import PlacementQuery
from rlgraph.passes.placement.search.progress import OutOfTime
from rlgraph.passes.rewrites.accumulate import accumulating_models


def plan_offload_by_host(choice: PlacementChoice) -> dict[int, OffloadedBytes]:
    """Return what is offloaded to each node's host, by the number of the node."""
    asked, plan = choice.question, choice.plan
    accumulated = accumulating_models(asked.program, plan)
    return offloaded_bytes_by_host(
        plan, choice.problem.tasks, choice.model_configs, asked.cluster, asked.constants, accumulated
    )


def fullest_host(found: Mapping[int, OffloadedBytes], pool: Pool, cluster: Cluster) -> OffloadedBytes | None:
    """Return the node of a pool with the most offloaded bytes, of all pools together; None if there are none."""
    nodes = range(cluster.node_of_device(pool.first), cluster.node_of_device(pool.first + pool.devices - 1) + 1)
    return max((found[node] for node in nodes if node in found), key=lambda lodging: lodging.used_bytes, default=None)


def host_memory_message(node: int, found: OffloadedBytes) -> str:
    """Return the message for a node whose host's memory is too small."""
    who = ", ".join(f"{format_quantity(size, 'bytes')} of `{name}`" for name, size in found.parts)
    return (
        f"{format_quantity(found.used_bytes, 'bytes')} sleep in the memory of node {node}'s host ({who}), and "
        f"{format_quantity(found.capacity, 'bytes')} of it can be used"
    )


def host_memory_diagnostic(question: PlacementQuery, ends: float) -> Diagnostic | None:
    """Return a diagnostic if nothing fits but something would if hosts had more memory; else None. ends: the monotonic
    time at which to stop."""
    if not question.offload:
        return None
    try:
        choice = choose_before_deadline(ends, replace(question, constants=replace(question.constants, asleep=inf)))
    except OutOfTime:
        return None
    if choice is None:
        return None
    full = [item for item in plan_offload_by_host(replace(choice, question=question)).items() if not item[1].fits]
    if not full:
        return None
    node, most = max(full, key=lambda item: item[1].used_bytes)
    island = question.cluster.node_group_of_node(node)
    # Of what is not page-locked hosts have room for more.
    pinned = most.used_bytes - (most.capacity - usable_host_bytes(island, question.constants))
    needed = format_quantity(pinned / question.constants.asleep / island.per_node * 1.001, "bytes")
    example = f"`{island.device.name}(host_memory={needed})`"
    hint = f"it fits if hosts have {needed} for each device, said in `--cluster` as {example}; or take more devices"
    return Diagnostic(
        "E0939", f"where models fit on the devices {host_memory_message(node, most)}", question.schedule.span, hint
    )
