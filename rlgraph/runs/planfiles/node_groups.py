"""Checks that each replica of a plan's models lies within one node group of the plan's cluster."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.runs.planfiles.document import Document


def split_replica_errors(compiled: Compilation) -> Iterator[Diagnostic]:
    """Yield an error for each group with a replica on devices of two node groups."""
    plan = compiled.plan
    try:
        cluster = read_cluster(plan.cluster)
    except ProgramError:
        # The cluster was a file, so its node groups are unknown.
        return
    pools = {pool.name: pool for pool in plan.pools}
    if len(cluster.islands) == 1 or max(pool.first + pool.devices for pool in plan.pools) > cluster.device_count:
        return
    for number, group in enumerate(plan.groups):
        first, size = pools[group.pool].first, group.mesh.replica_size
        for begin in range(0, len(group.devices) if group.models else 0, size):
            copy = [first + device for device in group.devices[begin : begin + size]]
            names = dict.fromkeys(cluster.node_group_number(device) for device in copy)
            if len(names) > 1:
                kinds = " and ".join(cluster.islands[name].device.name for name in names)
                span = Document(compiled.source).value_span(("plan", "groups", number, "devices"))
                message = f"copy {begin // size} of `{group.name}` lies on two groups of the cluster, of {kinds}"
                yield Diagnostic("E0956", message, span, "each copy of a model lies in one of them")
                break
