"""Sets the unit of every node, and the reason of every barrier. Class: exact.

A node that works by row can start before the batch is complete; one that works by group waits for its group; a barrier
waits for the whole batch, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlgraph.ir.graph import Graph, Program, program_axes
from rlgraph.ir.types import Axis, Type
from rlgraph.passes.rewrites.splittable_units import smallest_splittable_unit


def granularity(program: Program) -> Program:
    """Return the program with the units of all nodes set."""
    axes_by_key = program_axes(program)
    return program.with_graphs(
        {phase.name: _graph(phase.graph, phase.graph.value_types(), axes_by_key) for phase in program.phases}
    )


def _graph(graph: Graph, types: Mapping[str, Type], axes_by_key: Mapping[str, Axis]) -> Graph:
    nodes = tuple(
        replace(
            node,
            unit=smallest_splittable_unit(node, types, axes_by_key),
            regions=tuple(_graph(region, types, axes_by_key) for region in node.regions),
        )
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)
