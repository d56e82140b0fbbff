"""Routes for one thing that some places hold and others need: who gets it from whom."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rlgraph.ir.transfer import Topology

Array = NDArray[np.int64]

Routes = tuple[Array, Array, Array]
"""For each route its source, its destination, and how many places have passed it on before."""


class Sites:
    """Places by numbers from 0, and where they are."""

    def __init__(self, places: Sequence[int], topology: Topology) -> None:
        self.topology = topology
        self.ids = np.array(places, np.int64)
        devices = [topology.devices[place] for place in places]
        self.device = np.array(devices, np.int64)
        self.node = np.array([topology.nodes[device] for device in devices], np.int64)

    def busiest(self, source: Array, destination: Array, size: Array) -> float:
        """Seconds that the busiest link of any place needs to carry these bytes; links of different kinds work side by
        side, and so do the two directions."""
        same = self.device[source] == self.device[destination]
        near = ~same & (self.node[source] == self.node[destination])
        links = (
            (same, self.topology.device_bandwidth),
            (near, self.topology.node_bandwidth),
            (~same & ~near, self.topology.network_bandwidth),
        )
        return max(
            float(np.bincount(ends[of], size[of]).max()) / bandwidth
            for of, bandwidth in links
            if of.any()
            for ends in (source, destination)
        )


def spread(sites: Sites, holders: Array, takers: Array, turn: int, gates: bool, fanout: int | None) -> Routes:
    """Routes to all takers, each from one place.

    From a holder on the same device, else from its node, else over the network. With `gates`, one taker of each node
    gets it over the network and the others from that one. A place sends it to at most `fanout` others before takers
    pass it on (None: nobody passes it on within a node, or between gates). `turn` counts what is spread: others come
    first each time.
    """
    near = np.argsort(sites.device[holders], kind="stable")
    devices = sites.device[holders][near]
    at = np.searchsorted(devices, sites.device[takers]).clip(max=len(holders) - 1)
    beside = devices[at] == sites.device[takers]
    found = [(holders[near][at[beside]], takers[beside], np.zeros(int(beside.sum()), np.int64))]
    takers = takers[~beside]
    inside = np.isin(sites.node[takers], sites.node[holders])
    if inside.any():
        found.append(_within(sites, holders, takers[inside], turn, fanout))
    takers = takers[~inside]
    if len(takers):
        found += _across(sites, holders, takers, turn, gates, fanout)
    return _joined(found)


def _across(sites: Sites, holders: Array, takers: Array, turn: int, gates: bool, fanout: int | None) -> list[Routes]:
    """To takers on nodes that have no holder."""
    if not gates:
        return [_tree(holders, takers, None, turn)]
    takers = takers[np.argsort(sites.node[takers], kind="stable")]
    _, start, count = np.unique(sites.node[takers], return_index=True, return_counts=True)
    first = start + turn % count
    over = _tree(holders, takers[first], fanout, turn)
    rest = np.delete(takers, first)
    if not len(rest):
        return [over]
    source, destination, hop = _within(sites, takers[first], rest, turn, fanout)
    gate = np.searchsorted(sites.node[takers[first]], sites.node[destination])
    return [over, (source, destination, hop + over[2][gate] + 1)]


def _within(sites: Sites, holders: Array, takers: Array, turn: int, fanout: int | None) -> Routes:
    """To takers that have a holder on their node. Nodes with equally many of both are done at once."""
    holders = holders[np.argsort(sites.node[holders], kind="stable")]
    takers = takers[np.argsort(sites.node[takers], kind="stable")]
    nodes, start, count = np.unique(sites.node[takers], return_index=True, return_counts=True)
    low, high = (np.searchsorted(sites.node[holders], nodes, side) for side in ("left", "right"))
    found = []
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
        found.append((group[:, parent].reshape(-1), group[:, have:].reshape(-1), np.tile(hop, len(chosen))))
    return _joined(found)


def _tree(holders: Array, takers: Array, fanout: int | None, turn: int) -> Routes:
    holders = np.roll(holders, -turn * len(takers))
    parent, hop = _parents(len(holders), len(takers), fanout)
    return np.concatenate([holders, takers])[parent], takers, hop


@lru_cache(maxsize=1024)
def _parents(holders: int, takers: int, fanout: int | None) -> tuple[Array, Array]:
    """For each taker its source, a number in holders followed by takers, and its hop: each place has up to `fanout`
    takers, holders first, earlier takers next."""
    if fanout is None:
        return np.arange(takers) % holders, np.zeros(takers, np.int64)
    parent = np.arange(takers) // fanout
    direct = min(takers, holders * fanout)
    parent[:direct] = np.arange(direct) % holders
    hop = np.zeros(takers, np.int64)
    for taker in range(direct, takers):
        hop[taker] = hop[parent[taker] - holders] + 1
    return parent, hop


def _joined(routes: Sequence[Routes]) -> Routes:
    source, destination, hop = (np.concatenate([each[end] for each in routes]) for end in range(3))
    return source, destination, hop
