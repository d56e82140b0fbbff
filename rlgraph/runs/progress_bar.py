"""The display of a run on a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from rlgraph.errors import escape_controls
from rlgraph.ir.graph import Node
from rlgraph.runs.progress import CountingDisplay, format_rate, shown_progress, work_name

if TYPE_CHECKING:
    from rlgraph.backends.steps import StepResult


@dataclass
class _Pool:
    """The work that a pool is doing."""

    at_work: list[str] = field(default_factory=list)
    progress: dict[str, str] = field(default_factory=dict)
    """How far the work is, where that is known."""
    last: str = ""
    """The text about the last rows that it generated."""

    def shown(self) -> list[str]:
        """Return a text for each piece of work."""
        works = dict.fromkeys(list(self.at_work))
        return [f"{work} {self.progress[work]}" if work in self.progress else work for work in works]


class BarDisplay(CountingDisplay):
    """A progress bar over all steps, with the node at work, and the metrics of finished steps above it; a line for each
    pool if there are several."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("<"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[doing]}", markup=True),
        )
        self.task = self.bar.add_task("opening", total=None, doing="")
        self.pools: dict[str, _Pool] = {}
        self._began_s: dict[tuple[str, str], float] = {}
        """When each node began, by its name and its pool."""
        self.live = Live(get_renderable=self._drawn, console=self.console, refresh_per_second=10)
        self.live.start()

    def _drawn(self) -> Group:
        lines = Table.grid(padding=(0, 2))
        # A thread of its own draws the display, while pools may be added.
        for name, pool in list(self.pools.items()):
            lines.add_row(
                f"  {name}",
                ", ".join(pool.shown()) or "[dim]waits",
                f"[dim]{pool.last}",
            )
        return Group(self.bar, lines) if self.pools else Group(self.bar)

    def report_progress(self, what: str) -> None:
        self.bar.update(self.task, doing=what)

    def node_started(self, node: Node, pool: str = "") -> None:
        self._began_s[node.name, pool] = time.monotonic()
        if pool:
            self.bar.update(self.task, doing="")
            self.pools.setdefault(pool, _Pool()).at_work.append(work_name(node))
        else:
            self.bar.update(self.task, doing=work_name(node))

    def node_done(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        super().node_done(node, seconds, tokens, pool)
        if pool:
            self.pools[pool].at_work.remove(work_name(node))
            self.pools[pool].progress.pop(work_name(node), None)
            if tokens:
                self.pools[pool].last = format_rate(tokens, seconds)

    def node_progress(self, node: Node, done: int, total: int, unit: str, tokens: int, pool: str = "") -> None:
        now = time.monotonic()
        seconds = now - self._began_s.get((node.name, pool), now)
        text = shown_progress(done, total, unit, tokens, seconds)
        if pool:
            self.pools.setdefault(pool, _Pool()).progress[work_name(node)] = text
        else:
            self.bar.update(self.task, doing=f"{work_name(node)}: {text}")

    def run_started(self, phases: Mapping[str, int], done: int = 0) -> None:
        super().run_started(phases, done)
        assert self.count is not None
        self.bar.update(self.task, description=next(iter(phases)), total=self.count.total, completed=done, doing="")

    def step_done(self, done: StepResult) -> None:
        assert self.count is not None
        self.show_note(self.count.step_line(done))
        self.bar.update(self.task, description=done.phase, completed=done.number)

    def show_note(self, text: str) -> None:
        self.console.print(escape_controls(text), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.pools.clear()
        self.bar.update(self.task, doing="")
        self.live.stop()
