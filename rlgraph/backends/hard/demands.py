"""What engines of a plan want of hard devices when they start, computed from the plan as their contract is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from rlgraph.backends.enginespec.memory import ReservedCache
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.enginespec.start_demand import StartDemand
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from rlgraph.ir.dtypes import ITEM_BYTES
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Plan
from rlgraph.passes.cost.cache_reservation import CacheSizingInput, cache_reservation, one_row_cache_bytes
from rlgraph.passes.placement.model_load_order import reserves_cache


def start_demands(
    program: Program, plan: Plan, shapes: Mapping[str, Shape | UnsupportedModel], memory: int
) -> dict[tuple[str, str], StartDemand]:
    """Return the demand of each engine that has some, by group and model. memory: bytes of a device."""
    demands = {}
    for group in plan.groups:
        for model in group.models if reserves_cache(plan, group) else ():
            spec, shape, holding = engine(group.engine), shapes.get(model), plan.holding(model, group.name)
            cache = spec.memory.cache
            if not isinstance(shape, Shape) or not isinstance(cache, ReservedCache):
                continue
            ranks, kind = spec.column_rank_count(group.mesh), cast(ModelKind, program.model(model).kind)
            itemsize = ITEM_BYTES[program.dtype_of_model(program.model(model))]
            question = CacheSizingInput(shape, kind, ranks, itemsize, False, memory)
            said = holding.max_len or None, holding.kv_bytes or None, holding.share or cache.share
            terms = cache_reservation(question, cache, *said)
            row = one_row_cache_bytes(question, cache, terms.row_tokens)
            weights = int(question.rank_weight_bytes)
            demands[group.name, model] = StartDemand(
                terms.share, weights, terms.cache_bytes, terms.row_tokens, row, ranks
            )
    return demands
