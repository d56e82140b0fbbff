"""Whether the memory of the hosts has room for what sleeps in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rlgraph.catalog.clusters.cluster import Island
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.partitions import laid
from rlgraph.passes.placement.search.problem import Blocks, Problem


def lodged(problem: Problem, blocks: Blocks, devices: Sequence[int], chosen: Sequence[Option]) -> bool:
    """Whether each node has room, where pools that are smaller than a node share one. chosen: an option of each
    component."""
    if not any(option.host for option in chosen):
        return True
    asleep = [sum(chosen[each].host for each in block.components) for block in blocks]
    nodes = defaultdict[tuple[int, int], float](float)
    for at, pieces in enumerate(laid(problem.cluster.islands, blocks, devices)):
        for number, first, size in pieces if asleep[at] else ():
            for node, share in _shares(problem.cluster.islands[number], first, size):
                nodes[number, node] += share * asleep[at]
    islands = problem.cluster.islands
    return all(size <= problem.options.lodges(islands[number]) for (number, _), size in nodes.items())


def _shares(island: Island, first: int, size: int) -> Iterator[tuple[int, float]]:
    """Nodes on which a pool lies, and what it has there as a share of what it has on the fullest: of nodes that it
    fills the first one stands for all."""
    low, high = first // island.per_node, (first + size - 1) // island.per_node
    for node in {low, high} if first % island.per_node == 0 else range(low, high + 1):
        there = min(first + size, (node + 1) * island.per_node) - max(first, node * island.per_node)
        yield node, there / min(size, island.per_node)
