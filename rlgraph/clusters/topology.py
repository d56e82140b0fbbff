"""Where processes are on a cluster, as transfers are planned for it."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.clusters.cluster import Cluster
from rlgraph.ir.transfer import DEVICES_PER_NODE, Topology


def topology_of(devices: Mapping[int, int], cluster: Cluster | None) -> Topology:
    """Of places on devices, which are counted through all islands; of no cluster, on nodes of the usual size."""
    if cluster is None:
        return Topology(devices, {device: device // DEVICES_PER_NODE for device in devices.values()})
    return Topology(devices, {device: cluster.node(device) for device in devices.values()})
