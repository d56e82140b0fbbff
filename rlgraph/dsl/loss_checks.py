"""Checks what a loss cannot do although its types are right."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Node, Program
from rlgraph.ops import NODES, table_of


def row_choice_errors(program: Program) -> Iterator[Diagnostic]:
    """Yield an error where a `train` body applies the model to rows that it chose by the model's own outputs there:
    which rows a process or a micro-batch works on has to be known before."""
    for phase in program.phases:
        for node in phase.graph.walk():
            if NODES[node.op].trains:
                yield from _chosen(node)


def _chosen(train: Node) -> Iterator[Diagnostic]:
    region = train.region
    dependent = {region.inputs[0].name}
    for node in region.nodes:
        if NODES[node.op].scores and table_of(node) in dependent:
            yield Diagnostic(
                "E0509",
                f"the `{node.op}` of rows that this loss itself chooses",
                node.span,
                "choose the rows above `train`",
            )
        if any(name in dependent for name in node.inputs):
            dependent.update(value.name for value in node.outputs)
