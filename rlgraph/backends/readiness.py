"""This module says what is ready while a graph runs: of which rows a node has all inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rlgraph.backends.frame import Frame, NodeOutput, is_step_state
from rlgraph.backends.row_blocks import BlockTable
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Axis, axes_of, axis_of, is_model
from rlgraph.ops import model_work_of


@dataclass
class Task:
    """A node of a graph that runs, and how far it has come."""

    node: Node
    table_blocks: tuple[BlockTable, ...] = ()
    """The tables whose blocks it takes."""
    output_streams_on: bool = True
    """Whether others go on with a block of what it makes, while it does the next one."""
    fires_after: list[Task] = field(default_factory=list)
    """The tasks that read a handle which this node replaces: it fires after them."""
    rows_done: int = 0
    """Rows of its unit whose values are in the frame, from the first one on."""
    rows_begun: int = 0
    """Rows that it was fired on."""
    fired: bool = False
    running_count: int = 0
    """How often it was fired, on a block or on several in a row, without being done yet."""
    early_outputs: dict[int, tuple[int, NodeOutput]] = field(default_factory=dict)
    """Output that came before something that goes first: blocks by their first row, parts by their number, each with
    how many rows it has."""
    finished: bool = False
    changes_a_model: bool = field(init=False)
    """Whether it changes a model, or begins to, with gradients that are added up."""

    def __post_init__(self) -> None:
        self.changes_a_model = model_work_of(self.node.op) == "trains" or any(
            is_model(value.type) for value in self.node.outputs
        )


class Readiness:
    """What of a frame's values is complete while tasks make them. Sets `fires_after` of each task."""

    def __init__(self, tasks: Sequence[Task], frame: Frame) -> None:
        self.frame = frame
        self.maker = {value.name: task for task in tasks for value in task.node.outputs}
        self.axis_maker: dict[str, Task] = {}
        readers: dict[str, list[Task]] = {}
        for task in tasks:
            replaced = {v.type for v in task.node.outputs if is_step_state(v.type)}
            for name in task.node.inputs:
                if not is_step_state(frame.types[name]):
                    continue
                if frame.types[name] in replaced:
                    task.fires_after += readers.get(name, [])
                readers.setdefault(name, []).append(task)
            for value in task.node.outputs:
                for axis in (outer for value_axis in axes_of(value.type) for outer in value_axis.path_to_root()):
                    if axis.key not in frame.rows:
                        self.axis_maker.setdefault(axis.key, task)

    def all_complete(self, names: Iterable[str]) -> bool:
        """Whether all these values are complete."""
        makers = self.maker
        for name in names:
            maker = makers.get(name)
            if maker is not None and not maker.finished:
                return False
        return True

    def names_of_complete(self, names: Iterable[str]) -> list[str]:
        """Return those of the values that are complete."""
        return [name for name in names if self.all_complete([name])]

    def axis_is_complete(self, axis: str) -> bool:
        """Whether no more rows of an axis will come."""
        maker = self.axis_maker.get(axis)
        return maker is None or maker.finished

    def ready_row_count(self, node: Node, unit: str) -> int:
        """Return how many rows of the unit's axis, from the first one on, all inputs have with all that lies in
        them."""
        target = self.frame.rows[unit].axis
        return min((self._has(name, target) for name in node.inputs), default=self.frame.row_count(unit))

    def _has(self, name: str, unit: Axis) -> int:
        """Return how many rows of an axis a value has: its entries in them, or theirs in it."""
        maker, axis = self.maker.get(name), axis_of(self.frame.types[name])
        if maker is None or maker.finished:
            return self.frame.row_count(unit.key)
        if axis is None or maker.rows_done == 0:
            return 0
        if axis.is_within(unit):
            return self._through(maker, unit)
        if unit.is_within(axis):
            return self._before(unit, axis, self._through(maker, axis))
        return 0

    def _through(self, maker: Task, axis: Axis) -> int:
        """Return of how many rows of an axis a node has made all that it will make."""
        if maker.finished or self.axis_maker.get(axis.key) is maker:
            return self.frame.row_count(axis.key)
        unit = self.frame.rows[maker.node.unit.axis].axis if maker.node.unit and maker.node.unit.axis else None
        if unit is None or maker.rows_done == 0:
            return 0
        if axis.is_within(unit):
            return self._before(axis, unit, maker.rows_done)
        if not unit.is_within(axis):
            return 0
        # Count the rows of which all units have come and are done.
        source = self.axis_maker.get(unit.key)
        count = self.frame.row_count(axis.key) if source is None else self._through(source, axis)
        if maker.rows_done < self.frame.row_count(unit.key):
            count = min(count, int(self.frame.ancestor_rows(unit.key, axis.key)[maker.rows_done]))
        return count

    def _before(self, child: Axis, ancestor: Axis, count: int) -> int:
        """Return how many rows of `child` lie in the first `count` rows of `ancestor`."""
        return int((self.frame.ancestor_rows(child.key, ancestor.key) < count).sum())
