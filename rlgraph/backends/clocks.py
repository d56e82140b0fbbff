"""Clocks: how the work of nodes that do not wait for each other goes on at the same time.

There are three, and one executor. `InLine` does a node's work at once: one process, one thing after the other.
`Threads` has a thread for each node that is at work: the processes of a cluster work meanwhile. `Virtual` has these
threads too, but lets one of them run at a time, and moves its time on when all wait: a simulation, in which the same
order comes out every time.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

Event = Callable[[], None]
"""What is to do because a node made something."""


class Crew(Protocol):
    """Does the work of a graph's nodes. The thread that runs the graph begins it, and is told what came of it."""

    def begin(self, work: Event) -> None:
        """Work tells of its failures itself."""
        ...

    def tell(self, event: Event) -> None:
        """Called by the work; the event happens in the thread that runs the graph."""
        ...

    @property
    def told(self) -> bool:
        """Whether something is told already."""
        ...

    def next(self) -> Event:
        """Waits until something is told."""
        ...

    def adopt(self) -> None:
        """From now on this thread runs the graph."""
        ...


class Clock(Protocol):
    together: bool
    """Nodes that do not wait for each other are at work at the same time."""

    def crew(self, size: int) -> AbstractContextManager[Crew]:
        """For a graph of so many nodes. When it is left, all its work has ended."""
        ...

    def lock(self, places: int = 1) -> Lock:
        """What so many threads at a time may have."""
        ...


Joins = Callable[[], bool]
"""Whether somebody may have places together with those who have them now. If so he gets them at once."""


def always() -> bool:
    return True


class Lock(Protocol):
    def take(
        self, rank: int = 0, wanted: frozenset[int] | None = None, key: Hashable = None, joins: Joins = always
    ) -> AbstractContextManager[int]:
        """Waits for one of its places, the first that is free, or for all of these at once, and has it meanwhile: which
        one, or the first of them. Of those that wait for the same the lowest rank is next, and of several the one that
        came first. All who take of one lock ask in one of the two ways. key: those who want the same places with the
        same key have them together, up to `TOGETHER` of them, but nobody passes one who waits for such a place. joins:
        asked whenever that could be, before they have them together; it takes no other lock of a clock."""
        ...

    def again(self) -> None:
        """Those who wait may join now: they are asked again."""
        ...


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


class _Places:
    """The places of a lock: which are free, and who waits for which."""

    def __init__(self, places: int) -> None:
        self._free = set(range(places))
        self._lowest = list(range(places))
        """A heap of those that are free, and of some that were."""
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

    def back(self, places: frozenset[int], key: Hashable) -> list[tuple[Any, frozenset[int]]]:
        """Places are given back: who gets some of them, and which."""
        if key is not None:
            self._shared[key, places] -= 1
            if self._shared[key, places]:
                return self.again()
            del self._shared[key, places]
        self._free |= places
        for each in places:
            heappush(self._lowest, each)
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
                given = frozenset({self._first()})
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

    def _first(self) -> int:
        while (found := heappop(self._lowest)) not in self._free:
            pass
        return found


# In line


class InLine:
    """Work is done when it begins."""

    together = False

    @contextmanager
    def crew(self, size: int) -> Iterator[Crew]:
        yield _InLineCrew()

    def lock(self, places: int = 1) -> Lock:
        return _Lock(places)


class _InLineCrew:
    def begin(self, work: Event) -> None:
        work()

    def tell(self, event: Event) -> None:
        event()

    @property
    def told(self) -> bool:
        return False

    def next(self) -> Event:
        raise AssertionError("work is over when it has begun: there is nothing to wait for")

    def adopt(self) -> None: ...


# Threads


class Threads:
    """Work is done in threads, and real time passes."""

    together = True

    @contextmanager
    def crew(self, size: int) -> Iterator[Crew]:
        with ThreadPoolExecutor(max(1, size), "node") as pool:
            yield _ThreadCrew(pool)

    def lock(self, places: int = 1) -> Lock:
        return _Lock(places)


class _Lock:
    def __init__(self, places: int) -> None:
        self._mine = threading.Lock()
        self._places = _Places(places)

    @contextmanager
    def take(
        self, rank: int = 0, wanted: frozenset[int] | None = None, key: Hashable = None, joins: Joins = always
    ) -> Iterator[int]:
        turn: SimpleQueue[frozenset[int]] = SimpleQueue()
        with self._mine:
            _put(self._places.ask(rank, wanted, key, joins, turn))
        given = turn.get()
        try:
            yield min(given)
        finally:
            with self._mine:
                _put(self._places.back(given, key))

    def again(self) -> None:
        with self._mine:
            _put(self._places.again())


def _put(given: Iterable[tuple[Any, frozenset[int]]]) -> None:
    for who, places in given:
        who.put(places)


class _ThreadCrew:
    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.events: SimpleQueue[Event] = SimpleQueue()

    def begin(self, work: Event) -> None:
        self.pool.submit(work)

    def tell(self, event: Event) -> None:
        self.events.put(event)

    @property
    def told(self) -> bool:
        return not self.events.empty()

    def next(self) -> Event:
        return self.events.get()

    def adopt(self) -> None: ...


# Virtual time


class Stopped(BaseException):
    """The simulation failed elsewhere: what waits in it ends with this."""


class _Thread:
    """One of those that take turns at running."""

    def __init__(self, since: float, cause: object) -> None:
        self.baton = threading.Semaphore(0)
        self.since, self.cause = since, cause
        """What it waited for last, and when that was there."""

    def take(self, other: _Thread) -> None:
        """It could not go on before the other one was here."""
        if other.since >= self.since:
            self.since, self.cause = other.since, other.cause


class Virtual:
    """Time that passes when everybody waits.

    Exactly one thread has the baton; it gives it on where it sleeps, waits for a lock, or waits to be told something.
    Who was woken first goes on first; when nobody can, the earliest sleeper wakes, of several the one that lay down
    first. So the order of everything is a function of the seconds that are slept. The thread that makes the clock is
    the first to run.
    """

    together = True

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since it began."""
        self._first = self._me = _Thread(0.0, None)
        self._alive = [self._first]
        self._ready: deque[_Thread] = deque()
        self._sleepers: list[tuple[float, int, _Thread]] = []
        self._number = count()
        self._failure: BaseException | None = None

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        heappush(self._sleepers, (self.now + seconds, next(self._number), self._me))
        self._wait()

    def lock(self, places: int = 1) -> Lock:
        return _VirtualLock(self, places)

    def crew(self, size: int) -> AbstractContextManager[Crew]:
        return _VirtualCrew(self, size)

    # Causes

    @property
    def cause(self) -> object:
        """What this thread waited for last: itself `noted` it, or who woke it had waited for it."""
        return self._me.cause

    def note(self, cause: object) -> None:
        """Something is done now, and this thread goes on because of it."""
        self._me.since, self._me.cause = self.now, cause

    # The baton

    def _wait(self) -> None:
        """Gives the baton on, and has it again when somebody has woken this thread."""
        me = self._me
        self._give_on()
        me.baton.acquire()
        if self._failure is not None:
            raise self._failure if me is self._first else Stopped
        self._me = me

    def _wake(self, thread: _Thread) -> None:
        thread.take(self._me)
        self._ready.append(thread)

    def _give_on(self) -> None:
        if self._ready:
            self._ready.popleft().baton.release()
        elif self._sleepers:
            self.now, _, thread = heappop(self._sleepers)
            thread.baton.release()
        else:
            self._stop(AssertionError("everybody waits for somebody else"))

    def _stop(self, failure: BaseException) -> None:
        """Ends all threads, each where it waits; the first one with the failure."""
        self._failure = self._failure or failure
        for thread in list(self._alive):
            thread.baton.release()


class _VirtualLock:
    def __init__(self, clock: Virtual, places: int) -> None:
        self.clock, self.places = clock, _Places(places)
        self.handed: dict[_Thread, frozenset[int]] = {}

    @contextmanager
    def take(
        self, rank: int = 0, wanted: frozenset[int] | None = None, key: Hashable = None, joins: Joins = always
    ) -> Iterator[int]:
        me = self.clock._me
        self._hand(self.places.ask(rank, wanted, key, joins, me))
        if me not in self.handed:
            self.clock._wait()
        given = self.handed.pop(me)
        try:
            yield min(given)
        finally:
            self._hand(self.places.back(given, key))

    def again(self) -> None:
        self._hand(self.places.again())

    def _hand(self, given: Iterable[tuple[_Thread, frozenset[int]]]) -> None:
        for thread, places in given:
            self.handed[thread] = places
            if thread is not self.clock._me:
                self.clock._wake(thread)


class _VirtualCrew:
    def __init__(self, clock: Virtual, size: int) -> None:
        self.clock, self.owner = clock, clock._me
        self.waits, self.working = False, 0
        self.events: deque[Event] = deque()
        self.pool = ThreadPoolExecutor(max(1, size), "node")

    def begin(self, work: Event) -> None:
        mine = _Thread(self.owner.since, self.owner.cause)
        self.working += 1
        self.clock._alive.append(mine)
        self.clock._ready.append(mine)
        self.pool.submit(self._live, mine, work)

    def _live(self, mine: _Thread, work: Event) -> None:
        clock = self.clock
        mine.baton.acquire()
        try:
            if clock._failure is None:
                clock._me = mine
                work()
        finally:
            clock._alive.remove(mine)
            self.working -= 1
            if clock._failure is None:
                self._rouse()
                clock._give_on()

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self._rouse()

    @property
    def told(self) -> bool:
        return bool(self.events)

    def next(self) -> Event:
        while not self.events:
            self._await()
        return self.events.popleft()

    def adopt(self) -> None:
        self.owner = self.clock._me

    def _await(self) -> None:
        self.waits = True
        self.clock._wait()

    def _rouse(self) -> None:
        if self.waits:
            self.waits = False
            self.clock._wake(self.owner)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.clock._stop(error)
        while self.working and error is None:
            self._await()
        self.pool.shutdown()
