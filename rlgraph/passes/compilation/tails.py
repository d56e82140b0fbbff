"""Chooses when the last rows of a table move, and to how many replicas, where a schedule leaves that open: the tail
with the shortest simulated step, given the lengths and the replicas' KV cache."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.ir.plan import TailMove
from rlgraph.ir.schedule import TailLine
from rlgraph.passes.compilation.overlap_simulation import SimulationCache
from rlgraph.passes.compilation.undecided_lines import ScheduleLineTuner, resolve_undecided_lines
from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.search.progress import ProgressLine
from rlgraph.passes.placement.tails import UNDER, sampling_replica_count

SHARES = (UNDER, 0.05, 0.1, 0.3, 0.5)
"""The shares of the rows that are tried."""


def with_best_tail_moves(choice: PlacementChoice, timed: SimulationCache) -> PlacementChoice:
    """Return a choice with the best tail of each table whose line leaves something open, one table after the other,
    with the blocks that it has. Where no tail saves anything, the table has none. Raises ChoiceInterrupted with
    the best so far after Ctrl-C."""

    def make_tail_search(choice: PlacementChoice, line: TailLine, progress: ProgressLine) -> _TailSearch:
        return _TailSearch(choice, line, progress, timed)

    return resolve_undecided_lines(choice, choice.question.schedule.tails, "tail", make_tail_search)


class _TailSearch(ScheduleLineTuner[TailLine, TailMove]):
    """The search for the tail of one table."""

    def run(self) -> None:
        """Optimize the number of replicas and of rows alternately, until neither changes."""
        self.simulated_step_seconds(None)
        copies = sampling_replica_count(self.line.table, self.choice.plan, self.choice.question.program)
        if copies == 1:
            return
        line, usual_tails = self.line, [tail for tail in self.choice.plan.tails if tail.table == self.line.table]
        best = usual_tails[0] if usual_tails else TailMove(line.table, line.under or UNDER, line.on or 1)
        previous = None
        while previous != best:
            previous = best
            if line.on is None:
                powers = (2**power for power in range(copies.bit_length()))
                best = min((replace(best, on=on) for on in powers if on <= copies / 2), key=self.simulated_step_seconds)
            if line.under is None:
                best = min((replace(best, under=under) for under in SHARES), key=self.simulated_step_seconds)

    def choice_with_candidate(self, tried: TailMove | None) -> PlacementChoice:
        """Return the choice with this tail, or without one."""
        others = tuple(tail for tail in self.choice.plan.tails if tail.table != self.line.table)
        tails = others if tried is None else (*others, tried)
        return replace(self.choice, plan=replace(self.choice.plan, tails=tails), simulated_step_s=None)
