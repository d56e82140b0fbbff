"""Turns: who works on which devices of a plan, one after the other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from rlgraph.backends.clocks import Clock
from rlgraph.backends.places import Hold
from rlgraph.ir.plan import HOST, Group, Plan


@dataclass(frozen=True)
class Seats:
    """Devices of a pool that work is done on."""

    pool: str
    places: frozenset[int]

    def meets(self, other: Seats) -> bool:
        """Whether they have a device in common."""
        return self.pool == other.pool and not self.places.isdisjoint(other.places)


def seats(group: Group, copy: int | None = None) -> Seats:
    """Of a group, or of one of its data-parallel copies."""
    if not group.devices:
        return Seats(group.pool, frozenset({0}))
    ranks = range(group.mesh.size) if copy is None else group.mesh.ranks(dp=copy)
    return Seats(group.pool, frozenset(group.devices[rank] for rank in ranks))


class Turn:
    """Devices that somebody has."""

    def __init__(self, held: Mapping[str, Hold]) -> None:
        self._held = held

    def leave(self, seats: Seats) -> bool:
        """Some of them are free from now on, if nobody works there together with this one: whether they are."""
        return seats.pool not in self._held or self._held[seats.pool].leave(seats.places)


class Queues:
    """What runs on a device takes turns. A rank is the number of a step: the older one is served first."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        sizes = {HOST: 1} | {pool.name: max(1, pool.devices or pool.cpus) for pool in plan.pools}
        self._locks = {name: clock.lock(size) for name, size in sizes.items()}

    @contextmanager
    def turn(self, *wanted: Seats, rank: int = 0, key: Hashable = None) -> Iterator[Turn]:
        """Waits until all these devices are free, and has them meanwhile. Without a rank it goes before all work, as
        weights do that others wait for. key: work of the same key on the same devices is done together."""
        places: dict[str, frozenset[int]] = {}
        for each in wanted:
            places[each.pool] = places.get(each.pool, frozenset()) | each.places
        with ExitStack() as held:
            # Always in the same order: two that want the same pools never wait for each other.
            yield Turn(
                {pool: held.enter_context(self._locks[pool].hold(rank, places[pool], key)) for pool in sorted(places)}
            )

    def place(self, pool: str, rank: int = 0) -> AbstractContextManager[int]:
        """Waits for a free cpu of a pool of cpus, and has it meanwhile: its number."""
        return self._locks[pool].take(rank)
