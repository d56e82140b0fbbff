"""The least memory that a plan can run in: what has to be there all the time, without activations, caches and
buffers."""

from __future__ import annotations

from rlgraph.backends.enginespec.registry import engine
from rlgraph.catalog.models.families import count
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.optimizer import optimizer_bytes
from rlgraph.passes.cost.work import trained_parameters
from rlgraph.passes.placement.place import Shapes, config_of


def least_memory(program: Program, plan: Plan, shapes: Shapes) -> int:
    """Bytes of weights, gradients and moments in all processes together. Models whose shape is not known count as
    nothing."""
    return sum(_rank(program, plan, group, shapes) * group.mesh.size for group in plan.groups)


def _rank(program: Program, plan: Plan, group: Group, shapes: Shapes) -> int:
    trained = {role.model for role in plan.roles if NODES[role.operation].trains and role.group == group.name}
    alike = group.mesh.length("cp")
    sharing = alike * group.mesh.length("dp") if group.models and engine(group.engine).shards_optimizer else 1
    found, bases = 0, set[str]()
    for name in group.models:
        shape = shapes.get(name)
        if isinstance(shape, Shape):
            config = config_of(program.model(name), shape, program)
            size = group.mesh.copy_size // alike
            state = optimizer_bytes(config.optimizer)
            kept = state.gradient + state.moments // sharing if name in trained else 0
            found += config.adapter_bytes + trained_parameters(shape, config.kind) // size * kept
            if not config.base or config.base not in bases:
                found += count(shape, config.kind) // size * config.item
            bases.add(config.base if group.models and engine(group.engine).lends(group.mesh) else "")
    return found
