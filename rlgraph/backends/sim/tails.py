"""When rows end that other copies of a model go on with, in a simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlgraph.backends.sim.batching import Ends, Rows
from rlgraph.passes.cost.sampled import Pace, Sampled
from rlgraph.passes.cost.sampled import Together as Copy

Sampling = Callable[[int, Sequence[float], Sequence[float]], Sampled]
"""What a copy takes to sample rows: tokens of their prompts and of their answers."""


def moved(
    copies: Sequence[Rows], ends: Ends, now: float, to: Mapping[tuple[int, int], int], sampling: Sampling
) -> list[list[float]]:
    """The seconds after which each row of each copy has ended, where some go on elsewhere from a moment on: what there
    is of them is read again there. copies: their rows; ends: when these would have ended; to: by copy and row the copy
    that it goes to."""
    followed = [_followed(rows) for rows in copies]
    left = {copy: _left(followed[copy], copies[copy], now) for copy in {copy for copy, _ in to}}
    found = [list(own) for own in ends]
    for taking in sorted(set(to.values())):
        prompts, answers, places = list[float](), list[float](), list[tuple[int, int]]()
        for (copy, row), target in to.items():
            if target == taking:
                places.append((copy, row))
                prompts.append(copies[copy].prompts[row] + copies[copy].answers[row] - left[copy][row])
                answers.append(left[copy][row])
        own, pace = followed[taking], sampling(taking, prompts, answers).pace
        assert pace is not None
        number = own.join(now, pace, answers, more=True)
        after = own.ends()
        # Who has ended has ended, and nobody ends sooner because of others.
        found[taking] = [old if old <= now else max(old, new) for old, new in zip(found[taking], after[0], strict=True)]
        for (copy, row), end in zip(places, after[number], strict=True):
            found[copy][row] = end
    return found


def _followed(rows: Rows) -> Copy:
    """A copy from the beginning of its rows on."""
    copy = Copy()
    copy.join(0.0, rows.alone.pace or Pace(0.0, 0.0, 1, lambda count: 0.0), rows.answers)
    return copy


def _left(copy: Copy, rows: Rows, now: float) -> list[float]:
    """Of each row the tokens that are not there yet, at least one."""
    going = {row: left for _, row, left in copy.going(now)}
    # Rows that have not begun are the last ones.
    last = max(going, default=-1)
    return [max(1.0, going.get(row, answer if row > last else 1.0)) for row, answer in enumerate(rows.answers)]
