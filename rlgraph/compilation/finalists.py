"""Of several plans the one that the simulator prefers, where work overlaps: where rows stream or move, or steps are
under way side by side. It knows what the search leaves out: blocks and tails, how lengths differ from step to step, in
which order pools serve, and rows of several orders that are sampled together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rlgraph.backends.sim.steady import FEWEST
from rlgraph.compilation.blocks import with_blocks
from rlgraph.compilation.overlap import Interrupted, overlapped
from rlgraph.compilation.tails import with_tails
from rlgraph.placement.beside import soonest
from rlgraph.placement.choose import Choice, problem_of

STREAMED, MOVED = 0.05, 0.35
"""By which share a step may be faster than if all that takes rows as they come began with the first of them: where rows
stream, since both are approximations, and where the last ones move, since devices are free before."""


def better(first: Choice, *others: Choice, steps: int = FEWEST) -> Choice:
    """One of them, with the best blocks and tails that it can have where the schedule leaves these open, as an answer
    to the first one's question. What is proven is proven of plans without blocks and tails. steps: that are simulated
    of each."""
    rest = list(distinct((first, *others)))[1:]
    try:
        best = with_seconds(first, steps) if rest else refined(first)
    except Interrupted as interrupted:
        return interrupted.choice
    for other in rest:
        least = _value(best)
        if least is None:
            # It cannot be simulated, or nobody wants to wait for that.
            break
        if _hopeless(other, least):
            continue
        try:
            tried = with_seconds(other, steps)
        except Interrupted:
            break
        value = _value(tried)
        if value is None:
            break
        if value < least:
            best = answer(tried, first)
    return best


def _hopeless(choice: Choice, least: float) -> bool:
    """Whether no blocks and no tail make a plan as good as another one. Where steps overlap that is not known."""
    if choice.question.in_turn or choice.problem.older:
        return False
    return (1 - (MOVED if choice.question.schedule.tails else STREAMED)) * soonest(choice) >= least


def with_seconds(choice: Choice, steps: int) -> Choice:
    """With blocks and tails, and the simulator's seconds, if it can tell them."""
    made = refined(choice)
    return replace(made, simulated=overlapped(made, steps))


def refined(choice: Choice) -> Choice:
    """With blocks and tails, where the schedule leaves them open. Raises Interrupted after Ctrl-C."""
    return with_tails(with_blocks(choice))


def distinct(choices: Iterable[Choice]) -> Iterator[Choice]:
    """Of those that have the same plan the first one."""
    seen = []
    for choice in choices:
        if choice.plan not in seen:
            seen.append(choice.plan)
            yield choice


def answer(other: Choice, first: Choice) -> Choice:
    """A plan that was found for another question, as if it had been found for the first one's."""
    asked = replace(first.question, apart=other.question.apart)
    found, problem = other.found, problem_of(asked)
    seconds = problem.whole(found.blocks, found.options, found.pieces)
    value = problem.value(seconds, found.blocks, found.devices)
    before = found.before
    if before is not None:
        whole = problem.whole(before.blocks, before.options)
        before = replace(before, seconds=whole, value=problem.value(whole, before.blocks, before.devices))
    bound = min(first.found.bound, before.value if before else value)
    told = replace(found, seconds=seconds, value=value, bound=bound, before=before)
    return replace(other, found=told, problem=problem, question=asked)


def _value(choice: Choice) -> float | None:
    """What is minimized, by the simulator."""
    if choice.simulated is None:
        return None
    return choice.problem.value(choice.simulated, choice.found.blocks, choice.found.devices)
