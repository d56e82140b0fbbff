"""This module has the executor, which moves blocks of rows through a graph.

A node fires when a block of its unit is ready on all its inputs. With one block for the batch this is the classical
step, node after node; with small blocks rows stream from one node to the next, and only a node that works on the whole
batch waits. A backend says what firing means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import Any, Protocol

import numpy as np

from rlgraph.backends.arrival import RowOrder
from rlgraph.backends.blocks import BlockSizes, TableBlock, cuts, ends, handed_on
from rlgraph.backends.clocks import Clock, InlineClock, TaskPool
from rlgraph.backends.frame import Frame, is_handle
from rlgraph.backends.rows import Rows, join
from rlgraph.ir.graph import Graph, Node
from rlgraph.ir.types import Axis, axes_of, axis_of, is_model
from rlgraph.ops import NODES, work_of
from rlgraph.ops.nodes import expected_lengths_of, model_of

PIECE = 8
"""Blocks that a training takes at a time where steps overlap: in between go weights that another step waits for."""


@dataclass
class NodeOutput:
    """The output of a node for one block."""

    values: dict[str, Any] = field(default_factory=dict)
    rows: list[Rows] = field(default_factory=list)
    """The rows of new axes, outer ones first; parents are counted within the block."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the node reported."""


Part = tuple[int, NodeOutput]
"""A node's output for some of its rows, with the number of this part."""


class Backend(Protocol):
    """The work that the executor asks for when a node fires."""

    def fire(self, node: Node, frame: Frame) -> NodeOutput:
        """Do the work of a node on the rows of a frame."""
        ...

    def streams(self, node: Node, frame: Frame) -> bool:
        """Whether the output of this node comes part by part, from `parts`."""
        ...

    def parts(self, node: Node, frame: Frame, sizes: Sequence[int]) -> Iterator[Part]:
        """Do the work of a node on all rows of a frame, and yield each part when it is done, in whatever order: that of
        the first `sizes[0]` rows of its unit, that of the next `sizes[1]`, and so on."""
        ...

    def lanes(self, node: Node, frame: Frame) -> int:
        """Return on how many blocks a node is at work at the same time, at most: its workers take rows one by one."""
        ...

    def abort(self, why: BaseException) -> None:
        """Make work that is fired in other threads fail soon, with the same error: the run is over."""
        ...


@dataclass(frozen=True)
class FusedTrainings:
    """Trainings that are fired as one piece of work."""

    models: Sequence[Sequence[str]]
    """The models of each such piece."""
    fire: Callable[[Sequence[Node], Frame], Sequence[NodeOutput]]
    """Does the work of these nodes, in the order of their models."""


@dataclass
class _Task:
    """A node of a graph that runs, and how far it has come."""

    node: Node
    cuts: tuple[TableBlock, ...] = ()
    """The tables whose blocks it takes."""
    handed_on: bool = True
    """Whether others go on with a block of what it makes, while it does the next one."""
    after: list[_Task] = field(default_factory=list)
    """The tasks that read a handle which this node replaces: it fires after them."""
    done: int = 0
    """Rows of its unit whose values are in the frame, from the first one on."""
    begun: int = 0
    """Rows that it was fired on."""
    fired: bool = False
    busy: int = 0
    """How often it was fired, on a block or on several in a row, without being done yet."""
    ahead: dict[int, tuple[int, NodeOutput]] = field(default_factory=dict)
    """Output that came before something that goes first: blocks by their first row, parts by their number, each with
    how many rows it has."""
    finished: bool = False

    @property
    def changes_a_model(self) -> bool:
        """Whether it changes a model, or begins to, with gradients that are added up."""
        return work_of(self.node.op) == "trains" or any(is_model(value.type) for value in self.node.outputs)


Await = Callable[[Node], bool]
"""Whether an input has come for a node that reads it."""


class Executor:
    """Runs graphs on a backend."""

    def __init__(
        self,
        backend: Backend,
        blocks: BlockSizes | None = None,
        clock: Clock | None = None,
        lanes: int = 1,
        together: FusedTrainings | None = None,
    ) -> None:
        """lanes: on how many blocks any node is at work at the same time, at most."""
        self.fused = together
        self.backend, self.lanes = backend, lanes
        self.clock = clock or InlineClock()
        self.blocks = blocks or BlockSizes()
        self._crews, self._lasting = ExitStack(), dict[str, TaskPool]()

    def threads(self, graph: Graph) -> int:
        """Return how many threads a graph needs at most; they are started as they are needed."""
        return len(graph.nodes) * self.lanes

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep lasting crews while somebody asks for steps. At the end all work of these crews has ended, and been
        reported."""
        with ExitStack() as self._crews:
            try:
                yield
            finally:
                self._lasting.clear()

    def lasting(self, key: str, size: int) -> TaskPool:
        """Return the crew of a key, which does not end with the node for which it works."""
        if key not in self._lasting:
            self._lasting[key] = self._crews.enter_context(_until_told(self.clock, size))
        return self._lasting[key]

    def run(self, graph: Graph, frame: Frame) -> None:
        """Run every node; the values are in the frame afterwards."""
        self.run_all(graph, [frame], ())

    def run_all(self, graph: Graph, frames: Sequence[Frame], carried: Sequence[Any]) -> list[Any]:
        """Run a graph on several frames, which wait for each other where the first inputs of one are the first outputs
        of the one before; `carried` are those of the first frame. They change models one after the other. Returns
        what the last one leaves of these."""
        frames[0].values.update(zip((value.name for value in graph.inputs), carried, strict=False))
        with self.clock.crew(self.threads(graph) * len(frames)) as crew:
            try:
                runs = [GraphRun(self, graph, frame, crew) for frame in frames]
                for run in runs[1:]:
                    run.turn, run.awaited = False, {value.name: never_ready for value in graph.inputs[: len(carried)]}
                while not all(run.over for run in runs):
                    moved = runs[0].advance()
                    for before, run in pairwise(runs):
                        run.follow(before, graph)
                        # Where one node runs at a time nothing is gained by beginning early.
                        moved |= (self.clock.together or before.over) and run.advance()
                    if not moved:
                        wait_for_progress(runs, crew)
                for before, run in pairwise(runs):
                    run.follow(before, graph)
            except BaseException as error:
                self.backend.abort(error)
                raise
        return [frames[-1].values[name] for name in graph.outputs[: len(carried)]]


class GraphRun:
    """A graph while it runs: one of a step, or of the region of a loop."""

    def __init__(self, executor: Executor, graph: Graph, frame: Frame, crew: TaskPool) -> None:
        self.backend, self.blocks, self.together = executor.backend, executor.blocks, executor.clock.together
        self.graph, self.frame, self.crew, self.arrival = graph, frame, crew, RowOrder(frame)
        self.awaited: dict[str, Await] = {}
        """Inputs of the graph that a step before makes, and has not made yet."""
        self.turn = True
        """Whether it may change models. Of the steps that are under way only the oldest one may."""
        self.overlaps = False
        """Whether other steps sample beside this one's training."""
        self.under_way = 0
        """Nodes that are fired and not done."""
        cuts_by_node = cuts(graph, frame.types, self.blocks.tables)
        self.tasks = [
            _Task(node, node_cuts, handed)
            for node, node_cuts, handed in zip(graph.nodes, cuts_by_node, handed_on(graph), strict=True)
            # Values that the frame has already need not be made.
            if not node.outputs or any(value.name not in frame.values for value in node.outputs)
        ]
        self.waiting = list(self.tasks)
        self.fused = executor.fused
        self.beside = self.pieces()
        """For each training that is fired with others, by its id, all of these."""
        self.maker = {value.name: task for task in self.tasks for value in task.node.outputs}
        self.axis_maker: dict[str, _Task] = {}
        self.starts: dict[str, int] = {}
        readers: dict[str, list[_Task]] = {}
        for task in self.tasks:
            replaced = {v.type for v in task.node.outputs if is_handle(v.type)}
            for name in task.node.inputs:
                if not is_handle(frame.types[name]):
                    continue
                if frame.types[name] in replaced:
                    task.after += readers.get(name, [])
                readers.setdefault(name, []).append(task)
            for value in task.node.outputs:
                for axis in (outer for value_axis in axes_of(value.type) for outer in value_axis.path()):
                    if axis.key not in frame.rows:
                        self.axis_maker.setdefault(axis.key, task)

    @property
    def over(self) -> bool:
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
        if self.over:
            self.arrival.back(self.frame.values)
        return moved

    def follow(self, before: GraphRun, graph: Graph) -> None:
        """Take over what the run before this one has made by now. Its turn comes when that one is over."""
        for value, last in zip(graph.inputs, graph.outputs, strict=False):
            if value.name in self.awaited and before.has_made(last):
                self.frame.values[value.name] = before.frame.values[last]
                del self.awaited[value.name]
        self.turn = before.turn and before.over

    def has_made(self, name: str) -> bool:
        """Whether a value is complete."""
        return name not in self.awaited and self.all_made([name])

    def start(self, task: _Task, work: Callable[[], Iterable[Part]], then: Callable[[int, NodeOutput], None]) -> None:
        """Begin the work; `then` gets each part with its number."""
        task.busy, self.under_way = task.busy + 1, self.under_way + 1
        self.crew.begin(partial(self.work, task, work, then))

    def work(self, task: _Task, work: Callable[[], Iterable[Part]], then: Callable[[int, NodeOutput], None]) -> None:
        """Do the work, and leave the rest to the thread that runs the graph: only that one changes the frame. It gets
        failures, too."""
        try:
            for number, made in work():
                self.crew.tell(partial(then, number, made))
            self.crew.tell(partial(self.idle, task))
        except BaseException as error:
            self.crew.tell(partial(_raise, error))

    def idle(self, task: _Task) -> None:
        """Count one piece of a task's work as done."""
        task.busy, self.under_way = task.busy - 1, self.under_way - 1

    def advance_task(self, task: _Task) -> bool:
        """Fire a task on a block if there is one."""
        if task.finished or any(not reader.finished for reader in task.after):
            return False
        if not self.turn and task.changes_a_model:
            return False
        lanes = self.backend.lanes(task.node, self.frame)
        if task.busy >= lanes:
            return False
        if self.awaited and not all(self.came(name, task.node) for name in task.node.inputs):
            return False
        unit = task.node.unit
        axis = unit.axis if unit else None
        if axis is None:
            if task.busy or not self.all_made(task.node.inputs):
                return False
            partners = self.beside.get(id(task))
            if partners:
                return self.start_together(partners)

            def all_done(number: int, made: NodeOutput) -> None:
                self.made(self.arrival.laid(made), {})
                task.finished = True

            ordered = self.arrival.sorted(task.node.inputs)
            # A thread sees the frame as it is now, while this thread goes on adding to it.
            snapshot = ordered.child() if self.together else ordered
            self.start(task, lambda: [(0, self.backend.fire(task.node, snapshot))], all_done)
            return True
        if axis not in self.frame.rows:
            return False
        ready, closed = self.ready(task.node, axis), self.closed(axis) and self.all_made(task.node.inputs)
        last = closed and ready == self.frame.size(axis)
        if last and task.fired and task.done == ready:
            # What came after its last block had no rows for it.
            task.finished = True
            return True
        if task.begun == ready and (task.busy or (lanes > 1 and not last)):
            return False
        if lanes > 1:
            if last and not task.begun:
                self.admit(task, axis)
            end = self.share(task, axis, ready, lanes, last)
            if end is not None:
                self.fire(task, axis, [end], last)
            return end is not None
        blocks = self.whole_blocks(task, axis, ready)
        first = next(blocks, None)
        if first is None:
            if last:
                self.fire(task, axis, [ready], last)
            return last
        if self.backend.streams(task.node, self.frame):
            block_ends = [first, *blocks]
            self.fire(task, axis, block_ends if block_ends[-1] == ready else [*block_ends, ready], last)
        elif task.handed_on or self.blocks.each is not None:
            self.fire(task, axis, [first], last)
        else:
            most = PIECE if self.overlaps and task.changes_a_model else None
            taken = [first, *islice(blocks, most and most - 1)]
            rest = last and (most is None or len(taken) < most)
            self.fire(task, axis, [ready if rest else taken[-1]], last)
        return True

    def pieces(self) -> dict[int, list[_Task]]:
        """Return for each training that is part of one piece of work, by its id, all tasks of the piece."""
        pieces: dict[int, list[_Task]] = {}
        for models in self.fused.models if self.fused else ():
            by_model: dict[str, _Task] = {}
            for task in self.tasks:
                if NODES[task.node.op].trains and is_model(handle := self.frame.types[model_of(task.node)]):
                    by_model |= {handle.name: task} if handle.name in models else {}
            piece = [by_model[model] for model in models if model in by_model]
            if len(piece) > 1:
                pieces |= {id(task): piece for task in piece}
        return pieces

    def start_together(self, tasks: Sequence[_Task]) -> bool:
        """Fire these tasks on the whole batch, if all can be fired."""
        for task in tasks:
            came = not self.awaited or all(self.came(name, task.node) for name in task.node.inputs)
            if not came or not self.all_made(task.node.inputs) or any(not reader.finished for reader in task.after):
                return False
        assert self.fused
        fire = self.fused.fire
        ordered = self.arrival.sorted([name for task in tasks for name in task.node.inputs])
        snapshot = ordered.child() if self.together else ordered

        def done(number: int, made: NodeOutput) -> None:
            self.made(self.arrival.laid(made), {})
            tasks[number].finished = True

        for task in tasks[1:]:
            task.busy += 1
        self.start(tasks[0], lambda: enumerate(fire([task.node for task in tasks], snapshot)), done)
        return True

    def share(self, task: _Task, axis: str, ready: int, lanes: int, last: bool) -> int | None:
        """Return where the rows end that a free worker takes: a share of those that are ready, large ones first, and at
        the end row by row. A model takes no less than a block, and no more where others go on with it."""
        size = self.blocks.each or -(-(ready - task.begun) // (2 * lanes))
        end = min(task.begun + size, ready)
        if self.blocks.each is not None or not NODES[task.node.op].with_model:
            return end
        block_ends = list(self.whole_blocks(task, axis, ready))
        if last and (not block_ends or block_ends[-1] < ready):
            block_ends.append(ready)
        return next(
            (stop for stop in block_ends if task.handed_on or stop >= end), block_ends[-1] if block_ends else None
        )

    def whole_blocks(self, task: _Task, axis: str, ready: int) -> Iterator[int]:
        """Yield where the blocks end that a task could be fired on."""
        size = self.blocks.each
        if size is not None:
            return iter(range(task.begun + size, ready + 1, size))
        return ends(task.node, axis, self.frame, task.begun, ready, task.cuts)

    def fire(self, task: _Task, axis: str, ends: Sequence[int], last: bool) -> None:
        """Fire a task on the rows from where it is to the last end; with several ends, each part is reported by
        itself."""
        frame, node, start = self.frame, task.node, task.begun
        block = frame
        if len(ends) > 1 or not (start == 0 and ends[0] == frame.size(axis) and self.closed(axis)):
            block, _ = frame.slice(axis, np.arange(start, ends[-1]), node.inputs)
        task.begun = ends[-1]
        snapshot = block.child() if self.together else block

        def block_done(number: int, made: NodeOutput) -> None:
            task.ahead[start] = ends[0] - start, made
            while task.done in task.ahead:
                self.add(task, axis, task.done)
            task.finished = last and task.done == frame.size(axis)

        if len(ends) == 1:
            self.start(task, lambda: [(0, self.backend.fire(node, snapshot))], block_done)
            return
        sizes = [b - a for a, b in pairwise([start, *ends])]
        left = dict(enumerate(sizes))
        """Parts whose rows are not in the frame yet."""

        def part_done(number: int, made: NodeOutput) -> None:
            task.ahead[number] = sizes[number], made
            while task.ahead:
                number = next(iter(left))
                if number not in task.ahead:
                    if not self.may_move(task, axis):
                        break
                    number = next(iter(task.ahead))
                    before = task.done + sum(rows for part, rows in left.items() if part < number)
                    self.arrival.forward(axis, task.done, before, before + sizes[number], self.whole(frame.values))
                del left[number]
                self.add(task, axis, number)
            task.finished = last and task.done == frame.size(axis)

        self.start(task, lambda: self.backend.parts(node, snapshot, sizes), part_done)

    def add(self, task: _Task, axis: str, key: int) -> None:
        """Make the rows of a block, or of a part, that is done the next rows of a task."""
        rows, made = task.ahead.pop(key)
        start, task.done, task.fired = task.done, task.done + rows, True
        self.made(made, {} if rows == self.frame.size(axis) else self.first(axis, start, task.done))

    def admit(self, task: _Task, axis: str) -> None:
        """Move rows that are expected to be longer before others, if they may move: who is free takes the next ones."""
        expected = expected_lengths_of(task.node)
        if expected and self.may_move(task, axis):
            turn = np.argsort(-np.asarray(self.frame.values[expected]), kind="stable")
            self.arrival.lay(axis, turn, self.whole(self.frame.values))

    def may_move(self, task: _Task, axis: str) -> bool:
        """Whether rows of an axis that a task has not made may change places: no work has begun on them, and no table
        is made of them that would not know its rows' order in the data."""
        inside = self.frame.rows[axis].axis
        if inside.parent is not None or not self.closed(axis):
            return False
        for other_task in self.tasks:
            unit = self.unit_of(other_task)
            if unit is None or not unit.within(inside):
                continue
            if any(
                not value_axis.within(inside) for value in other_task.node.outputs for value_axis in axes_of(value.type)
            ):
                return False
            begun = 0 if other_task.finished or other_task is task else other_task.begun
            if begun and self.frame.index(unit.key, axis)[begun - 1] >= task.done:
                return False
        return True

    def unit_of(self, task: _Task) -> Axis | None:
        """Return the axis by whose rows a task works; None for the batch."""
        key, types = task.node.unit.axis if task.node.unit else None, self.frame.types
        outer = (axis for name in task.node.inputs for value_axis in axes_of(types[name]) for axis in value_axis.path())
        return next((axis for axis in outer if axis.key == key), None)

    def whole(self, names: Iterable[str]) -> list[str]:
        """Return those of the values that are complete."""
        return [name for name in names if self.all_made([name])]

    def first(self, axis: str, start: int, end: int) -> dict[str, int]:
        """Return, for each axis, the first row of some rows of an axis and of what lies in them."""
        _, places = self.frame.slice(axis, np.arange(start, end), ())
        return {key: int(rows[0]) if rows.shape[0] else 0 for key, rows in places.items()}

    def made(self, made: NodeOutput, first: dict[str, int]) -> None:
        """Add the output of a block to the frame; `first` is the block's first row on each sliced axis."""
        frame = self.frame
        before = {
            rows.axis.key: frame.rows[rows.axis.key].size if rows.axis.key in frame.rows else 0 for rows in made.rows
        }
        for rows in made.rows:
            above = rows.axis.parent
            offset = (before[above.key] if above.key in before else first.get(above.key, 0)) if above else 0
            parent = None if rows.parent is None else rows.parent + offset
            frame.add_rows(Rows(rows.axis, rows.size, parent, rows.ids))
        for name, value in made.values.items():
            frame.values[name] = join([frame.values[name], value]) if name in frame.values else value
        frame.metrics.update(made.metrics)

    # What is ready

    def came(self, name: str, node: Node) -> bool:
        """Whether an input of the graph has come, for a node that reads it."""
        return name not in self.awaited or self.awaited[name](node)

    def all_made(self, names: Iterable[str]) -> bool:
        """Whether all these values are complete."""
        return all(self.maker[name].finished for name in names if name in self.maker)

    def closed(self, axis: str) -> bool:
        """Whether no more rows of an axis will come."""
        maker = self.axis_maker.get(axis)
        return maker is None or maker.finished

    def ready(self, node: Node, unit: str) -> int:
        """Return how many rows of the unit's axis, from the first one on, all inputs have with all that lies in
        them."""
        target = self.frame.rows[unit].axis
        return min((self.has(name, target) for name in node.inputs), default=self.frame.size(unit))

    def has(self, name: str, unit: Axis) -> int:
        """Return how many rows of an axis a value has: its entries in them, or theirs in it."""
        maker, axis = self.maker.get(name), axis_of(self.frame.types[name])
        if maker is None or maker.finished:
            return self.frame.size(unit.key)
        if axis is None or maker.done == 0:
            return 0
        if axis.within(unit):
            return self.through(maker, unit)
        if unit.within(axis):
            return self.before(unit, axis, self.through(maker, axis))
        return 0

    def through(self, maker: _Task, axis: Axis) -> int:
        """Return of how many rows of an axis a node has made all that it will make."""
        if maker.finished or self.axis_maker.get(axis.key) is maker:
            return self.frame.size(axis.key)
        unit = self.frame.rows[maker.node.unit.axis].axis if maker.node.unit and maker.node.unit.axis else None
        if unit is None or maker.done == 0:
            return 0
        if axis.within(unit):
            return self.before(axis, unit, maker.done)
        if not unit.within(axis):
            return 0
        # Count the rows of which all units have come and are done.
        source = self.axis_maker.get(unit.key)
        count = self.frame.size(axis.key) if source is None else self.through(source, axis)
        if maker.done < self.frame.size(unit.key):
            count = min(count, int(self.frame.index(unit.key, axis.key)[maker.done]))
        return count

    def before(self, child: Axis, ancestor: Axis, count: int) -> int:
        """Return how many rows of `child` lie in the first `count` rows of `ancestor`."""
        return int((self.frame.index(child.key, ancestor.key) < count).sum())


@contextmanager
def _until_told(clock: Clock, size: int) -> Iterator[TaskPool]:
    """Yield a crew whose last events are run by whoever ends it."""
    with clock.crew(size) as crew:
        yield crew
        crew.adopt()
    while crew.told:
        crew.next()()


def _raise(error: BaseException) -> None:
    raise error


def wait_for_progress(runs: Sequence[GraphRun], crew: TaskPool) -> None:
    """Wait until something that one of these runs fired has come further."""
    waits = [task.node.name for run in runs for task in run.waiting]
    assert any(run.under_way for run in runs), f"no node can fire: {waits}"
    crew.next()()
    # One look at the tasks is enough for all events that have come meanwhile.
    while crew.told:
        crew.next()()


def never_ready(node: Node) -> bool:
    """Return False: this input comes as a whole, whichever node reads it."""
    return False
