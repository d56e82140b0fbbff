"""A check whether the replicas (copies) of a plan's models lie within one group of its cluster each."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.runs.planfiles.document import Document


def astride(compiled: Compilation) -> Iterator[Diagnostic]:
    """Groups of processes of which a copy is on devices of two groups of the cluster."""
    plan = compiled.plan
    try:
        cluster = read_cluster(plan.cluster)
    except ProgramError:
        # The cluster was a file: nobody knows its groups.
        return
    pools = {pool.name: pool for pool in plan.pools}
    if len(cluster.islands) == 1 or max(pool.first + pool.devices for pool in plan.pools) > cluster.devices:
        return
    for number, group in enumerate(plan.groups):
        first, size = pools[group.pool].first, group.mesh.copy_size
        for at in range(0, len(group.devices) if group.models else 0, size):
            copy = [first + device for device in group.devices[at : at + size]]
            names = dict.fromkeys(cluster.island(device) for device in copy)
            if len(names) > 1:
                kinds = " and ".join(cluster.islands[name].device.name for name in names)
                span = Document(compiled.source).span(("plan", "groups", number, "devices"))
                message = f"copy {at // size} of `{group.name}` lies on two groups of the cluster, of {kinds}"
                yield Diagnostic("E0956", message, span, "each copy of a model lies in one of them")
                break
