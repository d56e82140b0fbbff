"""Fusion: tensor nodes with the same unit that feed each other become one node, lowered to one module. Class: exact.

A node joins the one that makes its input when everything else it needs is there by then. Nodes of different units stay
apart, so that no row waits for a barrier that it does not need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rlgraph.ir.graph import Graph, Node, Program, axes, region_node, tensor_node
from rlgraph.ir.types import Axis, Type
from rlgraph.passes.dead import dead
from rlgraph.passes.units import unit_of


def fuse(program: Program) -> Program:
    known = axes(program)
    fused = {p.name: _graph(p.graph, p.graph.values(), known) for p in program.phases}
    # All values of a fused node are its outputs at first; those used inside only are dropped here.
    made = dead(program.map_graphs(fused))
    # A node that lost inputs may join another one.
    return fuse(made) if any(unfused(made)) else made


def unfused(program: Program) -> Iterator[str]:
    """Tensor nodes that are two and could be one: none after this pass."""
    known = axes(program)
    for phase in program.phases:
        types = phase.graph.values()
        for graph in phase.graph.graphs():
            made_by: dict[str, int] = {}
            for at, node in enumerate(graph.nodes):
                host = _host(node, graph.nodes, made_by, types, known)
                if host is not None:
                    yield f"phase {phase.name}: {graph.nodes[host].name} and {node.name} could be one"
                made_by.update({value.name: at for value in node.outputs})


def _graph(graph: Graph, types: Mapping[str, Type], known: Mapping[str, Axis]) -> Graph:
    nodes: list[Node] = []
    made_by: dict[str, int] = {}
    for node in graph.nodes:
        for region in node.regions:
            node = region_node(node, _graph(region, types, known))
        at = _host(node, nodes, made_by, types, known)
        if at is None:
            at = len(nodes)
            nodes.append(node)
        else:
            host = nodes[at]
            names = tuple(value.name for value in (*host.outputs, *node.outputs))
            nodes[at] = replace(tensor_node(host.body + node.body, names, host.span), unit=host.unit)
        made_by.update({value.name: at for value in node.outputs})
    return replace(graph, nodes=tuple(nodes))


def _host(
    node: Node,
    nodes: Sequence[Node],
    made_by: Mapping[str, int],
    types: Mapping[str, Type],
    known: Mapping[str, Axis],
) -> int | None:
    """The place of the node that this one can join: that which makes the last of its inputs."""
    at = max((made_by.get(name, -1) for name in node.inputs), default=-1)
    if at < 0 or not node.body or not nodes[at].body:
        return None
    return at if unit_of(nodes[at], types, known).axis == unit_of(node, types, known).axis else None
