"""The ways to share pools that systems for RLHF have, and how well each would do.

`all colocated` is what DeepSpeed-Chat does, `split` NeMo-Aligner, `standalone` OpenRLHF (HybridFlow, arXiv 2409.19256,
table 1); `disaggregated` is that of asynchronous systems, where generation has devices of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.catalog.clusters.units import format_quantity
from rlgraph.ir.graph import Program
from rlgraph.passes.cost.peak_memory import usable_device_bytes
from rlgraph.passes.placement.choose import PlacementChoice, candidate_partitions, search_before_deadline
from rlgraph.passes.placement.query import make_problem
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.partitions import allowed_pool_sizes
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.progress import OutOfTime

OVER = "the time was over"
"""The reason given for a search that had no plan when `--search-seconds` were over."""

Sharing = frozenset[frozenset[int]]
"""The components of each pool."""


@dataclass(frozen=True)
class PlacementStrategy:
    """A way to place models in pools, and the best plan that has it."""

    name: str
    shares: Sharing
    problem: PlacementProblem
    found: SearchResult | None
    refused: str = ""
    """The reason why there is no such plan."""
    chosen: bool = False
    """Whether the best plan places the models so."""


def placement_strategies(choice: PlacementChoice, ends: float = inf) -> list[PlacementStrategy]:
    """Return the strategies that apply to the program, the first of two that are the same. The last one is what was
    chosen, if it is none of them, as where a model is read in another pool than it is trained. ends: of their
    searches, by the monotonic clock."""
    problem, chosen = choice.problem, pool_components(choice.search_result.blocks)
    last = PlacementStrategy("what was chosen", chosen, problem, choice.search_result, chosen=True)
    if choice.question.read_separately:
        question = replace(choice.question, read_separately=())
        choice, chosen = replace(choice, problem=make_problem(question), question=question), frozenset()
        problem = choice.problem
    partitions = candidate_partitions(problem, choice.question)
    tried, seen = [], set[Sharing]()
    for name, wanted in _named(problem.components, choice.question.program).items():
        if wanted in seen:
            continue
        seen.add(wanted)
        allowed = [blocks for blocks in partitions if pool_components(blocks) == wanted]
        if wanted == chosen:
            tried.append(PlacementStrategy(name, chosen, problem, choice.search_result, chosen=True))
        elif not allowed:
            tried.append(PlacementStrategy(name, wanted, problem, None, _unallowed(choice, wanted)))
        else:
            tried.append(_searched(name, wanted, choice, allowed, ends))
    return tried if chosen in seen else [*tried, last]


def _searched(
    name: str, wanted: Sharing, choice: PlacementChoice, allowed: Sequence[Blocks], ends: float
) -> PlacementStrategy:
    """Return the strategy with the best plan of a search, or the reason why there is none."""
    control = choice.question.control
    control.doing = f"{name} in place of what was chosen"
    try:
        best = search_before_deadline(ends, choice.problem, choice.question, allowed)
    except KeyboardInterrupt:
        control.stop("what was not searched by now is left out")
        return PlacementStrategy(name, wanted, choice.problem, None, OVER)
    except OutOfTime:
        return PlacementStrategy(name, wanted, choice.problem, None, OVER)
    refused = "" if best else f"does not fit: {_unfit(choice.problem, allowed[0])}"
    return PlacementStrategy(name, wanted, choice.problem, best, refused)


def pool_components(blocks: Blocks) -> Sharing:
    """Return the components of each pool."""
    return frozenset(frozenset(block.components) for block in blocks)


def pools_text(problem: PlacementProblem, found: SearchResult) -> str:
    """Return which components share devices: `actor + ref (8), critic (4)`."""
    blocks = zip(found.blocks, found.devices, strict=True)
    return ", ".join(f"{' + '.join(pool_models(problem, block.components))} ({devices:,})" for block, devices in blocks)


def pool_models(problem: PlacementProblem, numbers: Sequence[int]) -> list[str]:
    """Return the models of a pool; for a model with a component elsewhere, its work here."""
    components = [problem.components[number] for number in numbers]
    here = Counter(component.model_name for component in components)
    everywhere = Counter(component.model_name for component in problem.components)
    names = [
        component.model_name
        if here[component.model_name] == everywhere[component.model_name]
        else _component_name(component)
        for component in components
    ]
    return list(dict.fromkeys(names))


def _component_name(component: Component) -> str:
    """Return a name that tells a component from the others of its model."""
    named = component.work == "generate" or component.separated_by
    return component.name if named else f"{component.model_name}.{component.work}"


def _named(components: Sequence[Component], program: Program) -> dict[str, Sharing]:
    """Return the components in each pool of each strategy, by its name."""
    by_model: dict[str, set[int]] = {}
    for number, component in enumerate(components):
        by_model.setdefault(component.model_name, set()).add(number)
    generating = {component.model_name for component in components if component.work == "generate"}
    copies = {model.name for model in program.models if model.copy_of in generating and model.frozen}
    generation = {number for number, component in enumerate(components) if component.work == "generate"}
    policies = {number for number, component in enumerate(components) if component.model_name in generating | copies}
    everything = set(range(len(components)))
    by_name = {
        "all colocated": [everything],
        "split": [policies, everything - policies],
        "standalone": list(by_model.values()),
        "disaggregated": [generation, everything - generation],
    }
    return {name: frozenset(map(frozenset, numbers)) for name, numbers in by_name.items() if all(numbers)}


# What cannot be


def _unallowed(choice: PlacementChoice, wanted: Sharing) -> str:
    """Return why no candidate shares pools so."""
    if len(wanted) > choice.question.cluster.device_count:
        return f"does not fit: {len(wanted)} pools on {choice.question.cluster.device_count} devices"
    return "the schedule says otherwise"


def _unfit(problem: PlacementProblem, blocks: Blocks) -> str:
    """Return why a strategy does not fit on one choice of node groups (islands): the pool that is too full, or pools
    that need too many devices together."""
    needed = []
    for block in blocks:
        island = problem.pool_node_group(block)
        fewest = [_fewest(problem, number, island) for number in block.components]
        if None in fewest:
            name = problem.components[block.components[fewest.index(None)]].name
            return f"`{name}` does not fit on {island.device.name}"
        needed.append((max(size or 0 for size in fewest), block))
    total = sum(size for size, _ in needed)
    if total > problem.cluster.device_count:
        counts = ", ".join(f"{size} for {_names(problem, block.components)}" for size, block in needed)
        return f"{total} devices are needed ({counts}), and there are {problem.cluster.device_count}"
    crowd = max((block for _, block in needed), key=lambda block: _least(problem, blocks, block.components))
    room = usable_device_bytes(problem.pool_node_group(crowd), problem.constants)
    names, least = _names(problem, crowd.components), _least(problem, blocks, crowd.components)
    needed_bytes, usable_room = format_quantity(least, "bytes"), format_quantity(room, "bytes")
    return f"together {names} need {needed_bytes} on each device, and {usable_room} can be used"


def _fewest(problem: PlacementProblem, number: int, island: NodeGroup) -> int | None:
    """Return the least number of devices that a component needs; None if it does not fit on all of them."""
    return next(
        (
            size
            for size in allowed_pool_sizes(island)
            if problem.options.undominated_options(problem.components[number], island, size)
        ),
        None,
    )


def _least(problem: PlacementProblem, blocks: Blocks, components: Sequence[int]) -> float:
    """Return the bytes on a device of a pool that has all devices, with each component at its smallest."""
    island = problem.pool_node_group(next(block for block in blocks if block.components == components))
    options = [
        problem.options.undominated_options(problem.components[number], island, island.device_count)
        for number in components
    ]
    stay = [min(option.resident for option in group) for group in options]
    peaks = [min(option.peak for option in group) for group in options]
    return max(peak + sum(stay) - resident for peak, resident in zip(peaks, stay, strict=True))


def _names(problem: PlacementProblem, components: Sequence[int]) -> str:
    """Return the models of a pool as words."""
    return ", ".join(f"`{name}`" for name in pool_models(problem, components))
