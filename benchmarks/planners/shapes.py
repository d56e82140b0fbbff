"""The shapes of placements that HybridFlow's evaluation compares, and what a plan is called."""

from __future__ import annotations

from collections.abc import Callable

from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.problem import PlacementProblem


def models(problem: PlacementProblem, blocks: Blocks) -> list[set[str]]:
    """Those of each pool."""
    return [{problem.components[number].model_name for number in block.components} for block in blocks]


def paper(problem: PlacementProblem, blocks: Blocks) -> bool:
    """The paper's own plans: all work of a model is on the same devices."""
    found = models(problem, blocks)
    return sum(map(len, found)) == len(set().union(*found))


def colocated(problem: PlacementProblem, blocks: Blocks) -> bool:
    return len(blocks) == 1


def split(problem: PlacementProblem, blocks: Blocks) -> bool:
    """Actor and reference, and the others."""
    return paper(problem, blocks) and len(blocks) == 2 and {"actor", "ref"} in models(problem, blocks)


def standalone(problem: PlacementProblem, blocks: Blocks) -> bool:
    return paper(problem, blocks) and all(len(own) == 1 for own in models(problem, blocks))


SHAPES: dict[str, Callable[[PlacementProblem, Blocks], bool]] = {
    "colocated": colocated,
    "split": split,
    "standalone": standalone,
    "paper": paper,
    "any": lambda problem, blocks: True,
}
"""By name; `paper` are all plans that keep a model's work together."""


def named(problem: PlacementProblem, found: SearchResult | None) -> str:
    """A plan as its pools: `actor ref 64 | critic reward 64`."""
    if found is None:
        return "nothing fits"
    pools = []
    for block, devices in zip(found.blocks, found.devices, strict=True):
        names = " ".join(problem.components[number].name for number in block.components)
        pools.append(f"{names} {devices}")
    return " | ".join(pools)
