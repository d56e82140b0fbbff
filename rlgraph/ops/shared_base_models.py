"""Finds models that always have the same weights, apart from adapters: models of one process need only one copy of
them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from rlgraph.ir.graph import Constant, Model, Program
from rlgraph.ir.types import StateHandle
from rlgraph.ops.nodes import NODES, model_of


def base_models(program: Program) -> dict[str, str]:
    """Return for each model whose weights, apart from adapters, never change the first model with the same ones, which
    may be itself. Models that are fully trained or replaced are left out."""
    first, base_of, changing = dict[Constant, str](), dict[str, str](), set(changed_models(program))
    for model in program.models:
        original = program.original_model(model)
        if has_adapters(program, model.name) or model.name not in changing:
            key = (original.kind, original.source, program.dtype_of_model(model), program.autocast_of_model(model))
            base_of[model.name] = first.setdefault(key, model.name)
    return base_of


def models_by_shared_base(program: Program) -> dict[str, tuple[str, ...]]:
    """Return groups of models with the same weights, by the first model of each group."""
    groups: dict[str, list[str]] = {}
    for name, base in base_models(program).items():
        groups.setdefault(base, []).append(name)
    return {base: tuple(names) for base, names in groups.items() if len(names) > 1}


def has_adapters(program: Program, name: str) -> bool:
    """Return whether a program gives a model adapters; adapters in a model's folder do not count."""
    return dict(program.original_model(program.model(name)).options).get("lora") is not None


def has_changing_weights(program: Program, model: Model) -> bool:
    """Return whether a model that is no copy, or a copy of it, is trained or takes other weights."""
    return any(program.original_model(program.model(name)) == model for name in changed_models(program))


def changed_models(program: Program) -> Iterator[str]:
    """Return the models that are trained or take other weights."""
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in phase.graph.walk():
            if node.op in NODES and NODES[node.op].updates:
                yield cast(StateHandle, types[model_of(node)]).name
