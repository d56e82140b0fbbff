"""The plan for one question as a plan for another, without a search."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.plan_from_search import plan_from_search
from rlgraph.passes.placement.query import PlacementQuery, make_problem
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.option import Option, SeparateReadingOption
from rlgraph.passes.placement.search.problem import PlacementProblem


def answer_with_less_room(choice: PlacementChoice, question: PlacementQuery) -> PlacementChoice | None:
    """Return the plan of a choice as the answer to a question that differs in nothing but that models need more memory,
    and may do less: if there is room for it, nothing is better. None where there is not, or where it does what the
    question may not allow: offload models, or share pipelines."""
    result = choice.search_result
    if result.pieces or result.before_fusing or any(option.offload for option in result.options):
        return None
    question = replace(question, read_separately=choice.question.read_separately)
    problem = make_problem(question)
    options = tuple(
        problem.options.same_option(component, option)
        for component, option in zip(problem.components, result.options, strict=True)
    )
    found = _with_options(result, problem, options)
    if found is None or found.is_tight != result.is_tight or not isclose(found.seconds, result.seconds):
        return None
    found = replace(result, options=options)
    return PlacementChoice(plan_from_search(question, problem, found), found, problem, question)


def plan_elsewhere(result: SearchResult, known: PlacementProblem, problem: PlacementProblem) -> SearchResult | None:
    """Return the plan that was found for a known problem as one of another, whose devices, rows or program are others:
    pools and splits stay, seconds change. None where it is no plan there, and where it offloads models, shares
    pipelines, or reads a model separately from its training: there more than seconds would change."""
    names = [component.name for component in known.components]
    settled = not result.pieces and not any(
        option.offload or isinstance(option, SeparateReadingOption) for option in result.options
    )
    if not settled or names != [component.name for component in problem.components]:
        return None
    options = {
        number: problem.options.same_option(
            problem.components[number], result.options[number], problem.pool_node_group(block)
        )
        for block in result.blocks
        for number in block.components
    }
    return _with_options(result, problem, tuple(options[number] for number in sorted(options)))


def _with_options(result: SearchResult, problem: PlacementProblem, options: tuple[Option, ...]) -> SearchResult | None:
    """Return a plan with the same pools and these options; None where they have no room."""
    has_room = all(
        problem.can_share_pool([options[number] for number in block.components], problem.pool_node_group(block))
        for block in result.blocks
    )
    if not has_room:
        return None
    seconds = problem.step_seconds_with_options(result.blocks, options)
    value = problem.objective_value(seconds, result.blocks, result.devices)
    tight = problem.is_memory_tight(result.blocks, options)
    return replace(result, options=options, seconds=seconds, value=value, bound=0.0, is_tight=tight)
