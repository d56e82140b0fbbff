"""Re-use of the sampler's log-probabilities: a forward pass saved where it would compute what sampling knew.

`actor.logprobs(rollout)` is `rollout.logprobs` where the same engine holds the same weights at the same temperature.
The version of the weights is in the names: `actor@0` drew the rows and `actor@0` is asked. Rows that an older version
drew (`lag`, rows that `collect` carried over) do not qualify, and neither does greedy decoding, whose probabilities are
taken at 1.
"""

from __future__ import annotations

from dataclasses import replace

from rlgraph.ir.graph import Graph, Node, Program, region_node


def reuse(program: Program) -> Program:
    return program.map_graphs({phase.name: _graph(phase.graph, {}) for phase in program.phases})


def _graph(graph: Graph, drawn: dict[str, Node]) -> Graph:
    """`drawn`: for each table, the node that drew its rows."""
    drawn = dict(drawn)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op in ("generate", "interact"):
            drawn[node.outputs[0].name] = node
        elif node.op == "keep":
            pairs = zip(node.inputs[1:], node.outputs, strict=True)
            drawn.update({value.name: drawn[name] for name, value in pairs if name in drawn})
        elif node.op == "pick" and node.inputs[0] in drawn:
            drawn[node.outputs[0].name] = drawn[node.inputs[0]]
        elif node.op == "logprobs" and _same(node, drawn.get(node.inputs[1])):
            node = Node("column", (node.inputs[1],), node.outputs, (("name", "logprobs"),), span=node.span)
        for region in node.regions:
            # What a body draws is known in it only: after `collect`, rows of several rounds and versions are mixed.
            node = region_node(node, _graph(region, drawn))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _same(node: Node, source: Node | None) -> bool:
    return (
        source is not None
        and source.inputs[0] == node.inputs[0]
        and source.attr("temperature") == node.attr("temperature")
        and not source.attr("lag")
    )
