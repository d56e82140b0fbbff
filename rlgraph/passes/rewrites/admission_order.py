"""Starts rows in the order of their expected length. Class: reorder.

Where a plan has an `admit` for a table, this pass gives the sampling node one more input, the expected length of each
row, by which an engine orders rows and replicas get their shards:

    expected <- expect(prompts)               from earlier rows of the prompts, a column of the data, or a function
    rollout  <- generate(actor@0, prompts, expected)
    learn(rollout.length)                     only where earlier rows of the prompts are used

A row depends only on its weights, its prompt and its index, so no number changes. The plan requests this pass, as it
does `accumulate`, so it is not in the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlgraph.ir.graph import Graph, Node, Program, RowUnit, Value, with_region
from rlgraph.ir.plan import AdmissionOrder, Plan
from rlgraph.ir.types import Table, Tensor, Type, axis_of
from rlgraph.ops import NODES
from rlgraph.ops.nodes import attribute_value


def with_admission(program: Program, plan: Plan) -> Program:
    """Return the program with expected lengths for every table that the plan admits."""
    if not plan.admits:
        return program
    return program.with_graphs(
        {phase.name: _graph(phase.graph, phase.graph.value_types(), plan) for phase in program.phases}
    )


def _graph(graph: Graph, types: dict[str, Type], plan: Plan) -> Graph:
    return replace(graph, nodes=tuple(rewritten for node in graph.nodes for rewritten in _nodes(node, types, plan)))


def _nodes(node: Node, types: dict[str, Type], plan: Plan) -> Iterator[Node]:
    if node.regions and not NODES[node.op].trains:
        yield with_region(node, *(_graph(region, types, plan) for region in node.regions))
        return
    admit = plan.admission_of(node.name.split(".")[0])
    if admit is None or not NODES[node.op].streams:
        yield node
        return
    # No value of a program is named by a word of the language, so the names are free.
    expected = Value(f"admit.{node.name}.expected", Tensor("float", axis_of(types[node.inputs[1]])))
    yield _expect(node, admit, expected)
    yield replace(node, inputs=(*node.inputs, expected.name))
    if admit.by == "longest":
        table = node.outputs[0].type
        assert isinstance(table, Table)
        length = Value(f"admit.{node.name}.length", Tensor("int", table.axis))
        yield Node(
            "column", (node.name,), (length,), (("name", "length"),), unit=RowUnit(table.axis.key), span=node.span
        )
        attrs = (("table", admit.table), ("samples", attribute_value(node, "n") > 1))
        yield Node("learn", (length.name,), (), attrs, unit=RowUnit(None, NODES["learn"].reason), span=node.span)


def _expect(node: Node, admit: AdmissionOrder, expected: Value) -> Node:
    axis = axis_of(expected.type)
    assert axis is not None
    predictor = {"function": ("func", admit.name), "column": ("column", admit.name)}.get(admit.by)
    prompt = [(name, value) for name, value in node.attrs if name == "prompt"]
    attrs = (("table", admit.table), *([predictor] if predictor else []), *prompt)
    return Node("expect", (node.inputs[1],), (expected,), attrs, unit=RowUnit(axis.key), span=node.span)
