"""Describes the models of a program as the cost model and the search need them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.graph import Model, Program
from rlgraph.ir.step_edges import earlier_versions_kept
from rlgraph.ir.types import StateHandle
from rlgraph.ops.nodes import NODES
from rlgraph.ops.optimizers import ADAMW, OptimizerSpec, optimizer_of
from rlgraph.ops.shared_base_models import base_models
from rlgraph.passes.cost.deployment import ModelConfig


def model_config(model: Model, shape: Shape, program: Program) -> ModelConfig:
    """Return a program's model as cost and memory are computed of it."""
    kind, optimizer = cast(ModelKind, model.kind), model_optimizer(model, program)
    base, autocast = base_models(program).get(model.name, ""), program.autocast_of_model(model)
    earlier = earlier_versions_kept(program).get(model.name, 0)
    return ModelConfig(model.name, shape, kind, program.dtype_of_model(model), optimizer, base, autocast, earlier)


def model_optimizer(model: Model, program: Program) -> OptimizerSpec:
    """Return, of the optimizers that a model is trained with, the one that keeps most for each weight."""
    optimizers = []
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in phase.graph.walk():
            if NODES[node.op].trains and cast(StateHandle, types[node.inputs[0]]).name == model.name:
                optimizers.append(optimizer_of(node))
    return max(optimizers, key=lambda optimizer: optimizer.numbers_per_weight, default=ADAMW)


def weight_update_pairs(program: Program) -> Iterator[tuple[str, str]]:
    """Yield the two models of each `update`: the one that takes the weights, and the one whose they are."""
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in phase.graph.walk():
            if NODES[node.op].updates and not NODES[node.op].trains:
                target, source = (types[name] for name in node.inputs)
                assert isinstance(target, StateHandle) and isinstance(source, StateHandle)
                yield target.name, source.name
