"""The least memory that a plan can run in: what has to be there all the time, without activations, caches and
buffers."""

from __future__ import annotations

from rlgraph.backends.enginespec.registry import engine
from rlgraph.catalog.models.families import parameter_count
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.optimizer import optimizer_bytes_per_weight
from rlgraph.passes.cost.work import trained_parameter_count
from rlgraph.passes.placement.model_configs import model_config
from rlgraph.passes.placement.place import Shapes


def least_bytes_of_all_ranks(program: Program, plan: Plan, shapes: Shapes) -> int:
    """Return the bytes of weights, gradients and moments in all processes together. Models whose shape is not known
    count as nothing."""
    return sum(_rank_bytes(program, plan, group, shapes) * group.mesh.rank_count for group in plan.groups)


def _rank_bytes(program: Program, plan: Plan, group: Group, shapes: Shapes) -> int:
    """Return the bytes of each rank of a group."""
    trained = {role.model for role in plan.roles if NODES[role.operation].trains and role.group == group.name}
    context = group.mesh.axis_size("cp")
    optimizer_shards = (
        context * group.mesh.axis_size("dp") if group.models and engine(group.engine).shards_optimizer else 1
    )
    total, bases = 0, set[str]()
    for name in group.models:
        shape = shapes.get(name)
        if isinstance(shape, Shape):
            config = model_config(program.model(name), shape, program)
            size = group.mesh.replica_size // context
            state = optimizer_bytes_per_weight(config.optimizer)
            trained_bytes = state.gradient + state.moments // optimizer_shards if name in trained else 0
            total += config.adapter_bytes + trained_parameter_count(shape, config.kind) // size * trained_bytes
            if not config.base or config.base not in bases:
                total += parameter_count(shape, config.kind) // size * config.item_bytes
            bases.add(config.base if group.models and engine(group.engine).shares_base(group.mesh) else "")
    return total
