"""Finds the best plan after a change of what was asked, and says what the change saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from rlgraph.explain.placement_strategies import Sharing, pool_components
from rlgraph.explain.variants import Variant
from rlgraph.passes.compilation.finalists import choose_by_simulation, with_simulated_seconds
from rlgraph.passes.compilation.stream_blocks import streaming_gains
from rlgraph.passes.placement.choose import SPARE, PlacementChoice, candidate_partitions, fuse_mode
from rlgraph.passes.placement.known_answer import plan_elsewhere
from rlgraph.passes.placement.plan_from_search import plan_from_search
from rlgraph.passes.placement.query import PlacementQuery, make_problem
from rlgraph.passes.placement.search.allocation_boxes import AllocationBoxes
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.option import SeparateReadingOption
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.progress import OutOfTime
from rlgraph.passes.placement.search.search import Search

COARSE = 0.03
"""The search gap, as a share, for a changed question: a change saves at least what is reported."""


@dataclass(frozen=True)
class EvaluatedChange:
    """A change, and the best plan after it."""

    name: str
    detail: str
    seconds: float | None
    """The seconds of a step; None if nothing fits, or nothing was found."""
    price: float | None
    saves: float
    """The saved share of what is minimized; negative if that grows, and minus infinity if nothing fits."""
    over: bool = False
    """Whether the time was over before anything was found, so that the change may still fit, or help."""
    beside: float | None = None
    """The seconds of the step that it is compared with, if these are not the search's."""
    said: bool = False
    """Whether lines of a schedule are all that it takes: no other devices, no other algorithm."""


def evaluate_change(
    choice: PlacementChoice,
    other: Variant,
    near: Set[Sharing] | None = None,
    ends: float = inf,
    told: float | None = None,
) -> EvaluatedChange:
    """Return the best plan after a change; of some ways to share pools, if these are given, and the best that is found
    until `ends`. told: seconds of a step of the choice by the simulator, where work overlaps in it."""
    problem = make_problem(_nearer(choice, other.question))
    all_blocks = candidate_partitions(problem, other.question)
    near_blocks = [blocks for blocks in all_blocks if near is None or pool_components(blocks) in near]
    found = choice.search_result
    known = _first_plan(choice, problem, near_blocks, other)
    try:
        best = Search(
            problem,
            near_blocks,
            COARSE,
            ends - monotonic(),
            SPARE,
            fuse=fuse_mode(problem, other.question),
            known=known,
            control=other.question.control,
            most_nodes=other.question.most_nodes,
            near=True,
        ).run_or_time_out()
    except OutOfTime:
        return EvaluatedChange(other.name, other.detail, None, None, -inf, over=True)
    ended = other.question.control.stopped or monotonic() >= ends
    if ended and best is not None and known is not None and best.options is known.options:
        # What is there already was not compared with all others.
        return EvaluatedChange(other.name, other.detail, None, None, -inf, over=True)
    if other.helps and (best is None or best.value >= found.value):
        best, problem = found, choice.problem
    if best is None:
        return EvaluatedChange(other.name, other.detail, None, None, -inf)
    if problem.staleness_steps and not choice.problem.staleness_steps and best.value < choice.search_result.value:
        # The other step is alone: what a steady state leaves out is not a saving.
        alternative = PlacementChoice(plan_from_search(other.question, problem, best), best, problem, other.question)
        alternative = with_simulated_seconds(
            choose_by_simulation(alternative, replace(choice, question=other.question))
        )
        seconds = alternative.simulated_step_s or alternative.search_result.seconds
        value = problem.objective_value(seconds, alternative.search_result.blocks, alternative.search_result.devices)
        best = replace(alternative.search_result, seconds=seconds, value=value)
        beside = told or choice.search_result.seconds
        before = choice.problem.objective_value(beside, choice.search_result.blocks, choice.search_result.devices)
        return EvaluatedChange(
            other.name, other.detail, seconds, step_price(problem, best), 1 - value / before, beside=beside
        )
    saves = 1 - best.value / choice.search_result.value if choice.search_result.value else 0.0
    return EvaluatedChange(other.name, other.detail, best.seconds, step_price(problem, best), saves)


def _first_plan(
    choice: PlacementChoice, problem: PlacementProblem, candidates: Sequence[Blocks], other: Variant
) -> SearchResult | None:
    """Return the plan that has to be beaten after a change: the chosen one as it would be then, or as it is if that is
    no slower and nothing is lost; None where it would not fit."""
    before = choice.search_result.before_fusing or choice.search_result
    boxes = AllocationBoxes(problem.cluster, candidates, other.question.most_nodes)
    after = None
    if before.blocks in candidates and boxes.fewest_devices(before.blocks, before.devices) == before.devices:
        after = plan_elsewhere(before, choice.problem, problem)
    if other.helps and (after is None or after.value >= before.value):
        return before
    return after


def _nearer(choice: PlacementChoice, question: PlacementQuery) -> PlacementQuery:
    """Return a question without a way to read models that the chosen plan does not use either: it saves little, and
    where options are not those of the choice, to make those of it takes a quarter of a search."""
    if question.cluster is choice.question.cluster and question.workload == choice.question.workload:
        return question
    apart = any(isinstance(option, SeparateReadingOption) for option in choice.search_result.options)
    return question if apart else replace(question, reads_apart=False)


def streamed_changes(choice: PlacementChoice, ends: float) -> Iterator[EvaluatedChange]:
    """Yield a change for each table that could stream in the chosen plan."""
    problem, best = choice.problem, choice.search_result
    for stream in streaming_gains(choice, ends):
        saves = 1 - stream.streamed_seconds / stream.whole_batch_seconds if stream.whole_batch_seconds else 0.0
        price = step_price(problem, replace(best, seconds=stream.streamed_seconds))
        line = f"`stream {stream.table}(block={stream.block})`"
        yield EvaluatedChange(
            line, "", stream.streamed_seconds, price, saves, beside=stream.whole_batch_seconds, said=True
        )


def step_price(problem: PlacementProblem, best: SearchResult) -> float:
    """Return the price of a step in US dollars."""
    return best.seconds * problem.dollars_per_second(best.blocks, best.devices)
