"""The places of a lock: which are free, who has which, and who waits for which."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

Joins = Callable[[], bool]
"""Whether somebody may have places together with those who have them now. If so he gets them at once."""


def always() -> bool:
    return True


@dataclass(eq=False)
class Hold:
    """Places of a lock that somebody has."""

    places: frozenset[int]
    _leave: Callable[[Hold, frozenset[int]], bool]

    def leave(self, some: frozenset[int]) -> bool:
        """Gives some of them back, if nobody has them together with this one: whether that is so."""
        return self._leave(self, some)


TOGETHER = 8
"""Who has the same places at the same time, at most."""


@dataclass(order=True)
class _Waiting:
    rank: int
    number: int
    wanted: frozenset[int] | None = field(compare=False)
    key: Hashable = field(compare=False)
    joins: Joins = field(compare=False)
    who: Any = field(compare=False)


class Places:
    """The places of a lock: which are free, and who waits for which."""

    def __init__(self, places: int) -> None:
        self._free = set(range(places))
        self._shared: Counter[tuple[Hashable, frozenset[int] | None]] = Counter()
        """How many have the same places together, by their key."""
        self._waiting: list[_Waiting] = []
        self._number = count()

    def ask(
        self, rank: int, wanted: frozenset[int] | None, key: Hashable, joins: Joins, who: Any
    ) -> list[tuple[Any, frozenset[int]]]:
        """Who gets some places now, and which. Who asks may not be among them, and others may."""
        insort(self._waiting, _Waiting(rank, next(self._number), wanted, key, joins, who))
        return self.again()

    def leave(
        self, places: frozenset[int], some: frozenset[int], key: Hashable
    ) -> list[tuple[Any, frozenset[int]]] | None:
        """Some of the places that somebody has are given back: who gets some of them, and which. None: others have them
        with the same key."""
        if key is not None:
            if self._shared[key, places] > 1:
                return None
            del self._shared[key, places]
            self._shared[key, places - some] += 1
        return self.back(some, None)

    def back(self, places: frozenset[int], key: Hashable) -> list[tuple[Any, frozenset[int]]]:
        """Places are given back: who gets some of them, and which."""
        if key is not None:
            self._shared[key, places] -= 1
            if self._shared[key, places]:
                return self.again()
            del self._shared[key, places]
        self._free |= places
        return self.again()

    def again(self) -> list[tuple[Any, frozenset[int]]]:
        """Who gets some places now, and which."""
        return list(self._served())

    def _served(self) -> Iterator[tuple[Any, frozenset[int]]]:
        claimed: set[int] = set()
        """What others want that come first: it is kept for them."""
        left = []
        for at, each in enumerate(self._waiting):
            if not self._free and not self._shared:
                left += self._waiting[at:]
                break
            if each.wanted is None:
                given = frozenset({min(self._free)})
            elif claimed.isdisjoint(each.wanted) and (each.wanted <= self._free or self._joins(each)):
                given = each.wanted
            else:
                claimed |= each.wanted
                left.append(each)
                continue
            if each.key is not None:
                self._shared[each.key, given] += 1
            self._free -= given
            yield each.who, given
        self._waiting = left

    def _joins(self, each: _Waiting) -> bool:
        """Whether those who have the places have them with the same key, and it may have them, too."""
        return each.key is not None and 0 < self._shared[each.key, each.wanted] < TOGETHER and each.joins()
