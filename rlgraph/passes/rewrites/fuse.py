"""Fusion: merges tensor nodes with the same unit that feed each other, so that they are lowered to one module. Class:
exact.

A node is merged into the producer of its input if everything else that it needs is available there. Nodes of different
units stay separate, so that no row waits for a barrier that it does not need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlgraph.ir.graph import Graph, Node, Program, program_axes, tensor_node, with_region
from rlgraph.ir.types import Axis, Type
from rlgraph.passes.rewrites.dead import remove_dead_nodes
from rlgraph.passes.rewrites.splittable_units import smallest_splittable_unit


def fuse(program: Program) -> Program:
    """Return the program with tensor nodes fused."""
    axes_by_key = program_axes(program)
    fused = {phase.name: _graph(phase.graph, phase.graph.value_types(), axes_by_key) for phase in program.phases}
    # All values of a fused node are outputs at first; those that are only used inside are removed here.
    return remove_dead_nodes(program.with_graphs(fused))


def _graph(graph: Graph, types: Mapping[str, Type], axes_by_key: Mapping[str, Axis]) -> Graph:
    nodes: list[Node] = []
    merged: dict[int, list[Node]] = {}
    """The tensor nodes that become one, by its index among the nodes."""
    units: dict[int, str | None] = {}
    made_by: dict[str, int] = {}
    for node in graph.nodes:
        for region in node.regions:
            node = with_region(node, _graph(region, types, axes_by_key))
        at = max((made_by.get(name, -1) for name in node.inputs), default=-1)
        axis = smallest_splittable_unit(node, types, axes_by_key).axis if node.body else None
        if node.body and at in merged and units[at] == axis:
            merged[at].append(node)
        else:
            at = len(nodes)
            nodes.append(node)
            if node.body:
                merged[at], units[at] = [node], axis
        made_by.update({value.name: at for value in node.outputs})
    return replace(graph, nodes=tuple(_merge(merged[at]) if at in merged else node for at, node in enumerate(nodes)))


def _merge(parts: list[Node]) -> Node:
    """Return one node for several, in their order."""
    if len(parts) == 1:
        return parts[0]
    body = tuple(let for part in parts for let in part.body)
    names = tuple(value.name for part in parts for value in part.outputs)
    return replace(tensor_node(body, names, parts[0].span), unit=parts[0].unit)
