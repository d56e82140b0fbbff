"""Batches of a `collect` that takes them as they end: it stops when enough have, and the others go on meanwhile.

Whoever collects in the next step goes on with them. So what they are at work on is told to a crew that outlives both
(`Executor.lasting`). A batch is one of the step that began it, with all that it had in hand then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from rlgraph.backends.executor import Executor, GraphRun, not_yet, wait
from rlgraph.backends.frame import Frame
from rlgraph.backends.step import Ended
from rlgraph.ir.graph import Graph


@dataclass(eq=False)
class Batch:
    """A run of the body."""

    given: Frame
    """What it began with."""
    run: GraphRun
    before: Batch | None = None
    """It reads its rows of the data behind those of this one, which has not read them yet."""

    @classmethod
    def again(cls, given: Frame) -> Batch:
        """One of another process, which is known by what it began with: who goes on with it begins it again."""
        # No step of this process has failed so often.
        frame = replace(given, step=replace(given.step, attempt=-1))
        return cls(frame, cast(GraphRun, None))

    @property
    def needed(self) -> Frame:
        """What it began with, as far as it has to do with that."""
        if self.run is None:
            return self.given
        graph = self.run.graph
        own = {value.name for value in graph.inputs} | {value.name for node in graph.nodes for value in node.outputs}
        own |= {name for node in graph.nodes for name in node.inputs}
        return replace(self.given, values={name: v for name, v in self.given.values.items() if name in own})

    @property
    def step(self) -> int:
        """That began it."""
        return self.given.step.number

    @property
    def number(self) -> int:
        assert self.given.step.batch is not None
        return self.given.step.batch


class Batches:
    """Those that one `collect` has begun, or goes on with, in one step."""

    def __init__(self, executor: Executor, body: Graph, inputs: Sequence[Any], key: str, most: int) -> None:
        """inputs: what the first one is given that goes from batch to batch. key: the same in each step. most: how many
        can be under way."""
        self.executor, self.body = executor, body
        self.crew = executor.lasting(key, executor.threads(body) * most)
        self.crew.adopt()
        self.inputs = list(inputs)
        """Of who reads next; from `last` where that has made it."""
        self.names = [value.name for value in body.inputs[: len(inputs)]]
        self.outputs = body.outputs[: len(inputs)]
        self.going: list[Batch] = []
        self.last: Batch | None = None

    def begin(self, frame: Frame) -> Batch:
        """The next rows of the data."""
        batch = self._add(frame)
        if self.last is None:
            self._give(batch, self.inputs)
        else:
            batch.before, batch.run.awaited = self.last, dict.fromkeys(self.names, not_yet)
        self.last = batch
        return batch

    def begin_with(self, frame: Frame) -> Batch:
        """Rows that the frame has: nothing is read, and what goes from batch to batch passes it by."""
        batch = self._add(frame)
        self._give(batch, self.inputs)
        return batch

    def go_on(self, batch: Batch, attempt: int) -> None:
        """One that an earlier step has begun; if its work was lost when a step failed, from its beginning."""
        if batch.given.step.attempt == attempt:
            batch.run.crew = self.crew
            self.going.append(batch)
            return
        frame = batch.given.child()
        frame.step = replace(frame.step, attempt=attempt)
        self._add(frame)

    @property
    def under_way(self) -> set[Ended]:
        return {(batch.step, batch.number) for batch in self.going}

    def _add(self, frame: Frame) -> Batch:
        given = frame.child()
        batch = Batch(given, GraphRun(self.executor, self.body, frame, self.crew))
        self.going.append(batch)
        return batch

    def _give(self, batch: Batch, inputs: Sequence[Any]) -> None:
        for frame in (batch.given, batch.run.frame):
            frame.values.update(zip(self.names, inputs, strict=True))

    @property
    def read(self) -> bool:
        """Whether all that were begun have read their rows, and so know what the next one is given."""
        return self.last is None or all(map(self.last.run.has_made, self.outputs))

    def left(self) -> list[Any]:
        """What goes from batch to batch, behind the last one."""
        return self.inputs if self.last is None else [self.last.run.frame.values[name] for name in self.outputs]

    def advance(self, only: Ended | None = None) -> list[Batch]:
        """Lets them go on until something has come of it: those that have ended, in the order in which they were begun,
        and are not under way any more. only: the others do no more than read their data."""
        moved, behind = False, False
        for batch in self.going:
            wanted = only is None or only == (batch.step, batch.number)
            if batch.before is not None and all(map(batch.before.run.has_made, self.outputs)):
                before, batch.before = batch.before.run, None
                self._give(batch, [before.frame.values[name] for name in self.outputs])
                batch.run.awaited.clear()
            # Where one node runs at a time nothing is gained by beginning early.
            reads = not wanted or (behind and not self.executor.clock.together)
            moved |= batch.run.advance(self.outputs if reads else None)
            behind |= not reads
        ended = [batch for batch in self.going if batch.run.over]
        self.going = [batch for batch in self.going if batch not in ended]
        if not moved and not ended:
            wait([batch.run for batch in self.going], self.crew)
        return ended
