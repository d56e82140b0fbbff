"""Blocks: how many rows of its unit a node takes at a time.

A schedule counts the rows of a table, `stream rollout(block=64)`: a node that works on groups of them takes the fewest
groups in which so many rows lie, one that works on rows inside of them the rows in so many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from rlgraph.backends.frame import Frame, is_handle
from rlgraph.ir.graph import Graph, Node
from rlgraph.ir.types import Axis, Table, Type, axis_of
from rlgraph.ops.nodes import NODES, rows_each


@dataclass(frozen=True)
class Blocks:
    """What a run asks for; nothing: one block for the batch."""

    each: int | None = None
    """Rows of its unit that every node takes at a time."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """Of a table, by name, the rows that are a block for the nodes that make it and for all that follows from it."""


@dataclass(frozen=True)
class Cut:
    """A table whose blocks a node takes."""

    name: str
    rows: int
    """Of the table, in a block."""
    axes: tuple[Axis, ...] = ()
    """Of the table's rows, the ones that the node uses first: filters leave several."""


def cuts(graph: Graph, types: Mapping[str, Type], tables: Mapping[str, int]) -> list[tuple[Cut, ...]]:
    """For each node of a graph the tables that it makes or uses, or that what it uses is made of. What a model has
    learned of rows is not made of them."""
    made_of: dict[str, set[str]] = {}
    found = []
    for node in graph.nodes:
        names = [name for name in (*node.inputs, *(v.name for v in node.outputs)) if not is_handle(types[name])]
        own = {table for name in names for table in made_of.get(name, {_table(name)} & tables.keys())}
        made_of |= {value.name: own for value in node.outputs}
        found.append(tuple(Cut(table, tables[table], _axes(node, table, types)) for table in sorted(own)))
    return found


def _axes(node: Node, table: str, types: Mapping[str, Type]) -> tuple[Axis, ...]:
    used = [axis for name in node.inputs if (axis := axis_of(types[name])) is not None]
    own = [kind.axis for name, kind in types.items() if isinstance(kind, Table) and _table(name) == table]
    return tuple(sorted(own, key=lambda axis: not any(other.within(axis) for other in used)))


def handed_on(graph: Graph) -> list[bool]:
    """For each node of a graph whether others work on with a block of what it makes: a model or the user's code, maybe
    after some mathematics. Where only a barrier follows, a block is the least that is worth an order: a node takes all
    that is there."""
    begins: dict[str, bool] = {}
    found = []
    for node in reversed(graph.nodes):
        own = any(begins.get(value.name, False) for value in node.outputs)
        found.append(own)
        by_rows = node.unit is not None and node.unit.axis is not None
        works = by_rows and (own or NODES[node.op].with_model or bool(NODES[node.op].foreign))
        for name in node.inputs:
            begins[name] = begins.get(name, False) or works
    return found[::-1]


def ends(node: Node, unit: str, frame: Frame, done: int, ready: int, wanted: tuple[Cut, ...]) -> Iterator[int]:
    """The ends of the whole blocks among the rows of a node's unit from `done` to `ready`, in order."""
    axis = frame.rows[unit].axis
    counts = [(count, cut.rows) for cut in wanted if (count := _count(node, cut, axis, frame, ready)) is not None]
    while True:
        full = [
            end
            for count, rows in counts
            if done < len(count) and (end := int(np.searchsorted(count, count[done] + rows))) < len(count)
        ]
        if not full:
            return
        done = min(full)
        yield done


def _count(node: Node, cut: Cut, unit: Axis, frame: Frame, ready: int) -> np.ndarray | None:
    """The rows of a table that lie before each row of the unit's axis, and before the next one that will come, int64;
    of a unit inside of the table's rows, in how many of them the rows before it lie. None where they are other rows."""
    if NODES[node.op].generates and _table(node.name) == cut.name:
        # They are not there yet, and as many for each.
        return np.arange(ready + 1) * rows_each(node)
    related = (axis for axis in cut.axes if axis.key in frame.rows and (axis.within(unit) or unit.within(axis)))
    axis = next(related, None)
    if axis is None:
        return None
    if unit.within(axis):
        return np.arange(ready + 1) if unit.key == axis.key else frame.index(unit.key, axis.key)[:ready]
    rows = np.bincount(frame.index(axis.key, unit.key), minlength=frame.size(unit.key))[:ready]
    return np.concatenate([[0], rows.cumsum()])


def _table(name: str) -> str:
    """The name of a table in the program: what a filter leaves of it has a number behind."""
    return name.split(".")[0]
