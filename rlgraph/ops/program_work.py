"""Collects the work of a program: the operations of each of its models, and the user's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from rlgraph.ir.graph import External, Graph, Node, Program
from rlgraph.ir.types import StateHandle, Type, is_model
from rlgraph.ops import NODES, model_of, models_beside, placement_operation, user_code_of

BESIDE = next(name for name, op in NODES.items() if op.joint)
"""The operation of a model that is read beside another one."""


def model_operations(program: Program) -> dict[str, set[str]]:
    """Return the operations that a program does with each of its models."""
    work: dict[str, set[str]] = {model.name: set() for model in program.models}
    for phase in program.phases:
        for model, operation in _work(phase.graph, phase.graph.value_types(), ""):
            work[model].add(operation)
    return work


def work_together(program: Program) -> list[tuple[tuple[str, str], ...]]:
    """Return the work, as models and operations, that has to be done by the same processes, since one node reads
    several models."""
    together: list[list[tuple[str, str]]] = []
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in _with_models_beside(phase.graph):
            models = [cast(StateHandle, types[name]).name for name in (model_of(node), *models_beside(node))]
            work = [(models[0], placement_operation(node.op)), *((model, BESIDE) for model in models[1:])]
            meeting = [other for other in together if set(other) & set(work)]
            together = [other for other in together if other not in meeting]
            together.append([piece for pieces in (*meeting, work) for piece in pieces])
    return [tuple(dict.fromkeys(work)) for work in together]


def _with_models_beside(graph: Graph) -> Iterator[Node]:
    """Yield the nodes that read several models; a node that trains for what its loss reads."""
    for node in graph.nodes:
        if models_beside(node):
            yield node
        for region in node.regions if not NODES[node.op].trains else ():
            yield from _with_models_beside(region)


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
            yield from ((cast(StateHandle, types[name]).name, BESIDE) for name in models_beside(node))
            yield from ((other, node.op) for other in other_players_models(node, types))
        for region in node.regions:
            yield from _work(region, types, inner)


def other_players_models(node: Node, types: Mapping[str, Type]) -> list[str]:
    """Return the models that a node samples from besides its first one."""
    if not NODES[node.op].generates:
        return []
    return [handle.name for name in node.inputs[1:] if is_model(handle := types[name])]
