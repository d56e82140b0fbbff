"""What work a program has: the operations of each of its models, and the user's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlgraph.ir.graph import Graph, Program
from rlgraph.ir.types import Type, is_model
from rlgraph.ops import NODES, code_of


def operations(program: Program) -> dict[str, set[str]]:
    """The work that a program does with each of its models."""
    found: dict[str, set[str]] = {model.name: set() for model in program.models}
    for phase in program.phases:
        for model, operation in _work(phase.graph, phase.graph.values(), ""):
            found[model].add(operation)
    return found


def code(program: Program) -> dict[str, bool]:
    """The user's functions and environments, and whether the program runs each."""
    run = {code_of(node) for _, node in program.walk()}
    return {each.name: each.name in run for each in program.outside if each.kind in ("func", "env")}


def _work(graph: Graph, types: Mapping[str, Type], training: str) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        held = types[node.inputs[0]] if node.inputs else None
        inner = training
        if held and is_model(held) and NODES[node.op].with_model:
            # What the trained model computes for its own loss is part of the training.
            trains = NODES[node.op].trains
            inner = held.name if trains else training
            if trains or held.name != training:
                yield held.name, node.op
        for region in node.regions:
            yield from _work(region, types, inner)
