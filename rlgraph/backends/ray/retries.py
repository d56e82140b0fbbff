"""Steps that are run again where processes were lost which only sample: others take their places, and nobody else
begins anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Set

from rlgraph.backends.frame import Surplus
from rlgraph.backends.in_flight import Coming, Things
from rlgraph.backends.ray.rows import live
from rlgraph.ir.plan import HOST, Plan
from rlgraph.ops.nodes import NODES


class Remembered:
    """Steps to come, of which those that are not over can be had again."""

    def __init__(self, coming: Iterable[Coming]) -> None:
        self._more = iter(coming)
        self._begun: deque[Coming] = deque()

    def again(self) -> Iterator[Coming]:
        """From the first one that is not over."""
        yield from tuple(self._begun)
        for each in self._more:
            self._begun.append(each)
            yield each

    def over(self) -> None:
        """The first of them is."""
        self._begun.popleft()


def replaceable(plan: Plan, lost: Set[str], changing: Set[str], things: Things) -> bool:
    """Whether groups have nothing that others have not, too: what they sample is sampled again, and the weights come
    from who trains them.

    changing: models that the program gives other weights. things: what the last step that is over has left.
    """
    if HOST in lost or any(plan.group(name).code for name in lost):
        return False
    if lost & {owner for model, owner in plan.owners if model in changing}:
        return False
    if any(who[0] in lost for who in live(things.values())):
        # Rows that a `collect` carries over lie where they were sampled.
        return False
    if any(isinstance(each, Surplus) and each.going for each in things.values()):
        return False
    # Who sleeps where, and who acts in whose environment, is known of the first processes.
    pools = {plan.group(name).pool for name in lost}
    if any(each.offload and plan.group(each.group).pool in pools for each in plan.holdings):
        return False
    acting = {role.group for role in plan.roles if NODES[role.operation].foreign}
    return not lost & acting or not any(group.code for group in plan.groups)
