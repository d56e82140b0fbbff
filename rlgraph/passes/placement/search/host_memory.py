"""Checks that the memory of the hosts has room for the models that are offloaded to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.partitions import pool_locations
from rlgraph.passes.placement.search.problem import PlacementProblem


def hosts_have_room(
    problem: PlacementProblem, blocks: Blocks, devices: Sequence[int], chosen: Sequence[Option]
) -> bool:
    """Return whether each node has room for the models offloaded to it, where pools that are smaller than a node share
    one. chosen: the option of each component."""
    if not any(option.host for option in chosen):
        return True
    offloaded = [sum(chosen[number].host for number in block.components) for block in blocks]
    nodes = defaultdict[tuple[int, int], float](float)
    for pool, pieces in enumerate(pool_locations(problem.cluster.islands, blocks, devices)):
        for island, first, size in pieces if offloaded[pool] else ():
            for node, share in _shares(problem.cluster.islands[island], first, size):
                nodes[island, node] += share * offloaded[pool]
    islands = problem.cluster.islands
    return all(size <= problem.options.offload_room(islands[island]) for (island, _), size in nodes.items())


def _shares(island: NodeGroup, first: int, size: int) -> Iterator[tuple[int, float]]:
    """Yield the nodes on which a pool lies, with what it has there as a share of what it has on the fullest; of nodes
    that it fills, the first one stands for all."""
    low, high = first // island.per_node, (first + size - 1) // island.per_node
    for node in {low, high} if first % island.per_node == 0 else range(low, high + 1):
        count = min(first + size, (node + 1) * island.per_node) - max(first, node * island.per_node)
        yield node, count / min(size, island.per_node)
