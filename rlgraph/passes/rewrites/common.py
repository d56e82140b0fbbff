"""Common sub-expressions: two nodes that do the same to the same values are one.

A body sees the nodes before its loop, so what a loop would compute again is taken from outside. Only pure operations
are merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlgraph.ir.graph import Apply, Expr, Graph, Node, Program, axes, region_node, rename
from rlgraph.ir.types import Axis
from rlgraph.ops import NODES, TENSOR

Seen = Mapping[tuple[object, ...], Node]


def common(program: Program) -> Program:
    known = axes(program)
    return program.map_graphs({phase.name: _graph(phase.graph, {}, known) for phase in program.phases})


def _key(node: Node) -> tuple[object, ...] | None:
    """What makes two nodes the same; None for a node that is only ever itself."""
    if not NODES[node.op].pure:
        return None
    if node.body:
        return (node.op, node.body[0].expr) if len(node.body) == 1 and node.inputs else None
    return (node.op, node.inputs, node.attrs)


def _graph(graph: Graph, seen: Seen, known: Mapping[str, Axis]) -> Graph:
    found: dict[tuple[object, ...], Node] = dict(seen)
    renamed: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node = rename(node, renamed)
        if node.regions:
            visible = _in_slices(node, found, known) if NODES[node.op].loop == "slices" else found
            node = region_node(node, _graph(node.region, visible, known))
        key = _key(node)
        old = found.get(key) if key is not None else None
        # Two tables are two sets of axes: only values of the same type can be one.
        if old is not None and [v.type for v in old.outputs] == [v.type for v in node.outputs]:
            pairs = zip(node.outputs, old.outputs, strict=True)
            renamed.update({mine.name: theirs.name for mine, theirs in pairs})
            continue
        if key is not None:
            found.setdefault(key, node)
        nodes.append(node)
    outputs = tuple(renamed.get(name, name) for name in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _in_slices(loop: Node, found: Seen, known: Mapping[str, Axis]) -> Seen:
    """The nodes that mean the same on a slice: a number about the whole batch is another than that of a slice."""
    axis = known[loop.attr("axis")]
    return {
        key: node
        for key, node in found.items()
        if not NODES[node.op].barrier and all(_local(let.expr, axis, known) for let in node.body)
    }


def _local(expr: Expr, axis: Axis, known: Mapping[str, Axis]) -> bool:
    if not isinstance(expr, Apply):
        return True
    if TENSOR[expr.op].kind == "reduction" and (expr.axis is None or not known[expr.axis].within(axis)):
        return False
    return all(_local(arg, axis, known) for arg in expr.args)
