"""A placement that somebody chose, and what our cost model says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.passes.cost.peak_memory import usable_device_bytes
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.problem import PlacementProblem


@dataclass(frozen=True)
class Chosen:
    blocks: Blocks
    devices: tuple[int, ...]
    """Of each block."""
    options: tuple[Option, ...]
    """For each component."""

    def seconds(self, problem: PlacementProblem) -> float:
        """Of a step."""
        colocation = problem.make_colocation(self.blocks)
        syncs = [
            problem.pair_sync_seconds(
                (source, target),
                self.options[source],
                self.options[target],
                colocation.pool_of_component[source] == colocation.pool_of_component[target],
            )
            for source, target in problem.sync_pairs
        ]
        return problem.step_seconds({at: option.seconds for at, option in enumerate(self.options)}, syncs, colocation)

    def fits(self, problem: PlacementProblem) -> bool:
        return all(
            problem.can_share_pool(
                [self.options[number] for number in block.components], problem.pool_node_group(block)
            )
            for block in self.blocks
        )


def fastest_that_fit(
    problem: PlacementProblem, island: NodeGroup, options: Mapping[int, Sequence[Option]]
) -> dict[int, Option] | None:
    """One component of a pool after the other gets its fastest option beside what is chosen and the least of what is
    not."""
    if not all(options.values()):
        return None
    least = {number: min(own, key=lambda o: (o.resident, o.peak)) for number, own in options.items()}
    chosen: dict[int, Option] = {}
    for number, own in options.items():
        held = sum(chosen.get(other, least[other]).resident for other in options if other != number)
        active = max((other.peak - other.resident for other in chosen.values()), default=0.0)
        room = usable_device_bytes(island, problem.constants)
        fit = [o for o in own if held + o.resident + max(o.peak - o.resident, active) <= room]
        if not fit:
            return None
        chosen[number] = min(fit, key=lambda o: sum(o.seconds))
    return chosen if problem.can_share_pool(list(chosen.values()), island) else None
