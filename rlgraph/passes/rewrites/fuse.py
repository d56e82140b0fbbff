"""Fusion: tensor nodes with the same unit that feed each other become one node, lowered to one module. Class: exact.

A node joins the one that makes its input when everything else it needs is there by then. Nodes of different units stay
apart, so that no row waits for a barrier that it does not need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlgraph.ir.graph import Graph, Node, Program, axes, region_node, tensor_node
from rlgraph.ir.types import Axis, Type
from rlgraph.passes.rewrites.dead import dead
from rlgraph.passes.rewrites.units import unit_of


def fuse(program: Program) -> Program:
    known = axes(program)
    fused = {p.name: _graph(p.graph, p.graph.values(), known) for p in program.phases}
    # All values of a fused node are its outputs at first; those used inside only are dropped here.
    return dead(program.map_graphs(fused))


def _graph(graph: Graph, types: Mapping[str, Type], known: Mapping[str, Axis]) -> Graph:
    nodes: list[Node] = []
    joined: dict[int, list[Node]] = {}
    """The tensor nodes that become one, by its place among the nodes."""
    units: dict[int, str | None] = {}
    made_by: dict[str, int] = {}
    for node in graph.nodes:
        for region in node.regions:
            node = region_node(node, _graph(region, types, known))
        at = max((made_by.get(name, -1) for name in node.inputs), default=-1)
        axis = unit_of(node, types, known).axis if node.body else None
        if node.body and at in joined and units[at] == axis:
            joined[at].append(node)
        else:
            at = len(nodes)
            nodes.append(node)
            if node.body:
                joined[at], units[at] = [node], axis
        made_by.update({value.name: at for value in node.outputs})
    return replace(graph, nodes=tuple(_one(joined[at]) if at in joined else node for at, node in enumerate(nodes)))


def _one(parts: list[Node]) -> Node:
    """One node of several, in their order."""
    if len(parts) == 1:
        return parts[0]
    body = tuple(let for part in parts for let in part.body)
    names = tuple(value.name for part in parts for value in part.outputs)
    return replace(tensor_node(body, names, parts[0].span), unit=parts[0].unit)
