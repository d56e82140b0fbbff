"""Has models of a pool sleep in turns, where nobody has counted whether they fit on its devices together."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from rlgraph.backends.enginespec.memory import ReservedCache
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.errors import NO_SPAN, Diagnostic, Span, quoted_list
from rlgraph.ir.plan import Group, ModelHolding, Plan
from rlgraph.ir.schedule import Schedule
from rlgraph.ops.nodes import NODES
from rlgraph.passes.placement.model_load_order import reserves_cache

SHARE = 0.85
"""The share of a device that an engine with a reserved cache takes while the others on it sleep: what their processes
keep, and a driver, is 2 to 4 GB."""


def with_sleeping_models(plan: Plan, schedule: Schedule) -> Plan:
    """Return the plan of a schedule, without a cluster, with the models asleep that share a pool with an engine that
    reserves a cache: it takes most of a device, and would not start beside others. What the schedule says is kept."""
    said_awake = {work.model for line in schedule.placements if line.sleep is False for work in line.work}
    fused = {model for line in schedule.fuses for model in line.models}
    holdings = {(holding.model, holding.group): holding for holding in plan.holdings}
    for groups in _crowded(plan):
        sleepers = [
            (model, group)
            for group in groups
            for model in group.models
            if spec_of(group.engine).sleeps and model not in said_awake | fused
        ]
        all_sleep = len(sleepers) == sum(len(group.models) for group in groups)
        for model, group in sleepers:
            holding = holdings.get((model, group.name), ModelHolding(model, group.name))
            share = SHARE if all_sleep and not holding.kv_bytes and _samples(model, group, plan) else 0.0
            holdings[model, group.name] = replace(holding, offload=True, share=holding.share or share)
    return replace(plan, holdings=tuple(holdings.values()))


def sleeping_warnings(plan: Plan, schedule: Schedule) -> Iterator[Diagnostic]:
    """Yield what is to be known of pools whose models sleep though no line says so."""
    said = {work.model for line in schedule.placements if line.sleep is not None for work in line.work}
    for groups in _crowded(plan):
        asleep = _asleep(plan, groups, said)
        samplers = [(model, group) for group in groups for model in group.models if _samples(model, group, plan)]
        if not asleep or not samplers:
            continue
        model, group = samplers[0]
        holding, reserved = plan.holding(model, group.name), spec_of(group.engine).memory.cache
        share = holding.share or (reserved.share if isinstance(reserved, ReservedCache) else 1.0)
        cache = f"{holding.kv_bytes / 1e9:g} GB" if holding.kv_bytes else f"what {share:g} of it leaves"
        message = (
            f"{quoted_list(asleep, 'and')} sleep in turns on `{groups[0].pool}`, and the cache of keys and values has "
            f"{cache}: no cluster is named for which it would be counted what fits on a device together"
        )
        hint = "say it, as in `sleep=true` and `cache=8e9`, or name the cluster: `--cluster 1x8:h100-80gb`"
        yield Diagnostic("W0887", message, _line_of(groups[0].pool, schedule), hint)


def _asleep(plan: Plan, groups: Collection[Group], said: Collection[str]) -> list[str]:
    return [
        plan.describe_model_work(model, group.name)
        for group in groups
        for model in group.models
        if plan.holding(model, group.name).offload and model not in said
    ]


def _crowded(plan: Plan) -> Iterator[list[Group]]:
    """Yield the groups of each pool in which one with a reserved cache is not alone."""
    for pool in plan.pools:
        groups = [group for group in plan.groups if group.pool == pool.name and group.models]
        if len(groups) > 1 and any(reserves_cache(plan, group) for group in groups):
            yield groups


def _samples(model: str, group: Group, plan: Plan) -> bool:
    """Return whether a group samples with a model, and reserves a cache for it."""
    samples = any(
        NODES[role.operation].generates for role in plan.roles if (role.model, role.group) == (model, group.name)
    )
    return samples and reserves_cache(plan, group)


def _line_of(pool: str, schedule: Schedule) -> Span:
    return next((line.span for line in schedule.pools if line.name == pool), NO_SPAN)
