"""Computes routes for data that some places hold and others need."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rlgraph.ir.transfer import Topology

Array = NDArray[np.int64]

Routes = tuple[Array, Array, Array]
"""For each route its source, its destination, and how many places have forwarded the data before."""


class ProcessTopology:
    """Places numbered from 0, with their devices and nodes."""

    def __init__(self, places: Sequence[int], topology: Topology) -> None:
        self.topology = topology
        self.ids = np.array(places, np.int64)
        devices = [topology.devices[place] for place in places]
        self.device = np.array(devices, np.int64)
        self.node = np.array([topology.nodes[device] for device in devices], np.int64)

    def busiest_link_seconds(self, source: Array, destination: Array, size: Array) -> float:
        """Return the seconds that the busiest link of any place needs for these bytes; links of different kinds work
        concurrently, and so do the two directions."""
        same = self.device[source] == self.device[destination]
        near = ~same & (self.node[source] == self.node[destination])
        links = (
            (same, self.topology.device_bandwidth),
            (near, self.topology.node_bandwidth),
            (~same & ~near, self.topology.network_bandwidth),
        )
        return max(
            float(np.bincount(ends[used], size[used]).max()) / bandwidth
            for used, bandwidth in links
            if used.any()
            for ends in (source, destination)
        )


def compute_routes(
    sites: ProcessTopology, holders: Array, takers: Array, turn: int, gates: bool, fanout: int | None
) -> Routes:
    """Return routes to all takers, one for each.

    A taker receives from a holder on its device, else on its node, else over the network. With `gates`, one taker of
    each node, the gate, receives over the network and the others of the node from it. A place sends to at most `fanout`
    others before takers forward (None: no place forwards within a node, or between gates). `turn` rotates which places
    come first.
    """
    by_device = np.argsort(sites.device[holders], kind="stable")
    devices = sites.device[holders][by_device]
    nearest = np.searchsorted(devices, sites.device[takers]).clip(max=len(holders) - 1)
    same_device = devices[nearest] == sites.device[takers]
    routes = [
        (holders[by_device][nearest[same_device]], takers[same_device], np.zeros(int(same_device.sum()), np.int64))
    ]
    takers = takers[~same_device]
    on_node = np.isin(sites.node[takers], sites.node[holders])
    if on_node.any():
        routes.append(_within(sites, holders, takers[on_node], turn, fanout))
    takers = takers[~on_node]
    if len(takers):
        routes += _across(sites, holders, takers, turn, gates, fanout)
    return _concatenate(routes)


def _across(
    sites: ProcessTopology, holders: Array, takers: Array, turn: int, gates: bool, fanout: int | None
) -> list[Routes]:
    """Return routes to takers on nodes without a holder."""
    if not gates:
        return [_tree(holders, takers, None, turn)]
    takers = takers[np.argsort(sites.node[takers], kind="stable")]
    _, start, count = np.unique(sites.node[takers], return_index=True, return_counts=True)
    gate_index = start + turn % count
    to_gates = _tree(holders, takers[gate_index], fanout, turn)
    rest = np.delete(takers, gate_index)
    if not len(rest):
        return [to_gates]
    source, destination, hop = _within(sites, takers[gate_index], rest, turn, fanout)
    gate = np.searchsorted(sites.node[takers[gate_index]], sites.node[destination])
    return [to_gates, (source, destination, hop + to_gates[2][gate] + 1)]


def _within(sites: ProcessTopology, holders: Array, takers: Array, turn: int, fanout: int | None) -> Routes:
    """Return routes to takers with a holder on their node. Nodes with the same numbers of both are computed
    together."""
    holders = holders[np.argsort(sites.node[holders], kind="stable")]
    takers = takers[np.argsort(sites.node[takers], kind="stable")]
    nodes, start, count = np.unique(sites.node[takers], return_index=True, return_counts=True)
    low, high = (np.searchsorted(sites.node[holders], nodes, side) for side in ("left", "right"))
    routes = []
    for have, need in {*zip((high - low).tolist(), count.tolist(), strict=True)}:
        chosen = np.flatnonzero((high - low == have) & (count == need))
        group = np.concatenate(
            [
                holders[low[chosen][:, None] + (np.arange(have) + turn * need) % have],
                takers[start[chosen][:, None] + (np.arange(need) + turn) % need],
            ],
            axis=1,
        )
        parent, hop = _parents(have, need, fanout)
        routes.append((group[:, parent].reshape(-1), group[:, have:].reshape(-1), np.tile(hop, len(chosen))))
    return _concatenate(routes)


def _tree(holders: Array, takers: Array, fanout: int | None, turn: int) -> Routes:
    holders = np.roll(holders, -turn * len(takers))
    parent, hop = _parents(len(holders), len(takers), fanout)
    return np.concatenate([holders, takers])[parent], takers, hop


@lru_cache(maxsize=1024)
def _parents(holders: int, takers: int, fanout: int | None) -> tuple[Array, Array]:
    """Return the source of each taker, as an index into holders followed by takers, and its hop. Each place sends to up
    to `fanout` takers, holders first, earlier takers next."""
    if fanout is None:
        return np.arange(takers) % holders, np.zeros(takers, np.int64)
    parent = np.arange(takers) // fanout
    direct = min(takers, holders * fanout)
    parent[:direct] = np.arange(direct) % holders
    hop = np.zeros(takers, np.int64)
    for taker in range(direct, takers):
        hop[taker] = hop[parent[taker] - holders] + 1
    return parent, hop


def _concatenate(routes: Sequence[Routes]) -> Routes:
    source, destination, hop = (np.concatenate([part[end] for part in routes]) for end in range(3))
    return source, destination, hop
