"""HybridFlow's placement (arXiv 2409.19256, algorithms 1 and 2), with our times of single pieces of work as its
simulator.

For every set partition of the models and every allocation of whole machines to its sets, each model gets the split with
the least latency; the cost is the sum over the three stages of the slowest set's sum. The actor generates on the
devices that it is trained on. On one machine allocations are counted in devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

from benchmarks.planners.caches import settled
from benchmarks.planners.plans import Chosen, fastest_that_fit
from rlgraph.passes.placement.search.colocation import PartitionBlock
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.problem import PlacementProblem

Sets = tuple[tuple[str, ...], ...]


def hybridflow(problem: PlacementProblem) -> Chosen | None:
    """The plan that its cost prefers; None if nothing fits."""
    search = _Algorithm1(problem)
    best, kept = inf, None
    for sets in partitions(list(dict.fromkeys(component.model_name for component in problem.components))):
        least = [search.least(own) for own in sets]
        if None in least:
            continue
        for allocation in allocations(search.units, [each or 1 for each in least]):
            cost = search.cost(sets, allocation)
            if cost < best:
                best, kept = cost, (sets, allocation)
    return search.plan(*kept) if kept else None


def partitions(models: Sequence[str]) -> Iterator[Sets]:
    """All set partitions."""
    if not models:
        yield ()
        return
    first, rest = models[0], models[1:]
    for found in partitions(rest):
        yield ((first,), *found)
        for at, own in enumerate(found):
            yield (*found[:at], (first, *own), *found[at + 1 :])


def allocations(units: int, least: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to give each set at least so many, and all units to some set."""
    spare = units - sum(least)
    if spare < 0:
        return
    places = range(spare + len(least) - 1)
    for bars in combinations(places, len(least) - 1):
        edges = (-1, *bars, len(places))
        yield tuple(low + after - before - 1 for low, before, after in zip(least, edges, edges[1:], strict=False))


@dataclass(frozen=True)
class _Fitted:
    """A set on some units: an option for each component, and its seconds in each stage."""

    options: dict[int, Option]
    stages: tuple[float, ...]


class _Algorithm1:
    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        (island,) = problem.cluster.islands
        self.island = island
        self.unit = island.per_node if island.nodes > 1 else 1
        self.units = island.device_count // self.unit
        self.known: dict[tuple[tuple[str, ...], int], _Fitted | None] = {}

    def least(self, models: tuple[str, ...]) -> int | None:
        """The fewest units on which a set fits."""
        return next((units for units in range(1, self.units + 1) if self.fitted(models, units)), None)

    def fitted(self, models: tuple[str, ...], units: int) -> _Fitted | None:
        """Algorithm 2 for each model of a set; what is found is kept for other placements."""
        key = (models, units)
        if key not in self.known:
            self.known[key] = self.fit(models, units)
        return self.known[key]

    def fit(self, models: tuple[str, ...], units: int) -> _Fitted | None:
        problem, devices = self.problem, units * self.unit
        # Training first, generation in the memory that is left.
        numbers = [at for at, component in enumerate(problem.components) if component.model_name in models]
        numbers.sort(key=lambda at: ("train", "read", "generate").index(problem.components[at].work))
        options = {number: self.legal(number, devices) for number in numbers}
        chosen = fastest_that_fit(problem, self.island, options)
        if chosen is None:
            return None
        stages = [0.0, 0.0, 0.0]
        for number, option in chosen.items():
            for task, seconds in zip(problem.components[number].tasks, option.seconds, strict=True):
                op = problem.tasks[task].op
                stages[0 if op == "generate" else 2 if op == "train" else 1] += seconds
        return _Fitted(chosen, tuple(stages))

    def legal(self, number: int, devices: int) -> list[Option]:
        """Tensor parallelism within a machine, and as many copies as there are devices for."""
        found: dict[object, Option] = {}
        for option in settled(self.problem.options.all_options(self.problem.components[number], self.island, devices)):
            deployment = option.deployment
            key = (deployment.with_replicas(1), option.offload)
            if deployment.tp <= self.island.per_node and (key not in found or deployment.dp > found[key].deployment.dp):
                found[key] = option
        return list(found.values())

    def cost(self, sets: Sets, allocation: Sequence[int]) -> float:
        """The paper's `d_cost`."""
        found = [self.fitted(own, units) for own, units in zip(sets, allocation, strict=True)]
        if None in found:
            return inf
        return sum(map(max, zip(*(each.stages for each in found if each), strict=True)))

    def plan(self, sets: Sets, allocation: Sequence[int]) -> Chosen:
        numbers = {
            models: tuple(at for at, p in enumerate(self.problem.components) if p.model_name in models)
            for models in sets
        }
        blocks = tuple(PartitionBlock(numbers[models], 0) for models in sets)
        options: dict[int, Option] = {}
        for models, units in zip(sets, allocation, strict=True):
            found = self.fitted(models, units)
            assert found
            options |= found.options
        devices = tuple(units * self.unit for units in allocation)
        return Chosen(blocks, devices, tuple(options[number] for number in range(len(options))))
