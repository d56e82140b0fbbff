"""Dead code elimination: removes nodes and values that nothing uses.

Reports and the last version of everything that lives across steps are used. Loops lose unused exports, and the nodes of
their bodies that only those need.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress

from rlgraph.ir.graph import Graph, Node, Program, Value, tensor_node, used_names, with_region
from rlgraph.ir.types import axis_of
from rlgraph.ops import NODES, inputs_chosen_from


def remove_dead_nodes(program: Program) -> Program:
    """Return the program without unused values."""
    return program.with_graphs({phase.name: prune_graph(phase.graph) for phase in program.phases})


def prune_graph(graph: Graph) -> Graph:
    """Return the graph without nodes that neither its outputs nor an effect need."""
    needed = set(graph.outputs)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        slim = _slim(node, needed)
        if slim is None:
            continue
        nodes.append(slim)
        needed.update(slim.inputs)
    return replace(graph, nodes=tuple(reversed(nodes)))


def _has_effect(node: Node) -> bool:
    return NODES[node.op].effect or any(_has_effect(inner) for region in node.regions for inner in region.nodes)


def _slim(node: Node, needed: set[str]) -> Node | None:
    """Return the node with only the needed outputs; None if it can be removed."""
    used = [value.name in needed for value in node.outputs]
    if not any(used) and not _has_effect(node):
        return None
    if node.body:
        return _slim_tensor(node, needed)
    op = NODES[node.op]
    if op.chooses is not None:
        inputs = list(compress(inputs_chosen_from(node), used))
        inputs.insert(op.chooses, node.inputs[op.chooses])
        return replace(node, inputs=tuple(inputs), outputs=tuple(compress(node.outputs, used)))
    if not node.regions:
        return node
    region = node.region
    count = len(region.inputs)
    exports = [index for index in range(count, len(node.outputs)) if used[index] or _counts_rows_on(node, index)]
    outputs = (*node.outputs[:count], *(node.outputs[index] for index in exports))
    region = prune_graph(
        replace(region, outputs=(*region.outputs[:count], *(region.outputs[index] for index in exports)))
    )
    return with_region(replace(node, outputs=outputs), region)


def _counts_rows_on(node: Node, index: int) -> bool:
    """Return whether a loop counts its rows on the output with this index."""
    if NODES[node.op].loop != "rounds":
        return False
    axis = axis_of(node.outputs[index].type)
    return axis is not None and axis.key == str(node.attr("axis"))


def _slim_tensor(node: Node, needed: set[str]) -> Node:
    outputs: list[Value] = [value for value in node.outputs if value.name in needed]
    used = {value.name for value in outputs}
    body = []
    for let in reversed(node.body):
        if let.name in used:
            body.append(let)
            used.update(used_names(let.expr))
    slim = tensor_node(tuple(reversed(body)), tuple(value.name for value in outputs), node.span)
    return replace(slim, unit=node.unit)
