"""When the last rows of a table move, and to how many copies, where a schedule leaves that to the plan: what the
simulator says is best, for these lengths and for the cache that these copies have."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace

from rlgraph.errors import ProgramError
from rlgraph.ir.plan import Tail
from rlgraph.ir.schedule import Tail as Line
from rlgraph.passes.compilation.overlap import Interrupted, Timed
from rlgraph.passes.placement.choose import Choice
from rlgraph.passes.placement.search.progress import Line as Shown
from rlgraph.passes.placement.tails import UNDER, copies_of

SHARES = (UNDER, 0.05, 0.1, 0.3, 0.5)
"""Of the rows, that are tried."""

PAYS = 0.001
"""Share of a step that a tail has to save."""


def with_tails(choice: Choice, timed: Timed) -> Choice:
    """A choice with the best tail of each table whose line leaves something open, one table after the other, beside the
    blocks that it has; where none saves anything the table has none. After Ctrl-C it raises Interrupted with what was
    found."""
    shown = Shown("choosing tails")
    with closing(shown):
        for line in choice.question.schedule.tails:
            if line.open:
                search = _Search(choice, line, shown, timed)
                try:
                    search.run()
                except ProgramError:
                    # It cannot be simulated, of which `simulate` says why.
                    continue
                except KeyboardInterrupt:
                    shown.close()
                    print(f"interrupted: the tail of `{line.table}` is the best that was tried", file=sys.stderr)
                    raise Interrupted(search.found()) from None
                choice = search.found()
    return choice


class _Search:
    """For one table."""

    def __init__(self, choice: Choice, line: Line, shown: Shown, timed: Timed) -> None:
        self.choice, self.line, self.shown, self.timed = choice, line, shown, timed
        self.others = tuple(tail for tail in choice.plan.tails if tail.table != line.table)
        self.tried: dict[Tail | None, float] = {}
        """Seconds of a step."""

    def run(self) -> None:
        """Turns about: how many copies for so many rows, how many rows for so many copies, until neither changes."""
        self.seconds(None)
        copies = copies_of(self.line.table, self.choice.plan, self.choice.question.program)
        if copies == 1:
            return
        line, there = self.line, [tail for tail in self.choice.plan.tails if tail.table == self.line.table]
        best = there[0] if there else Tail(line.table, line.under or UNDER, line.on or 1)
        found = None
        while found != best:
            found = best
            if line.on is None:
                powers = (2**power for power in range(copies.bit_length()))
                best = min((replace(best, on=on) for on in powers if on <= copies / 2), key=self.seconds)
            if line.under is None:
                best = min((replace(best, under=under) for under in SHARES), key=self.seconds)

    def seconds(self, tail: Tail | None) -> float:
        if tail not in self.tried:
            self.shown.show(self.shown.elapsed(), lambda: f"{len(self.tried)} of `{self.line.table}` tried")
            self.tried[tail] = self.timed.seconds(self.with_tail(tail))
        return self.tried[tail]

    def with_tail(self, tail: Tail | None) -> Choice:
        tails = self.others if tail is None else (*self.others, tail)
        return replace(self.choice, plan=replace(self.choice.plan, tails=tails), simulated=None)

    def found(self) -> Choice:
        best = min(self.tried, key=self.tried.__getitem__, default=None)
        if best is not None and self.tried[best] > (1 - PAYS) * self.tried[None]:
            best = None
        return self.with_tail(best)
