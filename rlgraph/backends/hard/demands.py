"""What engines of a plan want of hard devices when they start, computed from the plan as their contract is."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.backends.enginespec.start_demand import StartDemand
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Plan
from rlgraph.passes.cost.cache_reservation import cache_reservation, one_row_cache_bytes
from rlgraph.passes.placement.engine_contracts import cache_question


def start_demands(
    program: Program, plan: Plan, shapes: Mapping[str, Shape | UnsupportedModel], memory: int
) -> dict[tuple[str, str], StartDemand]:
    """Return the demand of each engine that has some, by group and model. memory: bytes of a device."""
    demands = {}
    for group in plan.groups:
        for model in group.models:
            asked = cache_question(program, plan, group, model, shapes.get(model), "gpu", memory)
            if asked is None:
                continue
            (question, cache), holding = asked, plan.holding(model, group.name)
            said = holding.max_len or None, holding.kv_bytes or None, holding.share or cache.share
            terms = cache_reservation(question, cache, *said)
            row = one_row_cache_bytes(question, cache, terms.row_tokens)
            weights, ranks = int(question.rank_weight_bytes), question.tp
            demands[group.name, model] = StartDemand(
                terms.share, weights, terms.cache_bytes, terms.row_tokens, row, ranks
            )
    return demands
