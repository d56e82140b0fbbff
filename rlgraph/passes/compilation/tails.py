"""Chooses when the last rows of a table move, and to how many replicas, where a schedule leaves that open: the tail
with the shortest simulated step, given the lengths and the replicas' KV cache."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace

from rlgraph.errors import ProgramError
from rlgraph.ir.plan import Tail
from rlgraph.ir.schedule import Tail as Line
from rlgraph.passes.compilation.overlap import ChoiceInterrupted, SimulatedSeconds
from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.search.progress import ProgressLine
from rlgraph.passes.placement.tails import UNDER, sampling_replicas

SHARES = (UNDER, 0.05, 0.1, 0.3, 0.5)
"""The shares of the rows that are tried."""

PAYS = 0.001
"""The share of a step that a tail must save."""


def with_tails(choice: PlacementChoice, timed: SimulatedSeconds) -> PlacementChoice:
    """Return a choice with the best tail of each table whose line leaves something open, one table after the other,
    with the blocks that it has. Where no tail saves anything, the table has none. Raises Interrupted with the best so
    far after Ctrl-C."""
    progress = ProgressLine("choosing tails")
    with closing(progress):
        for line in choice.question.schedule.tails:
            if line.open:
                search = _Search(choice, line, progress, timed)
                try:
                    search.run()
                except ProgramError:
                    # The choice cannot be simulated; `simulate` says why.
                    continue
                except KeyboardInterrupt:
                    progress.close()
                    print(f"interrupted: the tail of `{line.table}` is the best that was tried", file=sys.stderr)
                    raise ChoiceInterrupted(search.best()) from None
                choice = search.best()
    return choice


class _Search:
    """The search for the tail of one table."""

    def __init__(self, choice: PlacementChoice, line: Line, progress: ProgressLine, timed: SimulatedSeconds) -> None:
        self.choice, self.line, self.progress, self.timed = choice, line, progress, timed
        self.others = tuple(tail for tail in choice.plan.tails if tail.table != line.table)
        self.tried: dict[Tail | None, float] = {}
        """Simulated seconds of a step by tail."""

    def run(self) -> None:
        """Optimize the number of replicas and of rows alternately, until neither changes."""
        self.seconds(None)
        copies = sampling_replicas(self.line.table, self.choice.plan, self.choice.question.program)
        if copies == 1:
            return
        line, usual_tails = self.line, [tail for tail in self.choice.plan.tails if tail.table == self.line.table]
        best = usual_tails[0] if usual_tails else Tail(line.table, line.under or UNDER, line.on or 1)
        previous = None
        while previous != best:
            previous = best
            if line.on is None:
                powers = (2**power for power in range(copies.bit_length()))
                best = min((replace(best, on=on) for on in powers if on <= copies / 2), key=self.seconds)
            if line.under is None:
                best = min((replace(best, under=under) for under in SHARES), key=self.seconds)

    def seconds(self, tail: Tail | None) -> float:
        """Return the simulated seconds of a step with this tail."""
        if tail not in self.tried:
            self.progress.show(self.progress.elapsed(), lambda: f"{len(self.tried)} of `{self.line.table}` tried")
            self.tried[tail] = self.timed.seconds(self.with_tail(tail))
        return self.tried[tail]

    def with_tail(self, tail: Tail | None) -> PlacementChoice:
        """Return the choice with this tail, or without one."""
        tails = self.others if tail is None else (*self.others, tail)
        return replace(self.choice, plan=replace(self.choice.plan, tails=tails), simulated=None)

    def best(self) -> PlacementChoice:
        """Return the choice with the best tail that was tried."""
        best = min(self.tried, key=self.tried.__getitem__, default=None)
        if best is not None and self.tried[best] > (1 - PAYS) * self.tried[None]:
            best = None
        return self.with_tail(best)
