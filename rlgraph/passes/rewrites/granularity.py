"""The unit of every node, and the reason of every barrier. Class: exact.

A node that works by row can start before the batch is there; one that works by group waits for its group; a barrier
waits for all, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlgraph.ir.graph import Graph, Program, axes
from rlgraph.ir.types import Axis, Type
from rlgraph.passes.rewrites.units import unit_of


def granularity(program: Program) -> Program:
    known = axes(program)
    return program.map_graphs({p.name: _graph(p.graph, p.graph.values(), known) for p in program.phases})


def _graph(graph: Graph, types: Mapping[str, Type], known: Mapping[str, Axis]) -> Graph:
    nodes = tuple(
        replace(
            node,
            unit=unit_of(node, types, known),
            regions=tuple(_graph(region, types, known) for region in node.regions),
        )
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)
