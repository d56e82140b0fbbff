"""The display of a run on a terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from rlgraph.errors import escape_controls
from rlgraph.runs.events import Opening, RunStarted, StepDone, WorkDone, WorkProgress, WorkStarted
from rlgraph.runs.progress import CountingDisplay, format_progress, format_rate, work_name


@dataclass
class _Pool:
    """The work that a pool is doing."""

    at_work: list[str] = field(default_factory=list)
    progress: dict[str, str] = field(default_factory=dict)
    """How far the work is, where that is known."""
    last: str = ""
    """The text about the last rows that it generated."""

    def work_texts(self) -> list[str]:
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
                ", ".join(pool.work_texts()) or "[dim]waits",
                f"[dim]{pool.last}",
            )
        return Group(self.bar, lines) if self.pools else Group(self.bar)

    def opening(self, event: Opening) -> None:
        self.bar.update(self.task, doing=event.what)

    def work_started(self, event: WorkStarted) -> None:
        name, pool = work_name(event.node), event.pool
        self._began_s[event.node.name, pool] = time.monotonic()
        if pool:
            self.bar.update(self.task, doing="")
            self.pools.setdefault(pool, _Pool()).at_work.append(name)
        else:
            self.bar.update(self.task, doing=name)

    def work_done(self, event: WorkDone) -> None:
        super().work_done(event)
        if event.pool:
            pool, name = self.pools[event.pool], work_name(event.node)
            pool.at_work.remove(name)
            pool.progress.pop(name, None)
            if event.tokens:
                pool.last = format_rate(event.tokens, event.seconds)

    def work_progress(self, event: WorkProgress) -> None:
        name, pool, now = work_name(event.node), event.pool, time.monotonic()
        text = format_progress(event, now - self._began_s.get((event.node.name, pool), now))
        if pool:
            self.pools.setdefault(pool, _Pool()).progress[name] = text
        else:
            self.bar.update(self.task, doing=f"{name}: {text}")

    def run_started(self, event: RunStarted) -> None:
        super().run_started(event)
        assert self.count is not None
        first = next(iter(event.phases))
        self.bar.update(self.task, description=first, total=self.count.total, completed=event.done, doing="")

    def step_done(self, event: StepDone) -> None:
        assert self.count is not None
        self.show_note(self.count.step_line(event.result))
        self.bar.update(self.task, description=event.phase, completed=event.step)

    def show_note(self, text: str) -> None:
        self.console.print(escape_controls(text), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.pools.clear()
        self.bar.update(self.task, doing="")
        self.live.stop()
