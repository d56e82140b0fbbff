"""What of a plan that was searched for sleeps in the memory of its nodes' hosts, and what is said where there is too
little of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.catalog.clusters.units import show
from rlgraph.errors import Diagnostic
from rlgraph.ir.plan import Pool
from rlgraph.passes.cost.peak import Lodging, lodgings
from rlgraph.passes.placement.choose import Choice, Question, choose_until
from rlgraph.passes.placement.search.progress import OutOfTime
from rlgraph.passes.rewrites.accumulate import added_up


def hosts(choice: Choice) -> dict[int, Lodging]:
    """By the number of the node."""
    asked, plan = choice.question, choice.plan
    accumulated = added_up(asked.program, plan)
    return lodgings(plan, choice.problem.tasks, choice.configs, asked.cluster, asked.constants, accumulated)


def fullest(found: Mapping[int, Lodging], pool: Pool, cluster: Cluster) -> Lodging | None:
    """Of the nodes of a pool the one on which most sleeps, of whichever pools."""
    nodes = range(cluster.node(pool.first), cluster.node(pool.first + pool.devices - 1) + 1)
    return max((found[node] for node in nodes if node in found), key=lambda each: each.bytes, default=None)


def told(node: int, found: Lodging) -> str:
    """What is too much for a node."""
    who = ", ".join(f"{show(size, 'bytes')} of `{name}`" for name, size in found.parts)
    return (
        f"{show(found.bytes, 'bytes')} sleep in the memory of node {node}'s host ({who}), and "
        f"{show(found.capacity, 'bytes')} of it can be used"
    )


def crowded(question: Question, ends: float) -> Diagnostic | None:
    """Where nothing fits, but would if the hosts had more memory. ends: of several searches together."""
    if not question.offload:
        return None
    try:
        found = choose_until(ends, replace(question, constants=replace(question.constants, asleep=inf)))
    except OutOfTime:
        return None
    if found is None:
        return None
    full = [each for each in hosts(replace(found, question=question)).items() if not each[1].fits]
    if not full:
        return None
    node, most = max(full, key=lambda each: each[1].bytes)
    island = question.cluster.home(node)
    needed = show(most.bytes / question.constants.asleep / island.per_node * 1.001, "bytes")
    said = f"`{island.device.name}(host_memory={needed})`"
    hint = f"it fits if hosts have {needed} for each device, said in `--cluster` as {said}; or take more devices"
    return Diagnostic("E0939", f"where models fit on the devices {told(node, most)}", question.schedule.span, hint)
