"""Plans beside the best one, which may be better than it with streams or tails: a search lays out whole batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rlgraph.ir.schedule import Schedule
from rlgraph.passes.placement.choose import Choice, candidates, planned, problem_of, search_until


def streamed(schedule: Schedule) -> tuple[str, ...]:
    """Tables of which rows go on before all have ended."""
    return tuple(dict.fromkeys([line.table for line in schedule.streams] + [line.table for line in schedule.tails]))


def without_open(schedule: Schedule) -> Schedule:
    """Without the streams and tails of which it leaves something to the plan."""
    tails = tuple(line for line in schedule.tails if not line.open)
    moved = {line.table for line in tails}
    streams = tuple(line for line in schedule.streams if not line.open or line.table in moved)
    return replace(schedule, streams=streams, tails=tails)


def beside(choices: Sequence[Choice], most: int, ends: float) -> Iterator[Choice]:
    """The best plans of so many ways to share pools that are none of those of some choices, the best first, for the
    question of the last one. ends: of their searches; raises OutOfTime where that is too early for one."""
    question = replace(choices[-1].question, apart=())
    problem, seen = problem_of(question), {each.found.blocks for each in choices if not each.question.apart}
    every = candidates(problem, question)
    for _ in range(most):
        found = search_until(ends, problem, question, [blocks for blocks in every if blocks not in seen])
        if found is None:
            return
        seen.add(found.blocks)
        yield Choice(planned(question, problem, found), found, problem, question)


def soonest(choice: Choice) -> float:
    """What is minimized, as if all that takes the rows of its tables as they come began with the first of them."""
    asked, found = choice.question, choice.found
    problem = problem_of(replace(asked, streamed=streamed(asked.schedule)))
    return problem.value(problem.whole(found.blocks, found.options, found.pieces), found.blocks, found.devices)
