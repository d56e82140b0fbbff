"""The order in which the processes of a plan load their models."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.ir.plan import Group, Plan, Pool
from rlgraph.ops.nodes import NODES


def model_load_rounds(plan: Plan) -> list[list[str]]:
    """Return the groups whose processes load their models at the same time, round by round.

    Groups of a pool with models that sleep load one after the other, since not all of them fit at once: first those
    that reserve a cache, whose engine wants most of a device to be free when it starts.
    """
    rounds: list[list[str]] = []
    for pool in plan.pools:
        for index, names in enumerate(_of_pool(plan, pool)):
            rounds += [[] for _ in range(index + 1 - len(rounds))]
            rounds[index] += names
    return rounds


def _of_pool(plan: Plan, pool: Pool) -> Iterator[list[str]]:
    groups = [group for group in plan.groups if group.pool == pool.name]
    names = {group.name for group in groups}
    if not any(holding.offload and holding.group in names for holding in plan.holdings):
        yield [group.name for group in groups]
        return
    for group in sorted(groups, key=lambda group: not reserves_cache(plan, group)):
        yield [group.name]


def reserves_cache(plan: Plan, group: Group) -> bool:
    """Return whether a group samples with an engine that reserves a cache when it starts."""
    spec = engines_by_name().get(group.engine)
    samples = any(role.group == group.name and NODES[role.operation].generates for role in plan.roles)
    return spec is not None and samples and "kv_bytes" in spec.settings
