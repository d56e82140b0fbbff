"""Counts the rows that a chosen plan has in the memory of each node's host, and warns where there is no room for
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlgraph.catalog.clusters.units import format_quantity
from rlgraph.errors import Diagnostic
from rlgraph.passes.compilation.host_offload import plan_offload_by_host
from rlgraph.passes.cost.row_bytes import HeldRows
from rlgraph.passes.cost.row_memory import rows_by_host
from rlgraph.passes.placement.choose import PlacementChoice

CROWDED = "W0521"
NOTED = 0.01
"""The share of a host's memory that rows must have to be reported."""


@dataclass(frozen=True, slots=True)
class HostRows:
    """The rows in the memory of a node's host, beside what sleeps there."""

    node: int
    rows: HeldRows
    asleep: float
    """Bytes of off-loaded models and optimizers."""
    capacity: float
    """Bytes that rows may use beside these."""
    memory: float
    """All of the host's."""


def fullest_host_rows(choice: PlacementChoice) -> HostRows | None:
    """Return the rows of the node that has least room left for them; None where all have few. What is called a CPU's
    device memory is the host's memory: there rows are not counted beside the models."""
    asked, asleep = choice.question, plan_offload_by_host(choice)
    found = []
    for node, rows in rows_by_host(asked.program, choice.plan, asked.workload, asked.cluster, asked.shapes).items():
        island = asked.cluster.node_group_of_node(node)
        if island.device.kind != "cpu" and rows.bytes >= NOTED * island.host_memory:
            offloaded = asleep.get(node)
            # Nothing of rows is page-locked.
            limit = (
                offloaded.capacity - offloaded.used_bytes if offloaded else island.host_memory * asked.constants.asleep
            )
            room = limit / asked.constants.unpinned_part
            found.append(HostRows(node, rows, offloaded.used_bytes if offloaded else 0.0, room, island.host_memory))
    return min(found, key=lambda host: host.capacity - host.rows.bytes, default=None)


def host_rows_line(host: HostRows) -> str:
    """Return the line about the rows of a plan."""
    kept = f", {format_quantity(host.rows.kept, 'bytes')} of it kept tokens" if host.rows.kept else ""
    return f"rows in the hosts' memory: at most {format_quantity(host.rows.bytes, 'bytes')} on a node{kept}"


def crowded_host_warnings(choice: PlacementChoice) -> Iterator[Diagnostic]:
    """Yield a warning where a node's host has no room for the rows of a plan."""
    host = fullest_host_rows(choice)
    if host is None or host.rows.bytes <= host.capacity:
        return
    beside = f" beside {format_quantity(host.asleep, 'bytes')} of models that sleep there" if host.asleep else ""
    kept = f", {format_quantity(host.rows.kept, 'bytes')} of it kept tokens," if host.rows.kept else ""
    hint = "take fewer rows in a step, a smaller `capacity` of a buffer, or more nodes"
    if host.rows.kept > host.rows.bytes / 2:
        hint = "bound what is kept with a smaller `top_k`, or take fewer rows in a step"
    yield Diagnostic(
        CROWDED,
        f"rows need {format_quantity(host.rows.bytes, 'bytes')}{kept} in the memory of node {host.node}'s host, and "
        f"{format_quantity(max(0.0, host.capacity), 'bytes')} of its {format_quantity(host.memory, 'bytes')} can be "
        f"used for them{beside}",
        choice.question.schedule.span,
        hint,
    )
