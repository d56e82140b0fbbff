"""Converts places of processes on a cluster into what the planning of transfers needs."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.catalog.clusters.cluster import Cluster, DeviceKind
from rlgraph.ir.message_carriers import TensorSite
from rlgraph.ir.transfer import DEVICES_PER_NODE, Topology

_TORCH: Mapping[DeviceKind, str] = {"cpu": "cpu", "gpu": "cuda"}
"""The device type in torch for each kind of device."""


def topology_of_devices(devices: Mapping[int, int], cluster: Cluster | None) -> Topology:
    """Return the topology of places on devices, which are numbered through all node groups. Without a cluster, nodes
    have the usual size."""
    if cluster is None:
        return Topology(devices, {device: device // DEVICES_PER_NODE for device in devices.values()})
    return Topology(devices, {device: cluster.node_of_device(device) for device in devices.values()})


def tensor_sites_of_devices(devices: Mapping[int, int], cluster: Cluster) -> dict[int, TensorSite]:
    """Return where places on devices have their tensors, each in a process of its own."""
    return {
        place: TensorSite(
            _TORCH[cluster.islands[cluster.node_group_number(device)].device.kind],
            device,
            cluster.node_of_device(device),
            f"process {place}",
        )
        for place, device in devices.items()
    }
