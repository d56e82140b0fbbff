"""The least memory that a plan can run in: what has to be there all the time, without activations, caches and
buffers."""

from __future__ import annotations

from typing import cast

from rlgraph.enginespec.registry import engine
from rlgraph.ir.dtypes import ITEM_BYTES
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.models.families import ModelKind, count
from rlgraph.models.shape import Shape
from rlgraph.placement.place import Shapes, dtype_of

_GRADIENT, _MOMENTS = 4, 8
"""Bytes that training keeps for each weight: its gradient, and AdamW's two moments."""


def least_memory(program: Program, plan: Plan, shapes: Shapes) -> int:
    """Bytes of weights, gradients and moments in all processes together. Models whose shape is not known count as
    nothing."""
    return sum(_rank(program, plan, group, shapes) * group.mesh.size for group in plan.groups)


def _rank(program: Program, plan: Plan, group: Group, shapes: Shapes) -> int:
    trained = {role.model for role in plan.roles if role.operation == "train" and role.group == group.name}
    sharing = group.mesh.length("dp") if group.models and engine(group.engine).shards_optimizer else 1
    found = 0
    for name in group.models:
        model, shape = program.model(name), shapes.get(name)
        if isinstance(shape, Shape):
            numbers = count(shape, cast(ModelKind, model.kind)) // (group.mesh.size // group.mesh.length("dp"))
            kept = _GRADIENT + _MOMENTS // sharing if name in trained else 0
            found += numbers * (ITEM_BYTES[dtype_of(model, program)] + kept)
    return found
