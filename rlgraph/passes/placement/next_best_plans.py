"""Plans next to the best one that may be better than it with streams or tails, since a search schedules whole
batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rlgraph.ir.schedule import Schedule
from rlgraph.passes.placement.choose import PlacementChoice, candidate_partitions, search_before_deadline
from rlgraph.passes.placement.plan_from_search import plan_from_search
from rlgraph.passes.placement.query import make_problem

SHARES = (0.25, 0.5, 0.75)
"""The shares of the devices that the first of two pools gets in plans beside the best one."""


def streamed_tables(schedule: Schedule) -> tuple[str, ...]:
    """Return the tables of which rows go on before all rows are generated."""
    return tuple(dict.fromkeys([line.table for line in schedule.streams] + [line.table for line in schedule.tails]))


def without_undecided_streams(schedule: Schedule) -> Schedule:
    """Return the schedule without the streams and tails that leave something to the plan."""
    tails = tuple(line for line in schedule.tails if not line.is_undecided)
    moved = {line.table for line in tails}
    streams = tuple(line for line in schedule.streams if not line.is_undecided or line.table in moved)
    return replace(schedule, streams=streams, tails=tails)


def next_best_choices(choices: Sequence[PlacementChoice], most: int, ends: float) -> Iterator[PlacementChoice]:
    """Yield the best plans, best first, for up to `most` partitions that none of `choices` has, for the question of the
    last choice. ends: the end of their searches; raises OutOfTime where that is too early for a plan."""
    question = replace(choices[-1].question, read_separately=())
    problem, seen = (
        make_problem(question),
        {choice.search_result.blocks for choice in choices if not choice.question.read_separately},
    )
    partitions = candidate_partitions(problem, question)
    for _ in range(most):
        result = search_before_deadline(
            ends, problem, question, [blocks for blocks in partitions if blocks not in seen]
        )
        if result is None:
            return
        seen.add(result.blocks)
        yield PlacementChoice(plan_from_search(question, problem, result), result, problem, question)


def choices_with_unlike_pools(choices: Sequence[PlacementChoice], ends: float) -> Iterator[PlacementChoice]:
    """Yield the best plans with two pools of other sizes, where the last choice that has two, both on one node group,
    has others. ends: the end of their searches; raises OutOfTime where that is too early for a plan."""
    choice = next((choice for choice in reversed(choices) if len(choice.search_result.blocks) == 2), None)
    if choice is None:
        return
    blocks, problem = choice.search_result.blocks, choice.problem
    if any(block.devices or block.other_islands for block in blocks) or len({block.island for block in blocks}) > 1:
        return
    devices = problem.pool_node_group(blocks[0]).device_count
    for share in SHARES:
        first = int(share * devices)
        sizes = (first, devices - first)
        if not first or sizes == choice.search_result.devices:
            continue
        sized = tuple(replace(block, devices=size) for block, size in zip(blocks, sizes, strict=True))
        found = search_before_deadline(ends, problem, choice.question, [sized])
        if found is not None:
            found = replace(found, blocks=blocks)
            yield PlacementChoice(plan_from_search(choice.question, problem, found), found, problem, choice.question)


def ideal_streaming_objective_value(choice: PlacementChoice) -> float:
    """Return the value that is minimized, if all that takes the rows of streamed tables one by one began with the first
    of them."""
    question, result = choice.question, choice.search_result
    problem = make_problem(replace(question, streamed_tables=streamed_tables(question.schedule)))
    return problem.objective_value(
        problem.step_seconds_with_options(result.blocks, result.options, result.pieces), result.blocks, result.devices
    )
