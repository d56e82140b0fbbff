"""Chooses among several plans by simulation, where work overlaps: where rows stream or move, or steps run concurrently.
The simulator models what the search leaves out: blocks and tails, lengths that differ from step to step, the order in
which pools serve requests, and rows of several requests that are sampled together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from rlgraph.passes.compilation.overlap_simulation import (
    ChoiceInterrupted,
    SimulationCache,
    simulate_step_seconds,
    steady_step_count,
    streaming_key,
)
from rlgraph.passes.compilation.stream_blocks import STEPS, with_best_block_sizes
from rlgraph.passes.compilation.tails import with_best_tail_moves
from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.next_best_plans import ideal_streaming_objective_value, streamed_tables
from rlgraph.passes.placement.query import make_problem
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.problem import PlacementProblem

TAILS = 0.05
"""The largest share of a step that other tails can save over the usual tail with its best blocks."""

STREAMED, MOVED = 0.05, 0.35
"""The share by which a step may be shorter than if all streaming work began with the first rows: where rows stream,
since both estimates are approximate, and where the last rows move, since devices are free earlier."""


LATE = 0.1
"""The share by which a plan may be slower than the best one by the timetable, where steps overlap, to be simulated."""


def choose_by_simulation(first: PlacementChoice, *others: PlacementChoice) -> PlacementChoice:
    """Return the best of some plans, with the best blocks and tails where the schedule leaves these open, as an answer
    to the first one's question. Bounds hold for plans without blocks and tails."""
    candidates = [*distinct_plans((first, *others))]
    if len(candidates) == 1:
        try:
            return refine_block_sizes_and_tail_moves(first)
        except ChoiceInterrupted as interrupted:
            return interrupted.choice
    best, least = None, inf

    def answer_to_first_query(choice: PlacementChoice, simulated: PlacementChoice) -> PlacementChoice:
        return simulated if choice is first else adapt_to_first_query(simulated, first)

    # Plans with nothing open come first: they need one simulation, and may rule out others.
    for choice in sorted(candidates, key=_open):
        if best is not None and _hopeless(choice, first, least):
            continue
        try:
            tried = simulate_choice(choice, least)
        except ChoiceInterrupted as interrupted:
            best = best or answer_to_first_query(choice, interrupted.choice)
            break
        value = simulated_objective_value(tried)
        if value is None:
            # The plan cannot be simulated, or the user has interrupted that.
            best = best or answer_to_first_query(choice, tried)
            break
        if best is None or value < least:
            best, least = answer_to_first_query(choice, tried), value
    assert best is not None
    return best


def _open(choice: PlacementChoice) -> bool:
    """Return whether a line of the schedule leaves blocks or a tail to the plan."""
    schedule = choice.question.schedule
    return any(line.is_undecided for line in schedule.streams) or any(line.is_undecided for line in schedule.tails)


def _hopeless(choice: PlacementChoice, first: PlacementChoice, least: float) -> bool:
    """Return whether no blocks or tails can make a plan as good as `least`; where steps overlap whether it is slower
    than the first one by `LATE` by the timetable, and nothing streams or moves."""
    if first.problem.staleness_steps:
        streams = streamed_tables(choice.question.schedule)
        return not streams and _steady_value(choice, first) > (1 + LATE) * first.search_result.value
    return (1 - (MOVED if choice.question.schedule.tails else STREAMED)) * ideal_streaming_objective_value(
        choice
    ) >= least


def _steady_value(choice: PlacementChoice, first: PlacementChoice) -> float:
    """Return what is minimized of a plan, as an answer to the first one's question; in one pool no steps overlap."""
    if len(choice.search_result.blocks) == 1 and choice.question.sequential_steps:
        return choice.search_result.value
    return adapt_to_first_query(choice, first).search_result.value


def simulate_choice(
    choice: PlacementChoice, least: float = inf, timed: SimulationCache | None = None
) -> PlacementChoice:
    """Return a choice with blocks and tails and its simulated seconds, if it can be simulated. least: the value of
    another plan; for a plan that is far behind it, the seconds of the short simulation suffice. timed: earlier
    simulations of the plan."""
    timed = timed or SimulationCache(STEPS)
    candidate = refine_block_sizes_and_tail_moves(choice, timed, least)
    known = timed.steps >= steady_step_count(candidate) or _behind(candidate, timed, least)
    return with_simulated_seconds(
        replace(candidate, simulated_step_s=timed.cached_seconds(candidate) if known else None)
    )


def with_simulated_seconds(choice: PlacementChoice) -> PlacementChoice:
    """Return a choice with its simulated seconds, which it may have already."""
    if choice.simulated_step_s is not None:
        return choice
    return replace(choice, simulated_step_s=simulate_step_seconds(choice))


def refine_block_sizes_and_tail_moves(
    choice: PlacementChoice, timed: SimulationCache | None = None, least: float = inf
) -> PlacementChoice:
    """Return a choice with blocks and tails where the schedule leaves them open. They are chosen alternately until none
    changes, since the best blocks with a tail differ from those without. Only the usual tail is tried for a choice far
    behind `least`. Raises Interrupted after Ctrl-C."""
    timed, seen = timed or SimulationCache(STEPS), [streaming_key(choice)]
    while True:
        choice = with_best_block_sizes(choice, timed)
        if _behind(choice, timed, least):
            return choice
        choice = with_best_tail_moves(choice, timed)
        if streaming_key(choice) in seen:
            return choice
        seen.append(streaming_key(choice))


def _behind(choice: PlacementChoice, timed: SimulationCache, least: float) -> bool:
    """Return whether a plan with a tail is worse than `least` by more than other tails can save."""
    seconds = timed.cached_seconds(choice)
    if seconds is None or not choice.plan.tails:
        return False
    value = simulated_objective_value(replace(choice, simulated_step_s=seconds))
    return value is not None and value > (1 + TAILS) * least


def distinct_plans(choices: Iterable[PlacementChoice]) -> Iterator[PlacementChoice]:
    """Return the choices without those whose plan an earlier one has."""
    seen = []
    for choice in choices:
        if choice.plan not in seen:
            seen.append(choice.plan)
            yield choice


def adapt_to_first_query(other: PlacementChoice, first: PlacementChoice) -> PlacementChoice:
    """Return a plan that was found for another question as an answer to the first one's; lines of the schedule that it
    does not use are left out."""
    asked = replace(first.question, read_separately=other.question.read_separately, schedule=other.question.schedule)
    problem = make_problem(asked)
    searched = _recomputed(problem, other.search_result)
    searched = replace(searched, bound=min(first.search_result.bound, searched.result_before_fusing.value))
    return replace(other, search_result=searched, problem=problem, question=asked)


def _recomputed(problem: PlacementProblem, result: SearchResult) -> SearchResult:
    """Return a search result with its seconds and value, and those of the results before it, recomputed for a
    problem."""
    seconds = problem.step_seconds_with_options(result.blocks, result.options, result.pieces)
    value = problem.objective_value(seconds, result.blocks, result.devices)
    before = None if result.before_fusing is None else _recomputed(problem, result.before_fusing)
    return replace(result, seconds=seconds, value=value, before_fusing=before)


def simulated_objective_value(choice: PlacementChoice) -> float | None:
    """Return what is minimized, by the simulated seconds; None if it was not simulated."""
    if choice.simulated_step_s is None:
        return None
    return choice.problem.objective_value(
        choice.simulated_step_s, choice.search_result.blocks, choice.search_result.devices
    )
