"""This module has a graph while it runs: which of its nodes fire on which rows, and what becomes of what they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import numpy as np

from rlgraph.backends.clocks import TaskPool, report_failure
from rlgraph.backends.frame import Frame, NodeOutput, Part
from rlgraph.backends.readiness import Readiness, Task
from rlgraph.backends.row_blocks import block_tables_by_node, iter_block_ends, streams_blocks_by_node
from rlgraph.backends.row_order import RowOrder
from rlgraph.ir.graph import Graph, Node
from rlgraph.ir.types import Axis, axes_of, is_model
from rlgraph.ops import NODES
from rlgraph.ops.nodes import expected_lengths_of, model_of

if TYPE_CHECKING:
    from rlgraph.backends.executor import Executor


PIECE = 8
"""Blocks that a training takes at a time where steps overlap: in between go weights that another step waits for."""

Await = Callable[[Node], bool]
"""Whether an input has come for a node that reads it."""


class GraphRun:
    """A graph while it runs: one of a step, or of the region of a loop."""

    def __init__(self, executor: Executor, graph: Graph, frame: Frame, pool: TaskPool) -> None:
        self.backend, self.blocks, self.together = executor.backend, executor.blocks, executor.clock.concurrent
        self.graph, self.frame, self.pool, self.arrival = graph, frame, pool, RowOrder(frame)
        self.awaited: dict[str, Await] = {}
        """Inputs of the graph that a step before makes, and has not made yet."""
        self.may_change_models = True
        """Whether it may change models. Of the steps that are under way only the oldest one may."""
        self.overlaps = False
        """Whether other steps sample beside this one's training."""
        self.under_way = 0
        """Nodes that are fired and not done."""
        cuts_by_node = block_tables_by_node(graph, frame.types, self.blocks.tables)
        self.tasks = [
            Task(node, node_cuts, handed)
            for node, node_cuts, handed in zip(graph.nodes, cuts_by_node, streams_blocks_by_node(graph), strict=True)
            # Values that the frame has already need not be made.
            if not node.outputs or any(value.name not in frame.values for value in node.outputs)
        ]
        self.waiting, self.readiness = list(self.tasks), Readiness(self.tasks, frame)
        self.fused = executor.fused
        self.pieces = self.find_fused_tasks()
        """For each training that is fired with others, by its id, all of these."""

    @property
    def is_over(self) -> bool:
        """Whether all nodes are done."""
        return not self.waiting

    def advance(self, only: Sequence[str] | None = None) -> bool:
        """Fire all that can fire. Returns whether anything could, or is finished now. only: the values whose nodes may
        work."""
        moved = False
        for task in self.waiting:
            if only is None or any(value.name in only for value in task.node.outputs):
                moved |= self.advance_task(task)
        left = [task for task in self.waiting if not task.finished]
        moved |= len(left) < len(self.waiting)
        self.waiting = left
        if self.is_over:
            self.arrival.restore_order(self.frame.values)
        return moved

    def take_over_from(self, before: GraphRun, graph: Graph) -> None:
        """Take over what the run before this one has made by now. Its turn comes when that one is over."""
        for value, last in zip(graph.inputs, graph.outputs, strict=False):
            if value.name in self.awaited and before.value_is_complete(last):
                self.frame.values[value.name] = before.frame.values[last]
                del self.awaited[value.name]
        self.may_change_models = before.may_change_models and before.is_over

    def value_is_complete(self, name: str) -> bool:
        """Whether a value is complete."""
        return name not in self.awaited and self.readiness.all_complete([name])

    def start_task(
        self, task: Task, work: Callable[[], Iterable[Part]], then: Callable[[int, NodeOutput], None]
    ) -> None:
        """Begin the work; `then` gets each part with its number."""
        task.running_count, self.under_way = task.running_count + 1, self.under_way + 1
        self.pool.submit(partial(self.work_and_report, task, work, then))

    def work_and_report(
        self, task: Task, work: Callable[[], Iterable[Part]], then: Callable[[int, NodeOutput], None]
    ) -> None:
        """Do the work, and leave the rest to the thread that runs the graph: only that one changes the frame. It gets
        failures, too."""
        try:
            for number, made in work():
                self.pool.post_event(partial(then, number, made))
            self.pool.post_event(partial(self.count_piece_done, task))
        except BaseException as error:
            report_failure(self.pool, error)

    def count_piece_done(self, task: Task) -> None:
        """Count one piece of a task's work as done."""
        task.running_count, self.under_way = task.running_count - 1, self.under_way - 1

    def advance_task(self, task: Task) -> bool:
        """Fire a task on a block if there is one."""
        if task.finished or task.fires_after and any(not reader.finished for reader in task.fires_after):
            return False
        if not self.may_change_models and task.changes_a_model:
            return False
        unit = task.node.unit
        axis = unit.axis if unit else None
        if axis is None:
            return self.start_on_whole_batch(self.pieces.get(id(task), [task]))
        # This is asked of each task whenever anything has come: what rules out most is asked first.
        if axis not in self.frame.rows or not self.inputs_have_come(task):
            return False
        lanes = self.backend.max_concurrent_blocks(task.node, self.frame)
        if task.running_count >= lanes:
            return False
        ready, closed = self.readiness.ready_row_count(task.node, axis), self.readiness.axis_is_complete(axis)
        last = closed and self.readiness.all_complete(task.node.inputs) and ready == self.frame.row_count(axis)
        if last and task.fired and task.rows_done == ready:
            # What came after its last block had no rows for it.
            task.finished = True
            return True
        if task.rows_begun == ready and (task.running_count or (lanes > 1 and not last)):
            return False
        if lanes > 1:
            if last and not task.rows_begun:
                self.move_longest_first(task, axis)
            end = self.worker_share_end(task, axis, ready, lanes, last)
            if end is not None:
                self.fire_blocks(task, axis, [end], last)
            return end is not None
        blocks = self.whole_block_ends(task, axis, ready)
        first = next(blocks, None)
        if first is None:
            if last:
                self.fire_blocks(task, axis, [ready], last)
            return last
        if self.backend.streams_output(task.node, self.frame):
            block_ends = [first, *blocks]
            self.fire_blocks(task, axis, block_ends if block_ends[-1] == ready else [*block_ends, ready], last)
        elif task.output_streams_on or self.blocks.rows is not None:
            self.fire_blocks(task, axis, [first], last)
        else:
            most = PIECE if self.overlaps and task.changes_a_model else None
            taken = [first, *islice(blocks, most and most - 1)]
            rest = last and (most is None or len(taken) < most)
            self.fire_blocks(task, axis, [ready if rest else taken[-1]], last)
        return True

    def find_fused_tasks(self) -> dict[int, list[Task]]:
        """Return for each training that is part of one piece of work, by its id, all tasks of the piece."""
        pieces: dict[int, list[Task]] = {}
        for models in self.fused.model_groups if self.fused else ():
            by_model: dict[str, Task] = {}
            for task in self.tasks:
                if NODES[task.node.op].trains and is_model(handle := self.frame.types[model_of(task.node)]):
                    by_model |= {handle.name: task} if handle.name in models else {}
            piece = [by_model[model] for model in models if model in by_model]
            if len(piece) > 1:
                pieces |= {id(task): piece for task in piece}
        return pieces

    def start_on_whole_batch(self, tasks: Sequence[Task]) -> bool:
        """Fire these tasks on the whole batch as one piece of work, if all can be fired."""
        for task in tasks:
            if (
                task.running_count
                or not self.readiness.all_complete(task.node.inputs)
                or not self.inputs_have_come(task)
            ):
                return False
            if any(not reader.finished for reader in task.fires_after):
                return False
        seen = self.frame_for_thread(
            self.arrival.frame_in_data_order([name for task in tasks for name in task.node.inputs])
        )

        def work() -> Iterable[Part]:
            if len(tasks) == 1:
                return [(0, self.backend.fire(tasks[0].node, seen))]
            assert self.fused
            return enumerate(self.fused.fire([task.node for task in tasks], seen))

        def task_done(number: int, made: NodeOutput) -> None:
            self.frame.add_output(self.arrival.reorder_output(made), {})
            tasks[number].finished = True

        for task in tasks[1:]:
            task.running_count += 1
        self.start_task(tasks[0], work, task_done)
        return True

    def frame_for_thread(self, frame: Frame) -> Frame:
        """Return a frame as it is now, for a thread: this one goes on adding to it."""
        return frame.child_frame() if self.together else frame

    def worker_share_end(self, task: Task, axis: str, ready: int, lanes: int, last: bool) -> int | None:
        """Return where the rows end that a free worker takes: a share of those that are ready, large ones first, and at
        the end row by row. A model takes no less than a block, and no more where others go on with it."""
        size = self.blocks.rows or -(-(ready - task.rows_begun) // (2 * lanes))
        end = min(task.rows_begun + size, ready)
        if self.blocks.rows is not None or not NODES[task.node.op].uses_model:
            return end
        block_ends = list(self.whole_block_ends(task, axis, ready))
        if last and (not block_ends or block_ends[-1] < ready):
            block_ends.append(ready)
        return next(
            (stop for stop in block_ends if task.output_streams_on or stop >= end),
            block_ends[-1] if block_ends else None,
        )

    def whole_block_ends(self, task: Task, axis: str, ready: int) -> Iterator[int]:
        """Yield where the blocks end that a task could be fired on."""
        size = self.blocks.rows
        if size is not None:
            return iter(range(task.rows_begun + size, ready + 1, size))
        return iter_block_ends(task.node, axis, self.frame, task.rows_begun, ready, task.table_blocks)

    def fire_blocks(self, task: Task, axis: str, ends: Sequence[int], last: bool) -> None:
        """Fire a task on the rows from where it is to the last end; with several ends, each part is reported by
        itself."""
        frame, node, start = self.frame, task.node, task.rows_begun
        block = frame
        if len(ends) > 1 or not (
            start == 0 and ends[0] == frame.row_count(axis) and self.readiness.axis_is_complete(axis)
        ):
            block, _ = frame.slice_rows(axis, np.arange(start, ends[-1]), node.inputs)
        task.rows_begun = ends[-1]
        seen = self.frame_for_thread(block)

        def block_done(number: int, made: NodeOutput) -> None:
            task.early_outputs[start] = ends[0] - start, made
            while task.rows_done in task.early_outputs:
                self.add_next_output(task, axis, task.rows_done)
            task.finished = last and task.rows_done == frame.row_count(axis)

        if len(ends) == 1:
            self.start_task(task, lambda: [(0, self.backend.fire(node, seen))], block_done)
            return
        sizes = [b - a for a, b in pairwise([start, *ends])]
        left = dict(enumerate(sizes))
        """Parts whose rows are not in the frame yet."""

        def part_done(number: int, made: NodeOutput) -> None:
            task.early_outputs[number] = sizes[number], made
            while task.early_outputs:
                number = next(iter(left))
                if number not in task.early_outputs:
                    if not self.may_reorder_rows(task, axis):
                        break
                    number = next(iter(task.early_outputs))
                    before = task.rows_done + sum(rows for part, rows in left.items() if part < number)
                    complete = self.readiness.names_of_complete(frame.values)
                    self.arrival.move_forward(axis, task.rows_done, before, before + sizes[number], complete)
                del left[number]
                self.add_next_output(task, axis, number)
            task.finished = last and task.rows_done == frame.row_count(axis)

        self.start_task(task, lambda: self.backend.run_in_parts(node, seen, sizes), part_done)

    def add_next_output(self, task: Task, axis: str, key: int) -> None:
        """Make the rows of a block, or of a part, that is done the next rows of a task."""
        rows, made = task.early_outputs.pop(key)
        start, task.rows_done, task.fired = task.rows_done, task.rows_done + rows, True
        self.frame.add_output(
            made, {} if rows == self.frame.row_count(axis) else self.first_row_by_axis(axis, start, task.rows_done)
        )

    def move_longest_first(self, task: Task, axis: str) -> None:
        """Move rows that are expected to be longer before others, if they may move: who is free takes the next ones."""
        expected = expected_lengths_of(task.node)
        if expected and self.may_reorder_rows(task, axis):
            turn = np.argsort(-np.asarray(self.frame.values[expected]), kind="stable")
            self.arrival.reorder(axis, turn, self.readiness.names_of_complete(self.frame.values))

    def may_reorder_rows(self, task: Task, axis: str) -> bool:
        """Whether rows of an axis that a task has not made may change places: no work has begun on them, and no table
        is made of them that would not know its rows' order in the data."""
        inside = self.frame.rows[axis].axis
        if inside.parent is not None or not self.readiness.axis_is_complete(axis):
            return False
        for other_task in self.tasks:
            unit = self.work_axis(other_task)
            if unit is None or not unit.is_within(inside):
                continue
            if any(
                not value_axis.is_within(inside)
                for value in other_task.node.outputs
                for value_axis in axes_of(value.type)
            ):
                return False
            begun = 0 if other_task.finished or other_task is task else other_task.rows_begun
            if begun and self.frame.ancestor_rows(unit.key, axis)[begun - 1] >= task.rows_done:
                return False
        return True

    def work_axis(self, task: Task) -> Axis | None:
        """Return the axis by whose rows a task works; None for the batch."""
        key, types = task.node.unit.axis if task.node.unit else None, self.frame.types
        outer = (
            axis
            for name in task.node.inputs
            for value_axis in axes_of(types[name])
            for axis in value_axis.path_to_root()
        )
        return next((axis for axis in outer if axis.key == key), None)

    def first_row_by_axis(self, axis: str, start: int, end: int) -> dict[str, int]:
        """Return, for each axis, the first row of some rows of an axis and of what lies in them."""
        _, places = self.frame.slice_rows(axis, np.arange(start, end), ())
        return {key: int(rows[0]) if rows.shape[0] else 0 for key, rows in places.items()}

    def inputs_have_come(self, task: Task) -> bool:
        """Whether all inputs of the graph that a task reads have come."""
        awaited = self.awaited
        return not awaited or all(name not in awaited or awaited[name](task.node) for name in task.node.inputs)


def wait_for_progress(runs: Sequence[GraphRun], pool: TaskPool) -> None:
    """Wait until something that one of these runs fired has come further."""
    waits = [task.node.name for run in runs for task in run.waiting]
    assert any(run.under_way for run in runs), f"no node can fire: {waits}"
    pool.next_event()()
    # One look at the tasks is enough for all events that have come meanwhile.
    while pool.has_event:
        pool.next_event()()


def never_ready(node: Node) -> bool:
    """Return False: this input comes as a whole, whichever node reads it."""
    return False
