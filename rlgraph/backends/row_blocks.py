"""This module decides on blocks: how many rows of its unit a node takes at a time.

A schedule counts the rows of a table, `stream rollout(block=64)`: a node that works on groups of these rows takes the
fewest groups that have so many, one that works on rows inside of them takes the rows that lie in so many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from rlgraph.backends.frame import Frame, is_step_state
from rlgraph.ir.graph import Graph, Node
from rlgraph.ir.types import Axis, Table, Type, axis_of
from rlgraph.ops.nodes import NODES, rows_per_input


@dataclass(frozen=True)
class BlockSizes:
    """The block sizes that a run asks for; by default one block is the whole batch."""

    rows: int | None = None
    """Rows of its unit that every node takes at a time."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """By the name of a table, how many of its rows are a block for the nodes that make it and for all that follow."""


@dataclass(frozen=True)
class BlockTable:
    """A table that sets the blocks of a node."""

    name: str
    rows: int
    """Rows of the table in a block."""
    axes: tuple[Axis, ...] = ()
    """Axes of the table's rows (filters leave several), those that the node uses first."""


def block_tables_by_node(
    graph: Graph, types: Mapping[str, Type], tables: Mapping[str, int]
) -> list[tuple[BlockTable, ...]]:
    """Return for each node of a graph the tables that it makes or uses, or from which its inputs were made. What a
    model has learned of rows does not count as made from them."""
    made_of: dict[str, set[str]] = {}
    cuts_by_node = []
    for node in graph.nodes:
        names = [name for name in (*node.inputs, *(v.name for v in node.outputs)) if not is_step_state(types[name])]
        sources = {table for name in names for table in made_of.get(name, {_table(name)} & tables.keys())}
        made_of |= {value.name: sources for value in node.outputs}
        cuts_by_node.append(
            tuple(BlockTable(table, tables[table], _axes(node, table, types)) for table in sorted(sources))
        )
    return cuts_by_node


def _axes(node: Node, table: str, types: Mapping[str, Type]) -> tuple[Axis, ...]:
    used = [axis for name in node.inputs if (axis := axis_of(types[name])) is not None]
    table_axes = [kind.axis for name, kind in types.items() if isinstance(kind, Table) and _table(name) == table]
    return tuple(sorted(table_axes, key=lambda axis: not any(used_axis.is_within(axis) for used_axis in used)))


def streams_blocks_by_node(graph: Graph) -> list[bool]:
    """Return for each node of a graph whether others go on with a block of what it makes: a model or the user's code,
    maybe after some mathematics. Where only a barrier follows, a block is merely the least that is worth a request:
    a node takes all rows that are ready."""
    begins: dict[str, bool] = {}
    handed = []
    for node in reversed(graph.nodes):
        passes_on = any(begins.get(value.name, False) for value in node.outputs)
        handed.append(passes_on)
        by_rows = node.unit is not None and node.unit.axis is not None
        works = by_rows and (passes_on or NODES[node.op].uses_model or bool(NODES[node.op].foreign))
        for name in node.inputs:
            begins[name] = begins.get(name, False) or works
    return handed[::-1]


def iter_block_ends(
    node: Node, unit: str, frame: Frame, done: int, ready: int, wanted: tuple[BlockTable, ...]
) -> Iterator[int]:
    """Yield the ends of the whole blocks among the rows `done` to `ready` of a node's unit, in order."""
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


def _count(node: Node, cut: BlockTable, unit: Axis, frame: Frame, ready: int) -> np.ndarray | None:
    """Return how many rows of a table lie before each row of the unit's axis, and before the next one to come, int64;
    for a unit inside of the table's rows, in how many of these the rows before it lie. None where the axes are not
    related."""
    if NODES[node.op].generates and _table(node.name) == cut.name:
        # These rows do not exist yet, but each row of the unit gets the same number of them.
        return np.arange(ready + 1) * rows_per_input(node)
    related = (axis for axis in cut.axes if axis.key in frame.rows and (axis.is_within(unit) or unit.is_within(axis)))
    axis = next(related, None)
    if axis is None:
        return None
    if unit.is_within(axis):
        return np.arange(ready + 1) if unit.key == axis.key else frame.ancestor_rows(unit.key, axis.key)[:ready]
    return frame.rows_before(axis.key, unit.key)[: ready + 1]


def _table(name: str) -> str:
    """Return the name of a table in the program: what a filter leaves of it has a number behind the name."""
    return name.split(".")[0]
