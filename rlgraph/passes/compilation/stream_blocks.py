"""Chooses the block size of streamed tables, where a schedule leaves it open: the one with the shortest simulated step,
or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from rlgraph.errors import ProgramError
from rlgraph.ir.schedule import StreamLine
from rlgraph.passes.compilation.overlap_simulation import SimulationCache
from rlgraph.passes.compilation.streamable import streamable_tables
from rlgraph.passes.compilation.undecided_lines import ScheduleLineTuner, resolve_undecided_lines
from rlgraph.passes.cost.tasks import main_phase
from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.search.progress import ProgressLine

TIMES = 4
"""The ratio of consecutive block sizes that are tried."""

FEWEST, MOST = 4, 128
"""The limits of blocks per batch that are tried. With more, simulations take long, and the controller has much to
do."""

STEPS = 2
"""Steps of each simulation: it only has to tell which of two sizes is better, not the exact seconds."""


def with_best_block_sizes(choice: PlacementChoice, timed: SimulationCache) -> PlacementChoice:
    """Return a choice with the best block of each table whose line leaves it open, one table after the other, with the
    tails that it has. Where no block saves anything, the table does not stream unless it has a tail. Raises
    ChoiceInterrupted with the best so far after Ctrl-C."""

    def make_block_search(choice: PlacementChoice, line: StreamLine, progress: ProgressLine) -> _BlockSearch:
        return _BlockSearch(choice, line, progress, timed)

    return resolve_undecided_lines(choice, choice.question.schedule.streams, "block", make_block_search)


@dataclass(frozen=True)
class StreamingGain:
    """The effect of streaming a table that does not stream."""

    table: str
    block: int
    """The rows of the best block."""
    streamed_seconds: float
    """Simulated seconds of a step with streaming."""
    whole_batch_seconds: float
    """Simulated seconds of a step without."""


def streaming_gains(choice: PlacementChoice, ends: float = inf) -> Iterator[StreamingGain]:
    """Return the best block of each table that the schedule does not stream but its engine could. ends: the monotonic
    time at which to stop trying; what was not tried by then is left out."""
    with closing(ProgressLine("simulating what could stream")) as progress:
        for table in streamable_tables(choice):
            search = _BlockSearch(choice, StreamLine(table), progress, SimulationCache(STEPS), ends)
            try:
                search.run()
            except ProgramError:
                continue
            best = min((rows for rows in search.tried if rows), key=search.tried.__getitem__, default=None)
            if best is not None and None in search.tried:
                yield StreamingGain(table, best, search.tried[best], search.tried[None])


def block_sizes_to_try(choice: PlacementChoice, line: StreamLine) -> Iterator[int]:
    """Return the block sizes in rows that are tried; they are multiples of whole groups of samples."""
    tasks = [task for task in choice.problem.tasks if task.name.split(".")[0] == line.table]
    batch_rows = sum(batch.rows for task in tasks[:1] for batch in task.batches)
    phase = main_phase(choice.question.program)
    nodes = (node for node in phase.graph.walk() if node.name.split(".")[0] == line.table)
    rows = int(next((node.attr("n", 1) for node in nodes), 1))
    while rows * MOST < batch_rows:
        rows *= TIMES
    yield rows
    while rows * TIMES * FEWEST <= batch_rows:
        rows *= TIMES
        yield rows


class _BlockSearch(ScheduleLineTuner[StreamLine, int]):
    """The search for the block of one table, in rows."""

    def __init__(
        self,
        choice: PlacementChoice,
        line: StreamLine,
        progress: ProgressLine,
        timed: SimulationCache,
        ends: float = inf,
    ) -> None:
        super().__init__(choice, line, progress, timed)
        self.ends = ends
        self.tailed = any(tail.table == line.table for tail in choice.question.schedule.tails)
        self.others = tuple(block for block in choice.plan.blocks if block[0] != line.table)

    def run(self) -> None:
        """Try the whole batch, and blocks from small to large."""
        candidates = block_sizes_to_try(self.choice, self.line)
        for rows in candidates if self.tailed else (None, *candidates):
            if monotonic() < self.ends:
                self.simulated_step_seconds(rows)

    def choice_with_candidate(self, tried: int | None) -> PlacementChoice:
        """Return the choice with this block; None: without streaming."""
        plan, table = self.choice.plan, self.line.table
        blocks = self.others if tried is None else (*self.others, (table, tried))
        free = tuple(name for name in plan.free if name != table)
        if self.line.free and tried is not None:
            free = (*free, table)
        return replace(self.choice, plan=replace(plan, blocks=blocks, free=free), simulated_step_s=None)
