"""Reuses the sampler's log-probabilities, which saves a forward pass that would compute them again.

`actor.logprobs(rollout)` is `rollout.logprobs` where the same weights give them at the same temperature. The version of
the weights is in the name: `actor@0` generated the rows and `actor@0` scores them. Rows of an older version (`lag`,
`staleness`, rows that `collect` carried over) do not qualify, and neither does greedy decoding, whose log-probabilities
are taken at temperature 1.

A program that reads `rollout.logprobs` as well asks how far the engine that trains is from the one that sampled, as
truncated importance sampling does: it gets both. That does not depend on the plan, as no result does.
"""

from __future__ import annotations

from dataclasses import replace

from rlgraph.ir.graph import Graph, Node, Program, with_region
from rlgraph.ir.step_edges import oldest_weights_age_versions
from rlgraph.ops import NODES, attribute_value, inputs_chosen_from, model_of, table_of
from rlgraph.ops.nodes import mixture_weights


def reuse_logprobs(program: Program) -> Program:
    """Return the program with the sampler's log-probabilities reused."""
    graphs = {}
    for phase in program.phases:
        compared = set[str]()
        _graph(phase.graph, {}, compared)
        graphs[phase.name] = _graph(phase.graph, {}, compared)
    return program.with_graphs(graphs)


def _graph(graph: Graph, generated: dict[str, Node], compared: set[str]) -> Graph:
    """Return the graph rewritten. generated: for each table the node that generated its rows. compared: the names of
    those whose log-probabilities the program reads itself, to which this graph's are added."""
    generated = dict(generated)
    nodes: list[Node] = []
    for node in graph.nodes:
        op = NODES[node.op]
        if op.generates:
            generated[node.name] = node
        elif op.nests and node.inputs[0] in generated:
            generated[node.name] = generated[node.inputs[0]]
        elif op.chooses is not None:
            pairs = zip(inputs_chosen_from(node), node.outputs, strict=True)
            generated.update({value.name: generated[name] for name, value in pairs if name in generated})
        elif op.selects and node.attr("name") == "logprobs" and node.inputs[0] in generated:
            compared.add(generated[node.inputs[0]].name)
        elif node.op == "logprobs":
            sampler = generated.get(table_of(node))
            if sampler is not None and sampler.name not in compared and _same_logprobs(node, sampler):
                node = Node("column", (table_of(node),), node.outputs, (("name", "logprobs"),), span=node.span)
        for region in node.regions:
            # What a body generates only counts inside it: `collect` mixes rows of several rounds and versions.
            node = with_region(node, _graph(region, generated, compared))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _same_logprobs(node: Node, sampler: Node) -> bool:
    return (
        model_of(sampler) == model_of(node)
        and attribute_value(sampler, "temperature") == attribute_value(node, "temperature")
        and not mixture_weights(sampler)
        and not oldest_weights_age_versions(sampler)
    )
