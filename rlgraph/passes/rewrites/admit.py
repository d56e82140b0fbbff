"""Rows begin in the order of how long they are expected to be. Class: reorder.

Where a plan admits the rows of a table, this pass gives who samples them one more value, a number for each row that is
asked, by which an engine begins and copies of a model are given their shares:

    expected <- expect(prompts)               what their prompts gave before, a column of the data, or a function
    rollout  <- generate(actor@0, prompts, expected)
    learn(rollout.length)                     where it is by what prompts gave before

A row depends on its weights, its prompt and its place alone, so that no number changes. A plan asks for this pass, as
for `accumulate`, so it is none of the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlgraph.ir.graph import Graph, Node, Program, Unit, Value, region_node
from rlgraph.ir.plan import Admit, Plan
from rlgraph.ir.types import Table, Tensor, Type, axis_of
from rlgraph.ops import NODES
from rlgraph.ops.nodes import attr


def admitted(program: Program, plan: Plan) -> Program:
    """The program as it is run by a plan."""
    if not plan.admits:
        return program
    return program.map_graphs({phase.name: _graph(phase.graph, phase.graph.values(), plan) for phase in program.phases})


def _graph(graph: Graph, types: dict[str, Type], plan: Plan) -> Graph:
    return replace(graph, nodes=tuple(each for node in graph.nodes for each in _nodes(node, types, plan)))


def _nodes(node: Node, types: dict[str, Type], plan: Plan) -> Iterator[Node]:
    if node.regions and not NODES[node.op].trains:
        yield region_node(node, *(_graph(region, types, plan) for region in node.regions))
        return
    admit = plan.admit(node.name.split(".")[0])
    if admit is None or not NODES[node.op].streams:
        yield node
        return
    # No value of a program has a word of the language for its name.
    expected = Value(f"admit.{node.name}.expected", Tensor("float", axis_of(types[node.inputs[1]])))
    yield _expect(node, admit, expected)
    yield replace(node, inputs=(*node.inputs, expected.name))
    if admit.by == "longest":
        made = node.outputs[0].type
        assert isinstance(made, Table)
        length = Value(f"admit.{node.name}.length", Tensor("int", made.axis))
        yield Node("column", (node.name,), (length,), (("name", "length"),), unit=Unit(made.axis.key), span=node.span)
        attrs = (("table", admit.table), ("samples", attr(node, "n") > 1))
        yield Node("learn", (length.name,), (), attrs, unit=Unit(None, NODES["learn"].reason), span=node.span)


def _expect(node: Node, admit: Admit, expected: Value) -> Node:
    axis = axis_of(expected.type)
    assert axis is not None
    said = {"function": ("func", admit.name), "column": ("column", admit.name)}.get(admit.by)
    attrs = (("table", admit.table), *([said] if said else []))
    return Node("expect", (node.inputs[1],), (expected,), attrs, unit=Unit(axis.key), span=node.span)
