"""Clocks: how the work of nodes that do not wait for each other goes on at the same time.

There are three, and one executor. `InLine` does a node's work at once: one process, one thing after the other.
`Threads` has a thread for each node that is at work: the processes of a cluster work meanwhile. `Virtual` has these
threads too, but lets one of them run at a time, and moves its time on when all wait: a simulation, in which the same
order comes out every time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from heapq import heappop, heappush
from itertools import count
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

from rlgraph.backends.places import Hold, Joins, Places, always

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

    def hold(
        self, rank: int = 0, wanted: frozenset[int] | None = None, key: Hashable = None, joins: Joins = always
    ) -> AbstractContextManager[Hold]:
        """The same, for who may give some of the places back before the others."""
        ...

    def again(self) -> None:
        """Those who wait may join now: they are asked again."""
        ...


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


class _Takes:
    """Who takes places of a lock, and gives none of them back before the others."""

    @contextmanager
    def take(
        self: Lock, rank: int = 0, wanted: frozenset[int] | None = None, key: Hashable = None, joins: Joins = always
    ) -> Iterator[int]:
        with self.hold(rank, wanted, key, joins) as held:
            yield min(held.places)


class _Lock(_Takes):
    def __init__(self, places: int) -> None:
        self._mine = threading.Lock()
        self._places = Places(places)

    @contextmanager
    def hold(
        self, rank: int = 0, wanted: frozenset[int] | None = None, key: Hashable = None, joins: Joins = always
    ) -> Iterator[Hold]:
        turn: SimpleQueue[frozenset[int]] = SimpleQueue()
        with self._mine:
            _put(self._places.ask(rank, wanted, key, joins, turn))

        def leave(held: Hold, some: frozenset[int]) -> bool:
            with self._mine:
                given = self._places.leave(held.places, some, key)
                held.places -= some if given is not None else frozenset()
                _put(given or ())
            return given is not None

        held = Hold(turn.get(), leave)
        try:
            yield held
        finally:
            with self._mine:
                _put(self._places.back(held.places, key))

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


class _VirtualLock(_Takes):
    def __init__(self, clock: Virtual, places: int) -> None:
        self.clock, self.places = clock, Places(places)
        self.handed: dict[_Thread, frozenset[int]] = {}

    @contextmanager
    def hold(
        self, rank: int = 0, wanted: frozenset[int] | None = None, key: Hashable = None, joins: Joins = always
    ) -> Iterator[Hold]:
        me = self.clock._me
        self._hand(self.places.ask(rank, wanted, key, joins, me))
        if me not in self.handed:
            self.clock._wait()

        def leave(held: Hold, some: frozenset[int]) -> bool:
            given = self.places.leave(held.places, some, key)
            held.places -= some if given is not None else frozenset()
            self._hand(given or ())
            return given is not None

        held = Hold(self.handed.pop(me), leave)
        try:
            yield held
        finally:
            self._hand(self.places.back(held.places, key))

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
