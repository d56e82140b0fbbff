"""This module has the locks of clocks: who waits, and how, until places of a lock are free."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import Any

from rlgraph.backends.lock_places import HeldPlaces, LockPlaces, MayShare, may_always_share


class Lock(ABC):
    """A lock with numbered places, which are taken one at a time or as a set."""

    def __init__(self, places: int, mutex: AbstractContextManager[Any]) -> None:
        """mutex: guards the record of who has which places."""
        self._places, self._mutex = LockPlaces(places), mutex

    @abstractmethod
    def _waiter(self) -> Any:
        """Return a handle of the caller, who is going to wait."""

    @abstractmethod
    def _wait(self, waiter: Any) -> frozenset[int]:
        """Wait until the caller has been granted places, and return them."""

    @abstractmethod
    def _grant(self, grants: Iterable[tuple[Any, frozenset[int]]]) -> None:
        """Tell each of these who wait which places it gets."""

    @contextmanager
    def acquire(
        self,
        rank: int = 0,
        wanted: frozenset[int] | None = None,
        key: Hashable = None,
        may_share: MayShare = may_always_share,
    ) -> Iterator[int]:
        """Wait for the first free place of the lock, or for all of `wanted` at once, and have it in the context, which
        gives the place, or the first of them. Of those that wait for the same the lowest rank is next, and among
        equals the one that came first. All users of a lock ask in the same of the two ways. key: those who want the
        same places with the same key have them together, up to `TOGETHER` of them, but nobody passes one who waits
        for such a place. may_share: asked each time before they could share places; it takes no other lock of a
        clock."""
        with self.acquire_partly_releasable(rank, wanted, key, may_share) as held:
            yield min(held.places)

    @contextmanager
    def acquire_partly_releasable(
        self,
        rank: int = 0,
        wanted: frozenset[int] | None = None,
        key: Hashable = None,
        may_share: MayShare = may_always_share,
    ) -> Iterator[HeldPlaces]:
        """Take places as `acquire` does, for a user who may give some back before the others."""
        waiter = self._waiter()
        with self._mutex:
            self._grant(self._places.request(rank, wanted, key, may_share, waiter))

        def release_held(held: HeldPlaces, some: frozenset[int]) -> bool:
            with self._mutex:
                grants = self._places.release_some(held.places, some, key)
                held.places -= some if grants is not None else frozenset()
                self._grant(grants or ())
            return grants is not None

        held = HeldPlaces(self._wait(waiter), release_held)
        try:
            yield held
        finally:
            with self._mutex:
                self._grant(self._places.release(held.places, key))

    def recheck_sharing(self) -> None:
        """Ask those who wait again whether they may join now."""
        with self._mutex:
            self._grant(self._places.grant_waiting())


class ThreadLock(Lock):
    """A lock for threads."""

    def __init__(self, places: int) -> None:
        super().__init__(places, threading.Lock())

    def _waiter(self) -> SimpleQueue[frozenset[int]]:
        return SimpleQueue()

    def _wait(self, waiter: SimpleQueue[frozenset[int]]) -> frozenset[int]:
        return waiter.get()

    def _grant(self, grants: Iterable[tuple[SimpleQueue[frozenset[int]], frozenset[int]]]) -> None:
        for waiter, places in grants:
            waiter.put(places)
