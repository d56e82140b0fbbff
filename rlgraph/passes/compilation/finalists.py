"""Of several plans the one that the simulator prefers, where work overlaps: where rows stream or move, or steps are
under way side by side. It knows what the search leaves out: blocks and tails, how lengths differ from step to step, in
which order pools serve, and rows of several orders that are sampled together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from rlgraph.backends.sim.steady_state import FEWEST
from rlgraph.passes.compilation.blocks import STEPS, with_blocks
from rlgraph.passes.compilation.overlap import Interrupted, Timed, overlapped, streams
from rlgraph.passes.compilation.tails import with_tails
from rlgraph.passes.placement.choose import Choice, problem_of
from rlgraph.passes.placement.runners_up import soonest
from rlgraph.passes.placement.search.incumbent import Found
from rlgraph.passes.placement.search.problem import Problem

TAILS = 0.05
"""Share of a step that other tails than the usual one can save at most, beside the blocks that are best with it."""

STREAMED, MOVED = 0.05, 0.35
"""By which share a step may be faster than if all that takes rows as they come began with the first of them: where rows
stream, since both are approximations, and where the last ones move, since devices are free before."""


def better(first: Choice, *others: Choice, steps: int = FEWEST) -> Choice:
    """One of them, with the best blocks and tails that it can have where the schedule leaves these open, as an answer
    to the first one's question. What is proven is proven of plans without blocks and tails. steps: that are simulated
    of each."""
    every = [*distinct((first, *others))]
    if len(every) == 1:
        try:
            return refined(first)
        except Interrupted as interrupted:
            return interrupted.choice
    best, least = None, inf

    def told(choice: Choice, made: Choice) -> Choice:
        return made if choice is first else answer(made, first)

    # First those of which nothing is open, which are known at once, and that others may not come near to.
    for choice in sorted(every, key=_open):
        if best is not None and _hopeless(choice, least):
            continue
        try:
            tried = with_seconds(choice, steps, least)
        except Interrupted as interrupted:
            best = best or told(choice, interrupted.choice)
            break
        value = value_of(tried)
        if value is None:
            # It cannot be simulated, or nobody wants to wait for that.
            best = best or told(choice, tried)
            break
        if best is None or value < least:
            best, least = told(choice, tried), value
    assert best is not None
    return best


def _open(choice: Choice) -> bool:
    """Whether a line leaves something to the plan."""
    schedule = choice.question.schedule
    return any(line.open for line in schedule.streams) or any(line.open for line in schedule.tails)


def _hopeless(choice: Choice, least: float) -> bool:
    """Whether no blocks and no tail make a plan as good as another one. Where steps overlap that is not known."""
    if choice.question.in_turn or choice.problem.older:
        return False
    return (1 - (MOVED if choice.question.schedule.tails else STREAMED)) * soonest(choice) >= least


def with_seconds(choice: Choice, steps: int, least: float = inf, timed: Timed | None = None) -> Choice:
    """With blocks and tails, and the simulator's seconds, if it can tell them. least: what another plan minimizes; of
    one that is far behind it the seconds of the first look are enough. timed: what was simulated of the plan before."""
    timed = timed or Timed(STEPS)
    made = refined(choice, timed, least)
    seconds = timed.known(made) if _behind(made, timed, least) else overlapped(made, steps)
    return replace(made, simulated=seconds)


def refined(choice: Choice, timed: Timed | None = None, least: float = inf) -> Choice:
    """With blocks and tails, where the schedule leaves them open: turns about, until none changes, since the best
    blocks are others with a tail than without; no tail but the usual one where it is far behind `least`. Raises
    Interrupted after Ctrl-C."""
    timed, seen = timed or Timed(STEPS), [streams(choice)]
    while True:
        choice = with_blocks(choice, timed)
        if _behind(choice, timed, least):
            return choice
        choice = with_tails(choice, timed)
        if streams(choice) in seen:
            return choice
        seen.append(streams(choice))


def _behind(choice: Choice, timed: Timed, least: float) -> bool:
    """Whether a plan with a tail is slower than another one by more than other tails can save."""
    seconds = timed.known(choice)
    if seconds is None or not choice.plan.tails:
        return False
    value = value_of(replace(choice, simulated=seconds))
    return value is not None and value > (1 + TAILS) * least


def distinct(choices: Iterable[Choice]) -> Iterator[Choice]:
    """Of those that have the same plan the first one."""
    seen = []
    for choice in choices:
        if choice.plan not in seen:
            seen.append(choice.plan)
            yield choice


def answer(other: Choice, first: Choice) -> Choice:
    """A plan that was found for another question, as if it had been found for the first one's: what of the schedule it
    has no use for is left out."""
    asked = replace(first.question, apart=other.question.apart, schedule=other.question.schedule)
    problem = problem_of(asked)
    told = _reckoned(problem, other.found)
    told = replace(told, bound=min(first.found.bound, told.searched.value))
    return replace(other, found=told, problem=problem, question=asked)


def _reckoned(problem: Problem, found: Found) -> Found:
    """A plan as a problem has it, and those before it."""
    seconds = problem.whole(found.blocks, found.options, found.pieces)
    value = problem.value(seconds, found.blocks, found.devices)
    before = None if found.before is None else _reckoned(problem, found.before)
    return replace(found, seconds=seconds, value=value, before=before)


def value_of(choice: Choice) -> float | None:
    """What is minimized, by the simulator."""
    if choice.simulated is None:
        return None
    return choice.problem.value(choice.simulated, choice.found.blocks, choice.found.devices)
