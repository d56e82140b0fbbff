"""This module decides which models of a plan are off-loaded, and which have to be before another one works on the same
devices.

A model that the plan off-loads is on its devices from its work, or from the weights that come for it, until anything
else is done on one of them. Whoever does that has the turn of these devices, so that nobody works with a model that is
off-loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from rlgraph.backends.device_queues import DeviceSet, device_set
from rlgraph.ir.plan import Group, Plan


@dataclass(frozen=True)
class OffloadedReplica:
    """The data-parallel replica of a group on which a model is off-loaded."""

    model: str
    group: Group
    copy: int

    @property
    def devices(self) -> DeviceSet:
        """The devices of the replica."""
        return device_set(self.group, self.copy)


@dataclass(frozen=True)
class OffloadChange:
    """What has to be done before some work."""

    sleep: tuple[tuple[OffloadedReplica, bool], ...] = ()
    """The models to off-load first, and whether their weights are needed again: else weights are brought before they
    work."""
    wake: tuple[OffloadedReplica, ...] = ()
    """The models to load back then."""


Shifting = Callable[[], AbstractContextManager[OffloadChange]]
"""Called by whoever has the turn of the devices; the context is left when all of it is done."""


def no_offload_change() -> AbstractContextManager[OffloadChange]:
    """Return an offload change that does nothing: all models are where they work."""
    return nullcontext(OffloadChange())


class OffloadedModels:
    """The off-loaded models of a plan. At first all of them are off-loaded."""

    def __init__(self, plan: Plan, forgets: Callable[[OffloadedReplica], bool] = lambda bed: False) -> None:
        """forgets: whether a model that is off-loaded need not keep its weights; if so they are brought again."""
        self._forgets = forgets
        self._beds: dict[tuple[str, str], tuple[OffloadedReplica, ...]] = {}
        for holding in plan.holdings:
            if holding.offload:
                group = plan.group(holding.group)
                copies = range(group.mesh.axis_size("dp"))
                self._beds[holding.model, group.name] = tuple(
                    OffloadedReplica(holding.model, group, copy) for copy in copies
                )
        self._awake: list[OffloadedReplica] = []
        self._locks = {pool.name: threading.Lock() for pool in plan.pools}

    def offload_change_for(
        self, model: str, group: Group, copy: int | None = None, beside: Sequence[str] = ()
    ) -> Shifting:
        """Return the offload change that is due before a group, or one of its replicas, works with a model. beside:
        others that it works with meanwhile."""
        return lambda: self._shift((model, *beside), group, copy)

    @contextmanager
    def _shift(self, models: Sequence[str], group: Group, copy: int | None) -> Iterator[OffloadChange]:
        if not self._beds:
            yield OffloadChange()
            return
        replicas = [bed for model in models for bed in self._beds.get((model, group.name), ())]
        beds = [bed for bed in replicas if copy in (None, bed.copy)]
        devices = device_set(group, copy)
        # Other work that waits for the same model to be off-loaded goes on when it is.
        with self._locks[group.pool]:
            leaving = [bed for bed in self._awake if bed not in beds and bed.devices.overlaps(devices)]
            coming = [bed for bed in beds if bed not in self._awake]
            yield OffloadChange(tuple((bed, not self._forgets(bed)) for bed in leaving), tuple(coming))
            self._awake = [bed for bed in self._awake if bed not in leaving] + coming
