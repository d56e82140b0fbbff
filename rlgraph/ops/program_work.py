"""Collects the work of a program: the operations of each of its models, and the user's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlgraph.ir.graph import External, Graph, Node, Program
from rlgraph.ir.types import Type, is_model
from rlgraph.ops import NODES, user_code_of


def model_operations(program: Program) -> dict[str, set[str]]:
    """Return the operations that a program does with each of its models."""
    work: dict[str, set[str]] = {model.name: set() for model in program.models}
    for phase in program.phases:
        for model, operation in _work(phase.graph, phase.graph.value_types(), ""):
            work[model].add(operation)
    return work


def user_code_usage(program: Program) -> dict[str, bool]:
    """Return for each of the user's functions and environments whether the program runs it."""
    run = {user_code_of(node) for _, node in program.walk()}
    return {outside.name: outside.name in run for outside in program.outside if outside.kind in ("func", "env")}


ASK_MODELS = ("agent",)
"""The forms of environments that ask a model by themselves, of the process that samples."""


def agents(program: Program) -> dict[str, External]:
    """Return the environments of a program that ask a model by themselves, by name."""
    kinds = {outside.name: outside for outside in program.outside if outside.kind == "env"}
    return {name: outside for name, outside in kinds.items() if outside.record.name in ASK_MODELS}


def _work(graph: Graph, types: Mapping[str, Type], training: str) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        handle = types[node.inputs[0]] if node.inputs else None
        inner = training
        if handle and is_model(handle) and NODES[node.op].uses_model:
            # What a trained model computes for its own loss is part of its training.
            trains = NODES[node.op].trains
            inner = handle.name if trains else training
            if trains or handle.name != training:
                yield handle.name, node.op
            yield from ((other, node.op) for other in other_players_models(node, types))
        for region in node.regions:
            yield from _work(region, types, inner)


def other_players_models(node: Node, types: Mapping[str, Type]) -> list[str]:
    """Return the models that a node samples from besides its first one."""
    if not NODES[node.op].generates:
        return []
    return [handle.name for name in node.inputs[1:] if is_model(handle := types[name])]
