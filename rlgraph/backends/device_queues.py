"""This module has the turns by which work runs on the devices of a plan, one after the other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from rlgraph.backends.clocks import Clock
from rlgraph.backends.lock_places import HeldPlaces
from rlgraph.ir.plan import HOST, Group, Plan


@dataclass(frozen=True)
class DeviceSet:
    """Devices of a pool that work is done on."""

    pool: str
    places: frozenset[int]

    def overlaps(self, other: DeviceSet) -> bool:
        """Whether two sets have a device in common."""
        return self.pool == other.pool and not self.places.isdisjoint(other.places)


def device_set(group: Group, copy: int | None = None) -> DeviceSet:
    """Return the devices of a group, or of one of its data-parallel replicas."""
    if not group.devices:
        return DeviceSet(group.pool, frozenset({0}))
    ranks = range(group.mesh.rank_count) if copy is None else group.mesh.ranks_at(dp=copy)
    return DeviceSet(group.pool, frozenset(group.devices[rank] for rank in ranks))


class HeldDevices:
    """Devices that one piece of work has."""

    def __init__(self, held: Mapping[str, HeldPlaces]) -> None:
        self._held = held

    def release_some(self, seats: DeviceSet) -> bool:
        """Give some of them free now, unless other work shares them. Returns whether they are free."""
        return seats.pool not in self._held or self._held[seats.pool].release_some(seats.places)


class DeviceQueues:
    """The queues for the devices of a plan. A rank is the number of a step: the older one is served first."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        sizes = {HOST: 1} | {pool.name: max(1, pool.devices or pool.cpus) for pool in plan.pools}
        self._locks = {name: clock.new_lock(size) for name, size in sizes.items()}

    @contextmanager
    def acquire_devices(self, *wanted: DeviceSet, rank: int = 0, key: Hashable = None) -> Iterator[HeldDevices]:
        """Wait until all these devices are free, and have them in the context. Without a rank it goes before all work,
        as does sending weights that others wait for. key: work of the same key on the same devices is done together."""
        places: dict[str, frozenset[int]] = {}
        for devices in wanted:
            places[devices.pool] = places.get(devices.pool, frozenset()) | devices.places
        with ExitStack() as stack:
            # Always in the same order: two turns that want the same pools never wait for each other.
            yield HeldDevices(
                {
                    pool: stack.enter_context(self._locks[pool].acquire_partly_releasable(rank, places[pool], key))
                    for pool in sorted(places)
                }
            )

    def acquire_cpu(self, pool: str, rank: int = 0) -> AbstractContextManager[int]:
        """Wait for a free cpu of a pool of cpus, and have it in the context, which gives its number."""
        return self._locks[pool].acquire(rank)
