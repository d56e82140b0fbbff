"""Tables that stream although no line of a schedule says so: where the simulator says that it pays."""

from __future__ import annotations

import sys
from dataclasses import replace

from rlgraph.backends.sim.steady_state import FEWEST
from rlgraph.errors import ProgramError
from rlgraph.ir.schedule import Stream
from rlgraph.passes.compilation.blocks import STEPS, sizes, unstreamed
from rlgraph.passes.compilation.finalists import answer, value_of, with_seconds
from rlgraph.passes.compilation.overlap import Interrupted, Timed
from rlgraph.passes.placement.choose import Choice, choose_until
from rlgraph.passes.placement.search.progress import OutOfTime

PAYS = 0.01
"""Share of a step, or of its price, that streaming has to save which nobody has asked for."""


def with_streams(choice: Choice, ends: float) -> Choice:
    """A choice by whole batches; or, if that is better by `PAYS`, the best one by whole batches among plans that have
    room for rows that stream, with the best blocks. ends: of searching, by the monotonic clock. After Ctrl-C, which is
    told, it is the choice."""
    asked, tables = choice.question, unstreamed(choice)
    if not tables:
        return choice
    lines = (*asked.schedule.streams, *(Stream(table) for table in tables))
    try:
        schedule = replace(asked.schedule, streams=lines)
        other = choose_until(ends, replace(asked, schedule=schedule, offload=False))
        timed = Timed(STEPS)
        if other is None or not _promising(choice, other, timed):
            return choice
        made = with_seconds(other, FEWEST, timed=timed)
    except (OutOfTime, Interrupted, ProgramError):
        # It cannot be simulated, of which `simulate` says why, or there is no time for it.
        return choice
    # The best blocks are no worse than those of the first look.
    return answer(made, choice) if made.simulated is not None else choice


def _promising(choice: Choice, other: Choice, timed: Timed) -> bool:
    """Whether a plan is better with blocks of a middling size than a choice is. timed: of that plan. Raises Interrupted
    after Ctrl-C."""
    streams = other.question.schedule.streams
    blocks = tuple((line.table, line.block or _middling(other, line)) for line in streams)
    streamed = replace(other, plan=replace(other.plan, blocks=blocks))
    try:
        least, found = (
            value_of(replace(each, simulated=own.seconds(each)))
            for each, own in ((choice, Timed(STEPS)), (streamed, timed))
        )
    except KeyboardInterrupt:
        print("interrupted: no table streams that the schedule does not name", file=sys.stderr)
        raise Interrupted(choice) from None
    return least is not None and found is not None and found <= (1 - PAYS) * least


def _middling(choice: Choice, line: Stream) -> int:
    return [*sizes(choice, line)][:2][-1]
