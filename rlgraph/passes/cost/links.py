"""Estimates how long messages between devices take: alpha-beta costs of collectives on the links that a group really
uses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlgraph.catalog.clusters.cluster import NodeGroup


@dataclass(frozen=True, slots=True)
class Link:
    """A link between the devices of one group."""

    bandwidth: float
    """Bytes a second of each device, in each direction."""
    latency: float
    """Seconds of a message."""

    def all_reduce_seconds(self, size: float, ranks: int) -> float:
        """Return the seconds of an all-reduce, in which every byte goes around twice, as in a ring."""
        return self.all_reduce_bandwidth_seconds(size, ranks) + self.all_reduce_latency_seconds(ranks)

    def all_reduce_bandwidth_seconds(self, size: float, ranks: int) -> float:
        """Return the seconds of an all-reduce that depend on its bytes."""
        return 2 * (ranks - 1) * size / ranks / self.bandwidth

    def all_reduce_latency_seconds(self, ranks: int) -> float:
        """Return the seconds of an all-reduce that depend on its messages: those of small sizes go along a tree."""
        return 2 * math.ceil(math.log2(ranks)) * self.latency

    def all_gather_seconds(self, size: float, ranks: int) -> float:
        """Return the seconds in which every rank gets all `size` bytes, of which it has its shard; a reduce-scatter
        takes as long."""
        if ranks == 1:
            return 0.0
        return (ranks - 1) * (size / ranks / self.bandwidth + self.latency)

    def all_to_all_bandwidth_seconds(self, size: float, ranks: int) -> float:
        """Return the seconds that depend on bytes when every rank sends each other rank an equal part of `size`
        bytes."""
        return (ranks - 1) * size / ranks / self.bandwidth

    def all_to_all_latency_seconds(self, ranks: int) -> float:
        """Return the seconds of an all-to-all that depend on its messages."""
        return (ranks - 1) * self.latency


def replicas_link(island: NodeGroup, one: int, copies: int, share: float) -> Link:
    """Return the link between the replicas of a group, each on `one` devices in a row; between several node groups it
    is as slow as the slowest part of a ring through all of them."""
    if island.parts:
        wide = [cross_node_link(part, one, share) for part in island.parts]
        members = min(max(1, part.per_node // one) for part in island.parts)
        bandwidth = min([island.between * members * share, *(part_link.bandwidth for part_link in wide)])
        return Link(bandwidth, max(island.between_latency, *(part_link.latency for part_link in wide)))
    if one * copies <= island.per_node:
        return Link(island.device.link * share, island.link_latency)
    return cross_node_link(island, one, share)


def cross_node_link(island: NodeGroup, one: int, share: float) -> Link:
    """Return the link between ranks that are `one` devices apart, and reach over nodes.

    The devices of a node that communicate form one ring, which uses all their network adapters: the adapters of a node
    are divided evenly among its devices, whether each has one of its own or not.
    """
    members = max(1, island.per_node // one)
    return Link(min(island.device.link, island.network * members) * share, island.network_latency)


def node_link(island: NodeGroup, near: bool, share: float) -> Link:
    """Return the link within a node or between two. share: the part of the bandwidth that is reached."""
    if near:
        return Link(island.device.link * share, island.link_latency)
    return Link(island.network * share, island.network_latency)
