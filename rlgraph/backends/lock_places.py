"""This module keeps the places of a lock: which are free, who has which, and who waits for which."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

MayShare = Callable[[], bool]
"""Whether a user may share places with those who have them now. If so they are given at once."""


def may_always_share() -> bool:
    """Return True: places may always be shared."""
    return True


@dataclass(eq=False)
class HeldPlaces:
    """Places of a lock that a user has."""

    places: frozenset[int]
    _leave: Callable[[HeldPlaces, frozenset[int]], bool]

    def release_some(self, some: frozenset[int]) -> bool:
        """Give some of them back, unless others share them. Returns whether they were given back."""
        return self._leave(self, some)


TOGETHER = 8
"""How many users share the same places, at most."""


@dataclass(order=True)
class _Waiting:
    """A user who waits for places of a lock; `wanted` is None for any one."""

    rank: int
    number: int
    wanted: frozenset[int] | None = field(compare=False)
    key: Hashable = field(compare=False)
    may_share: MayShare = field(compare=False)
    who: Any = field(compare=False)


class LockPlaces:
    """The places of a lock: which are free, and who waits for which."""

    def __init__(self, places: int) -> None:
        self._free = set(range(places))
        self._shared: Counter[tuple[Hashable, frozenset[int] | None]] = Counter()
        """How many users share the same places, by their key."""
        self._waiting: list[_Waiting] = []
        self._number = count()

    def request(
        self, rank: int, wanted: frozenset[int] | None, key: Hashable, may_share: MayShare, who: Any
    ) -> list[tuple[Any, frozenset[int]]]:
        """Ask for places. Returns who gets some now, and which: others may be among them, and the one who asks may
        not."""
        insort(self._waiting, _Waiting(rank, next(self._number), wanted, key, may_share, who))
        return self.grant_waiting()

    def release_some(
        self, places: frozenset[int], some: frozenset[int], key: Hashable
    ) -> list[tuple[Any, frozenset[int]]] | None:
        """Give back some of the places that a user has. Returns who gets some now, and which; None, and nothing is
        given back, where others have the places with the same key."""
        if key is not None:
            if self._shared[key, places] > 1:
                return None
            del self._shared[key, places]
            self._shared[key, places - some] += 1
        return self.release(some, None)

    def release(self, places: frozenset[int], key: Hashable) -> list[tuple[Any, frozenset[int]]]:
        """Give places back. Returns who gets some now, and which."""
        if key is not None:
            self._shared[key, places] -= 1
            if self._shared[key, places]:
                return self.grant_waiting()
            del self._shared[key, places]
        self._free |= places
        return self.grant_waiting()

    def grant_waiting(self) -> list[tuple[Any, frozenset[int]]]:
        """Return who gets some places now, and which."""
        return list(self._served())

    def _served(self) -> Iterator[tuple[Any, frozenset[int]]]:
        claimed: set[int] = set()
        """Places that users before this one wait for, and which are reserved for them."""
        left = []
        for position, waiting in enumerate(self._waiting):
            if not self._free and not self._shared:
                left += self._waiting[position:]
                break
            if waiting.wanted is None:
                given = frozenset({min(self._free)})
            elif claimed.isdisjoint(waiting.wanted) and (waiting.wanted <= self._free or self._may_join(waiting)):
                given = waiting.wanted
            else:
                claimed |= waiting.wanted
                left.append(waiting)
                continue
            if waiting.key is not None:
                self._shared[waiting.key, given] += 1
            self._free -= given
            yield waiting.who, given
        self._waiting = left

    def _may_join(self, waiting: _Waiting) -> bool:
        """Whether those who have the places have them with the same key, and this user may share them."""
        return (
            waiting.key is not None and 0 < self._shared[waiting.key, waiting.wanted] < TOGETHER and waiting.may_share()
        )
