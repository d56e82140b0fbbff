"""The best plan for one question as the best one for another, in which the same work needs more memory."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.plan_from_search import plan_from_search
from rlgraph.passes.placement.query import PlacementQuery, make_problem


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
    has_room = all(
        problem.can_share_pool([options[number] for number in block.components], problem.pool_node_group(block))
        for block in result.blocks
    )
    if (
        not has_room
        or problem.is_memory_tight(result.blocks, options) != result.is_tight
        or not isclose(problem.step_seconds_with_options(result.blocks, options), result.seconds)
    ):
        return None
    found = replace(result, options=options)
    return PlacementChoice(plan_from_search(question, problem, found), found, problem, question)
