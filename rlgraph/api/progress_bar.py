"""The display of a run on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rlgraph.api.progress import Count
from rlgraph.ir.graph import Node


class Bar:
    """A bar over all steps, the node at work, and the metrics of the last step under it."""

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
            console=self.console,
        )
        self.task = self.bar.add_task("opening", total=None, doing="")
        self.count: Count | None = None
        self.bar.start()

    def opening(self, what: str) -> None:
        self.bar.update(self.task, doing=what)

    def firing(self, node: Node) -> None:
        self.bar.update(self.task, doing=node.op if node.name.startswith(node.op) else f"{node.op} {node.name}")

    def fired(self, node: Node, seconds: float, tokens: int) -> None:
        if self.count is not None:
            self.count.tokens += tokens

    def begin(self, phases: Mapping[str, int]) -> None:
        self.count = Count(phases)
        self.bar.update(self.task, description=next(iter(phases)), total=self.count.total, doing="")

    def step(self, number: int, phase: str, seconds: float, metrics: Mapping[str, float]) -> None:
        assert self.count is not None
        line = self.count.line(number, phase, seconds, metrics)
        self.bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
        self.bar.update(self.task, description=phase, completed=number)

    def note(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.bar.update(self.task, doing="")
        self.bar.stop()
