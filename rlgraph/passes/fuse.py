"""Fusion: tensor nodes with the same unit that feed each other become one node, lowered to one module. Class: exact.

A node joins the one that makes its input when everything else it needs is there by then. Nodes of different units stay
apart, so that no row waits for a barrier that it does not need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlgraph.ir.graph import Graph, Node, Program, axes, region_node, tensor_node
from rlgraph.ir.types import Axis, Type
from rlgraph.passes.dead import dead
from rlgraph.passes.units import unit_of


def fuse(program: Program) -> Program:
    known = axes(program)
    fused = {p.name: _graph(p.graph, p.graph.values(), known) for p in program.phases}
    # All values of a fused node are its outputs at first; those used inside only are dropped here.
    return dead(program.map_graphs(fused))


def _graph(graph: Graph, types: Mapping[str, Type], known: Mapping[str, Axis]) -> Graph:
    nodes: list[Node] = []
    made_by: dict[str, int] = {}
    for node in graph.nodes:
        for region in node.regions:
            node = region_node(node, _graph(region, types, known))
        at = max((made_by.get(name, -1) for name in node.inputs), default=-1)
        if node.body and at >= 0 and nodes[at].body:
            host = nodes[at]
            if unit_of(host, types, known).axis == unit_of(node, types, known).axis:
                names = tuple(value.name for value in (*host.outputs, *node.outputs))
                nodes[at] = replace(tensor_node(host.body + node.body, names, host.span), unit=host.unit)
                made_by.update({value.name: at for value in node.outputs})
                continue
        made_by.update({value.name: len(nodes) for value in node.outputs})
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))
