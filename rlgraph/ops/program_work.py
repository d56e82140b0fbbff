"""Collects the work of a program: the operations of each of its models, and the user's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from rlgraph.ir.graph import External, Graph, Node, Program
from rlgraph.ir.types import StateHandle, Type, is_model
from rlgraph.ops import NODES, model_of, models_beside, placement_operation, user_code_of
from rlgraph.ops.nodes import mixture_weights

BESIDE = next(name for name, op in NODES.items() if op.joint)
"""The operation of a model that is read beside another one."""


def model_operations(program: Program) -> dict[str, set[str]]:
    """Return the operations that a program does with each of its models."""
    work: dict[str, set[str]] = {model.name: set() for model in program.models}
    for phase in program.phases:
        for model, operation in _work(phase.graph, phase.graph.value_types(), ""):
            work[model].add(operation)
    return work


@dataclass(frozen=True, slots=True)
class SharedWork:
    """Work that the same processes have to do, since one node needs several models at once: a sum over the vocabulary
    or a mixture reads distributions, which do not travel, and the turns of players follow one another."""

    work: tuple[tuple[str, str], ...]
    """Models with their operations."""
    sums: bool
    """Whether distributions are read together, which only some engines do."""
    mixes: bool
    """Whether rows are sampled from such distributions, which even fewer do."""
    node: Node = field(compare=False)
    """A node that needs the models."""

    @property
    def models(self) -> list[str]:
        """The models, one after the other."""
        return list(dict.fromkeys(model for model, _ in self.work))


def shared_work(program: Program) -> list[SharedWork]:
    """Return the work that has to be done by the same processes."""
    result: list[SharedWork] = []
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in _computed_nodes(phase.graph):
            operation, beside = placement_operation(node.op), models_beside(node)
            others = [(cast(StateHandle, types[name]).name, BESIDE) for name in beside]
            others += [(model, operation) for model in other_players_models(node, types)]
            if not others:
                continue
            work = ((cast(StateHandle, types[model_of(node)]).name, operation), *others)
            meeting = [other for other in result if not {*other.work}.isdisjoint(work)]
            result = [other for other in result if other not in meeting]
            merged = [*(piece for other in meeting for piece in other.work), *work]
            mixes = bool(mixture_weights(node)) or any(other.mixes for other in meeting)
            sums = mixes or bool(beside) or any(other.sums for other in meeting)
            result.append(SharedWork(tuple(dict.fromkeys(merged)), sums, mixes, node))
    return result


def _computed_nodes(graph: Graph) -> Iterator[Node]:
    """Yield all nodes, but of one that trains not those of its loss, which it computes itself."""
    for node in graph.nodes:
        yield node
        for region in node.regions if not NODES[node.op].trains else ():
            yield from _computed_nodes(region)


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


def replayed_models(program: Program) -> frozenset[str]:
    """Return the models whose routers of experts are replayed."""
    return frozenset(model for model, _ in nodes_with_option(program, "routing", "replay"))


def nodes_with_option(program: Program, option: str, value: str) -> Iterator[tuple[str, Node]]:
    """Yield the nodes that sample with an option so, each with every model that does it."""
    return ((model, node) for model, node in sampling_nodes(program) if node.attr(option) == value)


def sampling_nodes(program: Program) -> Iterator[tuple[str, Node]]:
    """Yield the nodes that sample, each with every model that does it."""
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in phase.graph.walk():
            if NODES[node.op].generates:
                models = [cast(StateHandle, types[model_of(node)]).name, *other_players_models(node, types)]
                yield from ((model, node) for model in dict.fromkeys(models))
