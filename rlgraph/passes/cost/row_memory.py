"""Counts the rows that each node's host has at once: what its processes have made and got of all steps in flight, and
buffers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.step_edges import staleness_bound
from rlgraph.ops.program_work import replayed_models
from rlgraph.passes.cost.batch import ROW_BYTES
from rlgraph.passes.cost.row_bytes import HeldRows
from rlgraph.passes.cost.task import Maker
from rlgraph.passes.cost.tasks import made_rows, main_phase
from rlgraph.passes.cost.workload import Workload

ROUTE_BYTES = 2
"""Bytes of an expert of a token."""


def rows_by_host(
    program: Program,
    plan: Plan,
    workload: Workload,
    cluster: Cluster,
    shapes: Mapping[str, Shape | UnsupportedModel],
) -> dict[int, HeldRows]:
    """Return the rows of each node that has any, by the number of the node. What a replica makes is on one of its
    ranks, and what it reads on each of them, until its step ends. The host's processes, and those of pools of cpus, are
    taken to be on the first node."""
    routes = {
        name: float(ROUTE_BYTES * layers * experts)
        for name in replayed_models(program)
        if isinstance(shape := shapes.get(name), Shape)
        for layers, experts in (shape.routes_of_token,)
    }
    tasks, made = made_rows(program, main_phase(program), workload, routes)
    steps = 1 + max((staleness_bound(node) for _, node in program.walk()), default=0)
    by_node: defaultdict[int, HeldRows] = defaultdict(HeldRows)

    def maker_group(maker: Maker) -> Group:
        return plan.group_for(*(maker or ("", "")), "")

    def add(group: Group, held: HeldRows) -> None:
        """Add what all ranks of a group have together."""
        pool = next(pool for pool in plan.pools if pool.name == group.pool)
        nodes = Counter(cluster.node_of_device(pool.first + device) for device in group.devices if pool.devices)
        nodes = nodes or Counter((0,))
        for node, ranks in nodes.items():
            by_node[node] += held * (ranks / nodes.total())

    for rows in made:
        add(maker_group(rows.maker), rows.held * (1 if rows.stays else steps))
    read: dict[tuple[str, str], HeldRows] = {}
    for task in tasks:
        group = plan.group_for(task.model or "", task.op, task.code) if task.reads else None
        for value in task.reads:
            if group is not None and maker_group(value.maker) != group:
                size = value.tokens * ROW_BYTES
                read[group.name, value.value] = HeldRows(size, size * value.is_kept)
    for (name, _), held in read.items():
        group = plan.group(name)
        add(group, held * steps * (group.mesh.rank_count / group.mesh.axis_size("dp")))
    return dict(sorted(by_node.items()))
