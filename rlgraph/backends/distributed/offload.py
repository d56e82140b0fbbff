"""Which models of a plan sleep, and who has to before another one works on the same devices.

A model that the plan off-loads is awake from its work, or from the weights that come for it, until anything else is
done on a device that it has. Who wants that has the turn of these devices, so that nobody works with a model that is
put to sleep.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from rlgraph.backends.turns import Seats, seats
from rlgraph.ir.plan import Group, Plan


@dataclass(frozen=True)
class Bed:
    """Where a model sleeps: on a data-parallel copy of a group."""

    model: str
    group: Group
    copy: int

    @property
    def seats(self) -> Seats:
        """Its devices."""
        return seats(self.group, self.copy)


@dataclass(frozen=True)
class Shift:
    """What has to be done before some work."""

    sleep: tuple[tuple[Bed, bool], ...] = ()
    """Who goes to sleep first, and whether its weights are needed again: else they are brought before it works."""
    wake: tuple[Bed, ...] = ()
    """Who wakes up then."""


Shifting = Callable[[], AbstractContextManager[Shift]]
"""Asked by who has the turn of the devices, and left when all of it is done."""


def nobody() -> AbstractContextManager[Shift]:
    """All models are where they work."""
    return nullcontext(Shift())


class Beds:
    """Those of a plan. All models that are off-loaded sleep at first."""

    def __init__(self, plan: Plan, forgets: Callable[[Bed], bool] = lambda bed: False) -> None:
        """forgets: whether a model that goes to sleep need not keep its weights; if so they are brought again."""
        self._forgets = forgets
        self._beds: dict[tuple[str, str], tuple[Bed, ...]] = {}
        for holding in plan.holdings:
            if holding.offload:
                group = plan.group(holding.group)
                copies = range(group.mesh.length("dp"))
                self._beds[holding.model, group.name] = tuple(Bed(holding.model, group, copy) for copy in copies)
        self._awake: list[Bed] = []
        self._locks = {pool.name: threading.Lock() for pool in plan.pools}

    def shifting(self, model: str, group: Group, copy: int | None = None) -> Shifting:
        """Before a group, or one of its copies, does something with a model."""
        return lambda: self._shift(model, group, copy)

    @contextmanager
    def _shift(self, model: str, group: Group, copy: int | None) -> Iterator[Shift]:
        if not self._beds:
            yield Shift()
            return
        own = [bed for bed in self._beds.get((model, group.name), ()) if copy in (None, bed.copy)]
        here = seats(group, copy)
        # Another one that waits for the same model to sleep goes on when it does.
        with self._locks[group.pool]:
            leaving = [bed for bed in self._awake if bed not in own and bed.seats.meets(here)]
            coming = [bed for bed in own if bed not in self._awake]
            yield Shift(tuple((bed, not self._forgets(bed)) for bed in leaving), tuple(coming))
            self._awake = [bed for bed in self._awake if bed not in leaving] + coming
