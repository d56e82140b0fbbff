"""Retries steps after processes that only sample were lost: new processes take their places, and no other is
restarted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Set

from rlgraph.backends.collect_batches import Surplus
from rlgraph.backends.in_flight import Coming, Things
from rlgraph.backends.ray.row_ledger import live_pieces
from rlgraph.ir.plan import HOST, Plan
from rlgraph.ops.nodes import NODES


class RepeatableSteps:
    """Yields a run's steps, and can yield those again that had not ended when processes were lost."""

    def __init__(self, coming: Iterable[Coming]) -> None:
        self._more = iter(coming)
        self._begun: deque[Coming] = deque()

    def unfinished_steps(self) -> Iterator[Coming]:
        """Yield the steps from the first one that has not ended."""
        yield from tuple(self._begun)
        for step in self._more:
            self._begun.append(step)
            yield step

    def drop_first(self) -> None:
        """Forget the first of them, which has ended."""
        self._begun.popleft()


def can_replace(plan: Plan, lost: Set[str], changing: Set[str], things: Things) -> bool:
    """Return whether groups have nothing that others lack: what they sample can be sampled again, and their weights
    come from the group that trains them.

    changing: models that the program updates. things: what the last finished step left.
    """
    if HOST in lost or any(plan.group(name).code for name in lost):
        return False
    if lost & {owner for model, owner in plan.owners if model in changing}:
        return False
    if any(who[0] in lost for who in live_pieces(things.values())):
        # Rows that a `collect` carries over are where they were sampled.
        return False
    if any(isinstance(thing, Surplus) and thing.unfinished_batches for thing in things.values()):
        return False
    # Which models are offloaded, and which process acts in which environment, is known of the first processes only.
    pools = {plan.group(name).pool for name in lost}
    if any(holding.offload and plan.group(holding.group).pool in pools for holding in plan.holdings):
        return False
    acting = {role.group for role in plan.roles if NODES[role.operation].foreign}
    return not lost & acting or not any(group.code for group in plan.groups)
