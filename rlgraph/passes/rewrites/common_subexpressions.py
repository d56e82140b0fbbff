"""Common subexpression elimination: merges pure nodes that do the same with the same values.

The body of a loop sees the nodes before the loop, so that it uses their results instead of computing them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlgraph.ir.graph import Apply, Expr, Graph, Node, Program, program_axes, rename_uses, with_region
from rlgraph.ir.types import Axis
from rlgraph.ops import NODES, TENSOR

Seen = Mapping[tuple[object, ...], Node]


def merge_common_subexpressions(program: Program) -> Program:
    """Return the program without common subexpressions."""
    axes_by_key = program_axes(program)
    return program.with_graphs({phase.name: _graph(phase.graph, {}, axes_by_key) for phase in program.phases})


def _key(node: Node) -> tuple[object, ...] | None:
    """Return a key that is equal for nodes that can be merged; None for a node that cannot."""
    if not NODES[node.op].pure:
        return None
    if node.body:
        return (node.op, node.body[0].expr) if len(node.body) == 1 and node.inputs else None
    return (node.op, node.inputs, node.attrs)


def _graph(graph: Graph, seen: Seen, axes_by_key: Mapping[str, Axis]) -> Graph:
    available: dict[tuple[object, ...], Node] = dict(seen)
    renamed: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node = rename_uses(node, renamed)
        if node.regions:
            visible = _in_slices(node, available, axes_by_key) if NODES[node.op].loop == "slices" else available
            node = with_region(node, _graph(node.region, visible, axes_by_key))
        key = _key(node)
        earlier = available.get(key) if key is not None else None
        # Two tables have different axes: only values of the same type can be merged.
        if earlier is not None and [v.type for v in earlier.outputs] == [v.type for v in node.outputs]:
            pairs = zip(node.outputs, earlier.outputs, strict=True)
            renamed.update({mine.name: theirs.name for mine, theirs in pairs})
            continue
        if key is not None:
            available.setdefault(key, node)
        nodes.append(node)
    outputs = tuple(renamed.get(name, name) for name in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _in_slices(loop: Node, available: Seen, axes_by_key: Mapping[str, Axis]) -> Seen:
    """Return the nodes whose values a loop over slices may use: a number about the whole batch differs from that of a
    slice."""
    axis = axes_by_key[loop.attr("axis")]
    return {
        key: node
        for key, node in available.items()
        if not NODES[node.op].is_barrier and all(_is_local(let.expr, axis, axes_by_key) for let in node.body)
    }


def _is_local(expr: Expr, axis: Axis, axes_by_key: Mapping[str, Axis]) -> bool:
    if not isinstance(expr, Apply):
        return True
    if TENSOR[expr.op].is_grouped and (expr.axis is None or not axes_by_key[expr.axis].is_within(axis)):
        return False
    return all(_is_local(arg, axis, axes_by_key) for arg in expr.args)
