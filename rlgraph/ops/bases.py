"""Which models have the same weights from beginning to end, but for adapters: those of one process need one copy of
these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from rlgraph.ir.graph import Constant, Model, Program
from rlgraph.ir.types import Handle
from rlgraph.ops.nodes import NODES, model_of


def bases(program: Program) -> dict[str, str]:
    """For each model whose weights never change, those of adapters aside, the first one with the same weights: it may
    be itself. A model of which all is trained, or replaced, is not there."""
    first, found, moving = dict[Constant, str](), dict[str, str](), set(changed(program))
    for model in program.models:
        original = program.original(model)
        if has_adapters(program, model.name) or model.name not in moving:
            key = (original.kind, original.source, program.dtype(model))
            found[model.name] = first.setdefault(key, model.name)
    return found


def shared(program: Program) -> dict[str, tuple[str, ...]]:
    """By the first of them, the models that have the same weights as others."""
    own: dict[str, list[str]] = {}
    for name, base in bases(program).items():
        own.setdefault(base, []).append(name)
    return {base: tuple(names) for base, names in own.items() if len(names) > 1}


def has_adapters(program: Program, name: str) -> bool:
    """Whether a program says that a model has adapters; those that a folder holds are not known here."""
    return dict(program.original(program.model(name)).options).get("lora") is not None


def learnt(program: Program, model: Model) -> bool:
    """Whether a model that is no copy is trained or takes other weights, or a copy of it does."""
    return any(program.original(program.model(name)) == model for name in changed(program))


def changed(program: Program) -> Iterator[str]:
    """The models that are trained, and those that take other weights."""
    for phase in program.phases:
        types = phase.graph.values()
        for node in phase.graph.walk():
            if node.op in NODES and NODES[node.op].updates:
                yield cast(Handle, types[model_of(node)]).name
