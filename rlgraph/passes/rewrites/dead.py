"""Dead values: what nobody uses is not made.

What counts: reports, and the last version of everything that lives across steps. Loops lose the exports that nobody
uses, and the bodies' nodes with them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress

from rlgraph.ir.graph import Graph, Node, Program, Value, refs, region_node, tensor_node
from rlgraph.ir.types import axis_of
from rlgraph.ops import NODES, chosen_from


def dead(program: Program) -> Program:
    return program.map_graphs({phase.name: prune(phase.graph) for phase in program.phases})


def prune(graph: Graph) -> Graph:
    """The graph without nodes that neither its outputs nor an effect need."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        slim = _slim(node, needed)
        if slim is None:
            continue
        kept.append(slim)
        needed.update(slim.inputs)
    return replace(graph, nodes=tuple(reversed(kept)))


def _effect(node: Node) -> bool:
    return NODES[node.op].effect or any(_effect(inner) for region in node.regions for inner in region.nodes)


def _slim(node: Node, needed: set[str]) -> Node | None:
    """The node with the outputs that are needed; None when it can go."""
    used = [value.name in needed for value in node.outputs]
    if not any(used) and not _effect(node):
        return None
    if node.body:
        return _slim_tensor(node, needed)
    op = NODES[node.op]
    if op.chooses is not None:
        inputs = list(compress(chosen_from(node), used))
        inputs.insert(op.chooses, node.inputs[op.chooses])
        return replace(node, inputs=tuple(inputs), outputs=tuple(compress(node.outputs, used)))
    if not node.regions:
        return node
    region = node.region
    count = len(region.inputs)
    exports = [i for i in range(count, len(node.outputs)) if used[i] or _carries_axis(node, i)]
    outputs = (*node.outputs[:count], *(node.outputs[i] for i in exports))
    region = prune(replace(region, outputs=(*region.outputs[:count], *(region.outputs[i] for i in exports))))
    return region_node(replace(node, outputs=outputs), region)


def _carries_axis(node: Node, at: int) -> bool:
    """Whether a loop counts its rows on this export."""
    if NODES[node.op].loop != "rounds":
        return False
    axis = axis_of(node.outputs[at].type)
    return axis is not None and axis.key == str(node.attr("axis"))


def _slim_tensor(node: Node, needed: set[str]) -> Node:
    outputs: list[Value] = [value for value in node.outputs if value.name in needed]
    used = {value.name for value in outputs}
    body = []
    for let in reversed(node.body):
        if let.name in used:
            body.append(let)
            used.update(refs(let.expr))
    slim = tensor_node(tuple(reversed(body)), tuple(value.name for value in outputs), node.span)
    return replace(slim, unit=node.unit)
