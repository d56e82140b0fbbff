"""Converts a graph to plain data for tools, as `--emit json` writes it.

    {"format": 1, "program": "grpo", "axes": [...], "models": [...], "outside": [...], "states": [...],
     "phases": [{"name": "step", "steps": null, "lag": 0, "graph": {"inputs", "nodes", "outputs"}}]}

Types, constants and expressions are strings, as in the printed graph.
"""

from __future__ import annotations

from typing import Any

from rlgraph.errors import Span
from rlgraph.ir.graph import Graph, Node, Program, Value, program_axes
from rlgraph.ir.text.program_text import constant_text, expr_text

FORMAT = 1


def to_plain_data(program: Program) -> dict[str, Any]:
    """Return the program as dicts, lists, strings and numbers."""
    return {
        "format": FORMAT,
        "program": program.name,
        "axes": [
            {
                "key": axis.key,
                "name": axis.name,
                "parent": axis.parent.key if axis.parent else None,
                "inner": axis.inner,
            }
            for axis in program_axes(program).values()
        ],
        "models": [
            {
                "name": model.name,
                "kind": model.kind,
                "copy_of": model.copy_of,
                "frozen": model.frozen,
                "source": None if model.copy_of else constant_text(model.source),
                "options": {name: constant_text(value) for name, value in model.options},
                **_place(model.span),
            }
            for model in program.models
        ],
        "outside": [
            {
                "kind": outside.kind,
                "name": outside.name,
                "is": constant_text(outside.record),
                **_place(outside.span),
            }
            for outside in program.outside
        ],
        "states": [
            {"name": state.name, "initial": state.initial, "keyed": state.keyed, **_place(state.span)}
            for state in program.states
        ],
        "phases": [
            {
                "name": phase.name,
                "steps": phase.steps,
                phase.staleness.option_name: phase.staleness.steps,
                **({} if phase.staleness.span == "row" else {"span": phase.staleness.span}),
                **({} if phase.staleness.updates is None else {"updates": phase.staleness.updates}),
                "graph": _graph(phase.graph),
            }
            for phase in program.phases
        ],
    }


def _graph(graph: Graph) -> dict[str, Any]:
    return {
        "inputs": [_value(value) for value in graph.inputs],
        "nodes": [_node(node) for node in graph.nodes],
        "outputs": list(graph.outputs),
    }


def _node(node: Node) -> dict[str, Any]:
    data: dict[str, Any] = {
        "op": node.op,
        "inputs": list(node.inputs),
        "outputs": [_value(value) for value in node.outputs],
        "attrs": {name: constant_text(value) for name, value in node.attrs},
    }
    if node.body:
        data["body"] = [{"name": let.name, "expression": expr_text(let.expr)} for let in node.body]
    if node.regions:
        data["regions"] = [_graph(region) for region in node.regions]
    if node.unit:
        data["unit"] = {"axis": node.unit.axis, "reason": node.unit.reason}
    return data | _place(node.span)


def _value(value: Value) -> dict[str, str]:
    return {"name": value.name, "type": str(value.type)}


def _place(span: Span) -> dict[str, Any]:
    return {"file": span.source.path, "line": span.line, "column": span.column} if span.line else {}
