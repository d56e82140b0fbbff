"""What a simulated step was made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rlgraph.passes.cost.fusing import Fusion
from rlgraph.passes.pipelines.timetable import WAYS, pieces

BEGINS = ("order", "onload", "transfer")
"""Parts of a work that come before what its model does."""


@dataclass(frozen=True, eq=False)
class Work:
    """Something that a group, or two that exchange weights, did without a pause."""

    name: str
    """As people see it: what the node makes, `train MODEL` or `sync MODEL`."""
    op: str
    groups: tuple[str, ...]
    pools: tuple[str, ...]
    """Of each group."""
    step: int
    """The number of the step that it is done for."""
    fired: float
    """When it could have begun, had its pools been free; in seconds, as all times."""
    start: float
    end: float
    input: Work | None
    """What it waited for until then: the work that made its last input."""
    after: Work | None
    """What it waited for last: this, or the work that its pool did before."""
    rows: int = 0
    tokens: int = 0
    """Sampled."""
    idle: float = 0.0
    """Seconds of it that a copy has nothing to do, on average: its own rows have ended."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What its seconds went to."""
    stages: Callable[[], Fusion] | None = None
    """Of a training on the stages of a pipeline: what each of them does. It takes some time to tell."""

    @property
    def entered(self) -> float:
        """When its pipeline begins: there are its rows, and its model."""
        return self.start + sum(self.parts.get(name, 0.0) for name in BEGINS)

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def within(self, began: float, ended: float) -> float:
        """Seconds of it between two moments: works of a step ahead do not end with this one."""
        return max(0.0, min(self.end, ended) - max(self.start, began))

    def idle_within(self, began: float, ended: float) -> float:
        """Of these seconds those that a copy has nothing to do."""
        return self.idle * self.within(began, ended) / self.seconds if self.idle else 0.0

    @property
    def queued(self) -> bool:
        """It waited for its pool, not for an input."""
        return self.start > self.fired


class Watcher(Protocol):
    """Who draws a timeline: an observer, a trace."""

    def span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int: ...

    def flow(self, source: int, target: int, name: str, sent_bytes: int) -> None: ...


class Teller:
    """Tells a watcher of works: a slice for each group, and an arrow from what each work waited for."""

    def __init__(self, watcher: Watcher, most: int = 0) -> None:
        """most: slices of pipelines, stage by stage, that are told of. A pipeline that is more than is left of them is
        one slice, as all other work."""
        self.watcher, self._left = watcher, most
        self._spans: dict[int, int] = {}

    def tell(self, work: Work) -> None:
        counts = (("step", work.step), ("rows", work.rows), ("tokens", work.tokens))
        args = {name: value for name, value in counts if value}
        for pool, group in zip(work.pools, work.groups, strict=True):
            span = self.watcher.span(pool, group, work.name, work.op, work.start, work.end, **args, **work.parts)
            self._spans[id(work)] = span
        if id(work.after) in self._spans:
            self.watcher.flow(self._spans[id(work.after)], self._spans[id(work)], "then", 0)
        if self._left and work.stages is not None:
            self._staged(work, work.stages())

    def _staged(self, work: Work, found: Fusion) -> None:
        """A track for each stage: the pipeline, and in it what goes forward and backward."""
        lines, entered = found.problem.lines, work.entered
        if found.problem.work > self._left:
            return
        self._left -= found.problem.work
        for pool, group in zip(work.pools, work.groups, strict=True):
            tracks = [f"{group}, stage {stage + 1}" for stage in range(found.problem.stages)]
            for track in tracks:
                self.watcher.span(
                    pool, track, work.name, "pipeline", entered, entered + found.table.makespan, step=work.step
                )
            for piece in pieces(found.problem, found.lists, found.table):
                name, way = lines[piece.entry.line].model.name, WAYS[piece.entry.part]
                times = entered + piece.start, entered + piece.end
                self.watcher.span(pool, tracks[piece.stage], f"{name} {way} {piece.number + 1}", way, *times)


def worker(group: str, place: int) -> str:
    """The name under which one copy of a group does work, or one of its cpus."""
    return f"{group} {place}"
