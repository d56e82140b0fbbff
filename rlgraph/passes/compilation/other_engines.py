"""Plans that train with another engine than the preferred one, where they are faster."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.passes.placement.choose import PlacementChoice, choose_below
from rlgraph.passes.placement.query import PlacementQuery, make_problem, queries_with_other_engines
from rlgraph.passes.placement.search.limit import Limit
from rlgraph.passes.placement.search.progress import OutOfTime

FASTER = 0.05
"""The share of a step, or of its price, that another engine must save: the preferred one is taken for what else it
can."""


def faster_with_other_engine(choice: PlacementChoice, ends: float) -> PlacementChoice:
    """Return a choice, or the best plan with another engine for a training that the schedule leaves open, if that is
    better by `FASTER`: it may train slower, and hand its weights over sooner. ends: the monotonic time at which to stop
    searching."""
    best = choice
    for variant in queries_with_other_engines(replace(choice.question, read_separately=(), offload=False)):
        try:
            value = (1 - FASTER) * best.search_result.value
            other = choose_below(ends, variant, best, value) if _may_be_faster(choice, variant) else None
        except OutOfTime:
            break
        if other is not None:
            bound = min(best.search_result.bound, other.search_result.bound)
            best = replace(other, search_result=replace(other.search_result, bound=bound))
    return best


def _may_be_faster(choice: PlacementChoice, variant: PlacementQuery) -> bool:
    """Return whether the plan of a choice would be better by `FASTER` with one of its models trained as the variant of
    its question has it, whether there is room for that or not. What it may save is in the transfer of new weights: the
    preferred engine trains no slower."""
    result = choice.search_result
    home = choice.problem.make_colocation(result.blocks).pool_of_component
    spared = sum(choice.problem.sync_seconds(home, result.options))
    if spared < FASTER * result.seconds:
        return False
    problem = make_problem(replace(variant, read_separately=choice.question.read_separately))
    for number in dict.fromkeys(source for source, _ in problem.sync_pairs):
        component, devices = problem.components[number], result.devices[home[number]]
        island = problem.pool_node_group(result.blocks[home[number]])
        limit = Limit(result.options[number].total + spared)
        for option in problem.options.undominated_options(component, island, devices, limit):
            options = [*result.options[:number], option, *result.options[number + 1 :]]
            seconds = problem.step_seconds_with_options(result.blocks, options)
            value = problem.objective_value(seconds, result.blocks, result.devices)
            if value < (1 - FASTER) * result.value:
                return True
    return False
