"""In how large blocks the rows of a table travel, where a schedule leaves that to the plan: what the simulator says is
best, a whole batch at a time among it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from rlgraph.backends.enginespec.registry import engine
from rlgraph.errors import ProgramError
from rlgraph.ir.schedule import Stream
from rlgraph.ops.nodes import NODES
from rlgraph.passes.compilation.overlap import Interrupted, Timed
from rlgraph.passes.cost.tasks import main_step
from rlgraph.passes.placement.choose import Choice
from rlgraph.passes.placement.search.progress import Line as Shown
from rlgraph.passes.placement.tails import sampling

TIMES = 4
"""How many times as large as the one before a block is that is tried."""

FEWEST, MOST = 4, 128
"""Blocks of a batch that are tried. With more of them a simulation takes long, and a controller has much to do."""

STEPS = 2
"""Steps of each simulation: of two blocks the better one is asked for, not how long a step takes."""

PAYS = 0.001
"""Share of a step that streaming has to save."""


def with_blocks(choice: Choice, timed: Timed) -> Choice:
    """A choice with the best block of each table whose line leaves it open, one table after the other, beside the tails
    that it has; where none saves anything the table does not stream, unless it has a tail. After Ctrl-C it raises
    Interrupted with what was found."""
    shown = Shown("choosing blocks")
    with closing(shown):
        for line in choice.question.schedule.streams:
            if line.open:
                search = _Search(choice, line, shown, timed)
                try:
                    search.run()
                except ProgramError:
                    # It cannot be simulated, of which `simulate` says why.
                    continue
                except KeyboardInterrupt:
                    shown.close()
                    print(f"interrupted: the block of `{line.table}` is the best that was tried", file=sys.stderr)
                    raise Interrupted(search.found()) from None
                choice = search.found()
    return choice


@dataclass(frozen=True)
class Streamed:
    """What it would save if a table streamed that does not."""

    table: str
    block: int
    """Rows."""
    seconds: float
    """Of a step."""
    whole: float
    """Seconds of a step in which it does not, by the simulator as well."""


def unsaid(choice: Choice, ends: float = inf) -> Iterator[Streamed]:
    """For each table of a step that the schedule does not stream, and that an engine samples that could, the best
    block. ends: of trying, by the monotonic clock; what was not tried by then is left out."""
    with closing(Shown("simulating what could stream")) as shown:
        for table in unstreamed(choice):
            search = _Search(choice, Stream(table), shown, Timed(STEPS), ends)
            try:
                search.run()
            except ProgramError:
                continue
            best = min((rows for rows in search.tried if rows), key=search.tried.__getitem__, default=None)
            if best is not None and None in search.tried:
                yield Streamed(table, best, search.tried[best], search.tried[None])


def unstreamed(choice: Choice) -> list[str]:
    """Tables of a step that the schedule does not stream, and that engines sample that could."""
    asked = choice.question
    said = {line.table for line in asked.schedule.streams}
    nodes = main_step(asked.program).graph.walk()
    tables = dict.fromkeys(node.name.split(".")[0] for node in nodes if NODES[node.op].generates)
    return [
        table
        for table in tables
        if table not in said
        and all(engine(group.engine).streams for group in sampling(table, choice.plan, asked.program))
    ]


def sizes(choice: Choice, line: Stream) -> Iterator[int]:
    """Rows of the blocks that are tried: whole groups of samples."""
    tasks = [task for task in choice.problem.tasks if task.name.split(".")[0] == line.table]
    whole = sum(batch.rows for task in tasks[:1] for batch in task.batches)
    phase = main_step(choice.question.program)
    nodes = (node for node in phase.graph.walk() if node.name.split(".")[0] == line.table)
    rows = int(next((node.attr("n", 1) for node in nodes), 1))
    while rows * MOST < whole:
        rows *= TIMES
    yield rows
    while rows * TIMES * FEWEST <= whole:
        rows *= TIMES
        yield rows


class _Search:
    """For one table."""

    def __init__(self, choice: Choice, line: Stream, shown: Shown, timed: Timed, ends: float = inf) -> None:
        self.choice, self.line, self.shown, self.timed, self.ends = choice, line, shown, timed, ends
        self.tailed = any(tail.table == line.table for tail in choice.question.schedule.tails)
        self.others = tuple(each for each in choice.plan.blocks if each[0] != line.table)
        self.tried: dict[int | None, float] = {}
        """Seconds of a step."""

    def run(self) -> None:
        """The whole batch, and blocks from small to large."""
        found = sizes(self.choice, self.line)
        for rows in found if self.tailed else (None, *found):
            if monotonic() < self.ends:
                self.seconds(rows)

    def seconds(self, rows: int | None) -> float:
        if rows not in self.tried:
            self.shown.show(self.shown.elapsed(), lambda: f"{len(self.tried)} of `{self.line.table}` tried")
            self.tried[rows] = self.timed.seconds(self.with_block(rows))
        return self.tried[rows]

    def with_block(self, rows: int | None) -> Choice:
        plan, table = self.choice.plan, self.line.table
        blocks = self.others if rows is None else (*self.others, (table, rows))
        free = tuple(name for name in plan.free if name != table)
        if self.line.free and rows is not None:
            free = (*free, table)
        return replace(self.choice, plan=replace(plan, blocks=blocks, free=free), simulated=None)

    def found(self) -> Choice:
        best = min(self.tried, key=self.tried.__getitem__, default=None)
        if None in self.tried and best is not None and self.tried[best] > (1 - PAYS) * self.tried[None]:
            best = None
        return self.with_block(best)
