"""This module runs the batches of a `collect` that takes them as they end: it stops when enough have ended, and the
others go on meanwhile.

The `collect` of the next step goes on with them. So their work reports to a task pool that outlives both steps
(`Executor.lasting_pool`). A batch belongs to the step that began it, with all values that this step had then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from rlgraph.backends.executor import Executor
from rlgraph.backends.frame import Frame
from rlgraph.backends.graph_run import GraphRun, never_ready, wait_for_progress
from rlgraph.backends.step import Ended, Step
from rlgraph.ir.graph import Graph


@dataclass(eq=False)
class CollectBatch:
    """A run of the body of a `collect`."""

    inputs: Frame
    """The values with which it began."""
    run: GraphRun
    batch_before: CollectBatch | None = None
    """The batch before it, which has not read its rows of the data yet; this one reads the rows behind those."""

    @classmethod
    def restore(cls, given: Frame) -> CollectBatch:
        """Restore a batch of another process from the values with which it began: whoever goes on with it begins it
        again."""
        # No step of this process has this attempt, so `continue_batch` takes its work for lost.
        frame = replace(given, step=replace(given.step, attempt=-1))
        return cls(frame, cast(GraphRun, None))

    @property
    def needed_inputs(self) -> Frame:
        """The values with which it began, without those that its body does not use."""
        if self.run is None:
            return self.given
        graph = self.run.graph
        used = {value.name for value in graph.inputs} | {value.name for node in graph.nodes for value in node.outputs}
        used |= {name for node in graph.nodes for name in node.inputs}
        return replace(self.inputs, values={name: v for name, v in self.inputs.values.items() if name in used})

    @property
    def step_number(self) -> int:
        """The number of the step that began it."""
        return self.inputs.step.number

    @property
    def number(self) -> int:
        """Its number among the batches of its step."""
        assert self.inputs.step.batch is not None
        return self.inputs.step.batch


@dataclass(frozen=True)
class Surplus:
    """What a `collect` leaves to the next step that takes batches as they end."""

    rows: Frame | None
    """Rows of batches that have ended, in the order in which they did."""
    unfinished_batches: tuple[CollectBatch, ...] = ()
    """Batches that go on."""

    @property
    def begun_in_steps(self) -> list[int]:
        """The steps that began the batches that go on."""
        return [batch.step_number for batch in self.unfinished_batches]


def last_settled_step(step: Step, things: Mapping[str, Any]) -> Step:
    """Return the last step up to which nothing goes on: what a step has made is needed as long as batches go on that it
    began. things: as a step that is over left them."""
    going = [began for thing in things.values() if isinstance(thing, Surplus) for began in thing.begun_in_steps]
    return replace(step, number=min([step.number, *(began - 1 for began in going)]))


class CollectBatches:
    """The batches that a `collect` has begun, or goes on with, in one step."""

    def __init__(self, executor: Executor, body: Graph, inputs: Sequence[Any], key: str, most: int) -> None:
        """inputs: what the first batch is given of the values that go from batch to batch. key: names the task pool,
        the same in each step. most: how many batches can be under way."""
        self.executor, self.body = executor, body
        self.pool = executor.lasting_pool(key, executor.max_threads(body) * most)
        self.pool.become_event_thread()
        self.inputs = list(inputs)
        """What the batch that reads next is given, unless `last` makes it."""
        self.names = [value.name for value in body.inputs[: len(inputs)]]
        self.outputs = body.outputs[: len(inputs)]
        self.going: list[CollectBatch] = []
        self.last: CollectBatch | None = None

    def begin_batch(self, frame: Frame) -> CollectBatch:
        """Begin a batch on the next rows of the data."""
        batch = self._add(frame)
        if self.last is None:
            self._give(batch, self.inputs)
        else:
            batch.batch_before, batch.run.awaited = self.last, dict.fromkeys(self.names, never_ready)
        self.last = batch
        return batch

    def begin_on_given_rows(self, frame: Frame) -> CollectBatch:
        """Begin a batch on rows that the frame has: it reads nothing, and does not change what goes from batch to
        batch."""
        batch = self._add(frame)
        self._give(batch, self.inputs)
        return batch

    def continue_batch(self, batch: CollectBatch, attempt: int) -> None:
        """Go on with a batch of an earlier step; if its work was lost when a step failed, begin it again."""
        if batch.inputs.step.attempt == attempt:
            batch.run.pool = self.pool
            self.going.append(batch)
            return
        frame = batch.inputs.child_frame()
        frame.step = replace(frame.step, attempt=attempt)
        self._add(frame)

    @property
    def unfinished_batches(self) -> set[Ended]:
        """The step and the number of each batch that has not ended."""
        return {(batch.step_number, batch.number) for batch in self.going}

    def _add(self, frame: Frame) -> CollectBatch:
        given = frame.child_frame()
        batch = CollectBatch(given, GraphRun(self.executor, self.body, frame, self.pool))
        self.going.append(batch)
        return batch

    def _give(self, batch: CollectBatch, inputs: Sequence[Any]) -> None:
        for frame in (batch.inputs, batch.run.frame):
            frame.values.update(zip(self.names, inputs, strict=True))

    @property
    def all_batches_have_rows(self) -> bool:
        """Whether all batches that were begun have read their rows, so that the next one's inputs are known."""
        return self.last is None or all(map(self.last.run.value_is_complete, self.outputs))

    def carried_values(self) -> list[Any]:
        """Return what goes from batch to batch, as the last one left it."""
        return self.inputs if self.last is None else [self.last.run.frame.values[name] for name in self.outputs]

    def advance(self, only: Ended | None = None) -> list[CollectBatch]:
        """Let the batches go on until something has come of it. Returns those that have ended, in the order in which
        they were begun; they are no longer under way. only: the one batch that may go on; the others do no more than
        read their data."""
        moved, behind = False, False
        for batch in self.going:
            wanted = only is None or only == (batch.step_number, batch.number)
            if batch.batch_before is not None and all(map(batch.batch_before.run.value_is_complete, self.outputs)):
                before, batch.batch_before = batch.batch_before.run, None
                self._give(batch, [before.frame.values[name] for name in self.outputs])
                batch.run.awaited.clear()
            # Where one node runs at a time nothing is gained by beginning early.
            reads = not wanted or (behind and not self.executor.clock.concurrent)
            moved |= batch.run.advance(self.outputs if reads else None)
            behind |= not reads
        ended = [batch for batch in self.going if batch.run.is_over]
        self.going = [batch for batch in self.going if batch not in ended]
        if not moved and not ended:
            wait_for_progress([batch.run for batch in self.going], self.pool)
        return ended
