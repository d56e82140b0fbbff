"""This module has the works of which a simulated step was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rlgraph.backends.steps import TimelineWatcher
from rlgraph.passes.cost.fused_pipelines import FusedPipeline
from rlgraph.passes.pipelines.timetable import WAYS, timed_entries

BEGINS = ("order", "onload", "transfer")
"""Parts of a work that come before the work of its model."""


@dataclass(frozen=True, eq=False)
class Work:
    """Something that a group, or two that exchange weights, did without a pause."""

    name: str
    """Its name in a timeline: what the node makes, `train MODEL` or `sync MODEL`."""
    op: str
    groups: tuple[str, ...]
    pools: tuple[str, ...]
    """The pool of each group."""
    step: int
    """The number of the step that it is done for."""
    fired: float
    """When it could have begun, had its pools been free; in seconds, as all times."""
    start: float
    end: float
    last_input: Work | None
    """What it waited for until then: the work that made its last input."""
    waited_for: Work | None
    """What it waited for last: this, or the work that its pool did before."""
    rows: int = 0
    tokens: int = 0
    """Tokens that it sampled."""
    idle: float = 0.0
    """Seconds of it that a replica has nothing to do, on average, since its own rows have ended."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The seconds of each part of it."""
    stages: Callable[[], FusedPipeline] | None = None
    """For a training on the stages of a pipeline, returns what each stage does, which takes some time to compute."""

    @property
    def pipeline_start(self) -> float:
        """When its pipeline begins, once its rows and its model have come."""
        return self.start + sum(self.parts.get(name, 0.0) for name in BEGINS)

    @property
    def seconds(self) -> float:
        """Seconds from its start to its end."""
        return self.end - self.start

    def seconds_within(self, began: float, ended: float) -> float:
        """Return the seconds of it between two moments: works of a step ahead do not end with this one."""
        return max(0.0, min(self.end, ended) - max(self.start, began))

    def replica_idle_seconds_within(self, began: float, ended: float) -> float:
        """Return the seconds of this work between two moments in which a replica has nothing to do."""
        return self.idle * self.seconds_within(began, ended) / self.seconds if self.idle else 0.0

    @property
    def waited_for_pool(self) -> bool:
        """Whether it waited for its pool, not for an input."""
        return self.start > self.fired


class TimelineWriter:
    """Tells a watcher of works: a slice for each group, and an arrow from what each work waited for."""

    def __init__(self, watcher: TimelineWatcher, most: int = 0) -> None:
        """most: slices of pipelines, stage by stage, that are told of. A pipeline with more slices than are left of
        them is one slice, as all other work."""
        self.watcher, self._left = watcher, most
        self._spans: dict[int, int] = {}

    def write_work(self, work: Work) -> None:
        """Tell the watcher of a work."""
        counts = (("step", work.step), ("rows", work.rows), ("tokens", work.tokens))
        args = {name: value for name, value in counts if value}
        for pool, group in zip(work.pools, work.groups, strict=True):
            span = self.watcher.add_span(pool, group, work.name, work.op, work.start, work.end, **args, **work.parts)
            self._spans[id(work)] = span
        if id(work.waited_for) in self._spans:
            self.watcher.add_flow(self._spans[id(work.waited_for)], self._spans[id(work)], "then", 0)
        if self._left and work.stages is not None:
            self._staged(work, work.stages())

    def _staged(self, work: Work, fusion: FusedPipeline) -> None:
        """Tell of a pipeline: a track for each stage, with the pipeline, and in it what goes forward and backward."""
        lines, entered = fusion.problem.replicas, work.pipeline_start
        if fusion.problem.forward_backward_count > self._left:
            return
        self._left -= fusion.problem.forward_backward_count
        for pool, group in zip(work.pools, work.groups, strict=True):
            tracks = [f"{group}, stage {stage + 1}" for stage in range(fusion.problem.stage_count)]
            for track in tracks:
                self.watcher.add_span(
                    pool, track, work.name, "pipeline", entered, entered + fusion.table.makespan, step=work.step
                )
            for piece in timed_entries(fusion.problem, fusion.lists, fusion.table):
                name, way = lines[piece.entry.replica].model.name, WAYS[piece.entry.part]
                times = entered + piece.start, entered + piece.end
                self.watcher.add_span(pool, tracks[piece.stage], f"{name} {way} {piece.number + 1}", way, *times)


def worker_name(group: str, place: int) -> str:
    """Return the name under which one replica of a group does work, or one of its cpus."""
    return f"{group} {place}"
