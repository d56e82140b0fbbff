"""This module has the clocks: how nodes that do not wait for each other work at the same time.

There are three, and one executor. `InlineClock` does a node's work at once: one process, one thing after the other.
`ThreadClock` has a thread for each node that is at work, while the processes of a cluster do it. `VirtualClock` has
greenlets instead, of which one runs at a time, and moves its time on when all wait: a simulation, in which the same
order comes out every time. To switch between greenlets takes less than a microsecond, between threads up to a hundred.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from heapq import heappop, heappush
from itertools import count
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

from greenlet import getcurrent, greenlet

from rlgraph.backends.places import HeldPlaces, Joins, LockPlaces, always_joins

Event = Callable[[], None]
"""A callback to run because a node made something."""


class TaskPool(Protocol):
    """A pool that does the work of a graph's nodes. The thread that runs the graph begins work and runs the events it
    reports."""

    def begin(self, work: Event) -> None:
        """Start some work, which reports its own failures."""
        ...

    def tell(self, event: Event) -> None:
        """Report an event. Called by the work; the event runs in the thread that runs the graph."""
        ...

    @property
    def told(self) -> bool:
        """Whether an event is reported already."""
        ...

    def next(self) -> Event:
        """Wait until an event is reported, and return it."""
        ...

    def adopt(self) -> None:
        """Make the calling thread the one that runs the graph."""
        ...


class Clock(Protocol):
    """A way for nodes to work at the same time, or one by one."""

    together: bool
    """Whether nodes that do not wait for each other work at the same time."""

    def crew(self, size: int) -> AbstractContextManager[TaskPool]:
        """Return a crew for a graph of so many nodes. When the context is left, all its work has ended."""
        ...

    def lock(self, places: int = 1) -> Lock:
        """Return a lock that so many can have at a time."""
        ...


class Lock(Protocol):
    """A lock with numbered places, which are taken one at a time or as a set."""

    def take(
        self, rank: int = 0, wanted: frozenset[int] | None = None, key: Hashable = None, joins: Joins = always_joins
    ) -> AbstractContextManager[int]:
        """Wait for the first free place of the lock, or for all of `wanted` at once, and have it in the context, which
        gives the place, or the first of them. Of those that wait for the same the lowest rank is next, and among
        equals the one that came first. All users of a lock ask in the same of the two ways. key: those who want the
        same places with the same key have them together, up to `TOGETHER` of them, but nobody passes one who waits
        for such a place. joins: asked each time before they could share places; it takes no other lock of a clock."""
        ...

    def hold(
        self, rank: int = 0, wanted: frozenset[int] | None = None, key: Hashable = None, joins: Joins = always_joins
    ) -> AbstractContextManager[HeldPlaces]:
        """Take places as `take` does, for a user who may give some back before the others."""
        ...

    def again(self) -> None:
        """Ask those who wait again whether they may join now."""
        ...


# In line


class InlineClock:
    """A clock that does work when it begins."""

    together = False

    @contextmanager
    def crew(self, size: int) -> Iterator[TaskPool]:
        yield _InLineCrew()

    def lock(self, places: int = 1) -> Lock:
        return _Lock(places)


class _InLineCrew:
    """A crew whose work is over when it has begun."""

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


class ThreadClock:
    """A clock that does work in threads, in real time."""

    together = True

    @contextmanager
    def crew(self, size: int) -> Iterator[TaskPool]:
        with ThreadPoolExecutor(max(1, size), "node") as pool:
            yield _ThreadCrew(pool)

    def lock(self, places: int = 1) -> Lock:
        return _Lock(places)


class _Takes:
    """A mixin of locks: `take` for those who give all places back at once."""

    @contextmanager
    def take(
        self: Lock,
        rank: int = 0,
        wanted: frozenset[int] | None = None,
        key: Hashable = None,
        joins: Joins = always_joins,
    ) -> Iterator[int]:
        with self.hold(rank, wanted, key, joins) as held:
            yield min(held.places)


class _Lock(_Takes):
    """A lock for threads."""

    def __init__(self, places: int) -> None:
        self._mutex = threading.Lock()
        self._places = LockPlaces(places)

    @contextmanager
    def hold(
        self, rank: int = 0, wanted: frozenset[int] | None = None, key: Hashable = None, joins: Joins = always_joins
    ) -> Iterator[HeldPlaces]:
        granted: SimpleQueue[frozenset[int]] = SimpleQueue()
        with self._mutex:
            _put(self._places.ask(rank, wanted, key, joins, granted))

        def leave(held: HeldPlaces, some: frozenset[int]) -> bool:
            with self._mutex:
                grants = self._places.leave(held.places, some, key)
                held.places -= some if grants is not None else frozenset()
                _put(grants or ())
            return grants is not None

        held = HeldPlaces(granted.get(), leave)
        try:
            yield held
        finally:
            with self._mutex:
                _put(self._places.back(held.places, key))

    def again(self) -> None:
        with self._mutex:
            _put(self._places.again())


def _put(grants: Iterable[tuple[Any, frozenset[int]]]) -> None:
    """Tell each thread that waits which places it gets."""
    for queue, places in grants:
        queue.put(places)


class _ThreadCrew:
    """A crew of threads."""

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


class SimulationStopped(BaseException):
    """The simulation failed elsewhere: this ends each greenlet that waits in it."""


class _Coroutine:
    """One of the greenlets that take turns at running."""

    def __init__(self, stack: greenlet, since: float, cause: object) -> None:
        self.stack = stack
        self.since, self.cause = since, cause
        """What it waited for last, and when that had come."""

    def wait_for(self, other: _Coroutine) -> None:
        """Take over the other one's cause if it is later: this one could not go on before the other was here."""
        if other.since >= self.since:
            self.since, self.cause = other.since, other.cause


class VirtualClock:
    """A clock whose time passes when everybody waits.

    Exactly one greenlet runs at a time; it gives way where it sleeps, waits for a lock, or waits for an event. The one
    woken first goes on first; when none can, the earliest sleeper wakes, among equals the one that lay down first. So
    the order of everything is a function of the seconds slept. Whoever begins the outermost crew is the first to run;
    all run in its thread.
    """

    together = True

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the clock began."""
        self._main = self._current = _Coroutine(getcurrent(), 0.0, None)
        self._started: dict[_Coroutine, None] = {}
        """Those that have not ended, without the main one."""
        self._ready: deque[_Coroutine] = deque()
        self._sleeping: list[tuple[float, int, _Coroutine]] = []
        self._counter = count()
        self._failure: BaseException | None = None

    def sleep(self, seconds: float) -> None:
        """Give way for some virtual seconds."""
        assert seconds >= 0
        heappush(self._sleeping, (self.now + seconds, next(self._counter), self._current))
        self._wait()

    def lock(self, places: int = 1) -> Lock:
        return _VirtualLock(self, places)

    def crew(self, size: int) -> AbstractContextManager[TaskPool]:
        return _VirtualCrew(self)

    # Causes

    @property
    def cause(self) -> object:
        """What this greenlet waited for last: it `noted` that itself, or whoever woke it had waited for it."""
        return self._current.cause

    def note(self, cause: object) -> None:
        """Note that something is done now, and that this greenlet goes on because of it."""
        self._current.since, self._current.cause = self.now, cause

    # Turns

    def begin(self, work: Event, owner: _Coroutine) -> None:
        """Do some work in a new greenlet, after those that are ready already; its cause is its owner's."""

        def run(*_: object) -> None:
            self._current = coroutine
            try:
                work()
            except SimulationStopped:
                pass
            finally:
                del self._started[coroutine]
            # A greenlet that ends gives way to its parent.
            coroutine.stack.parent = self._main.stack if self._failure else self._next().stack

        if self._current is self._main:
            self._main.stack = getcurrent()
        coroutine = _Coroutine(greenlet(run, self._main.stack), owner.since, owner.cause)
        self._started[coroutine] = None
        self._ready.append(coroutine)

    def _wait(self) -> None:
        """Give way, and go on when somebody has woken this greenlet."""
        waiting = self._current
        if self._failure is None:
            following = self._next()
            if following is not waiting:
                following.stack.switch()
        if self._failure is not None:
            raise self._failure if waiting is self._main else SimulationStopped
        self._current = waiting

    def _wake(self, coroutine: _Coroutine) -> None:
        coroutine.wait_for(self._current)
        self._ready.append(coroutine)

    def _next(self) -> _Coroutine:
        """Return the greenlet that runs next."""
        if self._ready:
            return self._ready.popleft()
        if self._sleeping:
            self.now, _, coroutine = heappop(self._sleeping)
            return coroutine
        self._failure = AssertionError("everybody waits for somebody else")
        return self._main

    def _stop(self, failure: BaseException) -> None:
        """End the main greenlet with the failure, which ends all others, each where it waits."""
        self._failure = self._failure or failure
        if getcurrent() is not self._main.stack:
            return
        for coroutine in list(self._started):
            # False for those that have not begun to run, and for those that another one has ended.
            if coroutine.stack:
                coroutine.stack.throw(SimulationStopped)
        self._started.clear()


class _VirtualLock(_Takes):
    """A lock for greenlets."""

    def __init__(self, clock: VirtualClock, places: int) -> None:
        self.clock, self.places = clock, LockPlaces(places)
        self.handed: dict[_Coroutine, frozenset[int]] = {}

    @contextmanager
    def hold(
        self, rank: int = 0, wanted: frozenset[int] | None = None, key: Hashable = None, joins: Joins = always_joins
    ) -> Iterator[HeldPlaces]:
        waiting = self.clock._current
        self._hand(self.places.ask(rank, wanted, key, joins, waiting))
        if waiting not in self.handed:
            self.clock._wait()

        def leave(held: HeldPlaces, some: frozenset[int]) -> bool:
            grants = self.places.leave(held.places, some, key)
            held.places -= some if grants is not None else frozenset()
            self._hand(grants or ())
            return grants is not None

        held = HeldPlaces(self.handed.pop(waiting), leave)
        try:
            yield held
        finally:
            self._hand(self.places.back(held.places, key))

    def again(self) -> None:
        self._hand(self.places.again())

    def _hand(self, grants: Iterable[tuple[_Coroutine, frozenset[int]]]) -> None:
        for coroutine, places in grants:
            self.handed[coroutine] = places
            if coroutine is not self.clock._current:
                self.clock._wake(coroutine)


class _VirtualCrew:
    """A crew of greenlets."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock, self.owner = clock, clock._current
        self.waits, self.working = False, 0
        self.events: deque[Event] = deque()

    def begin(self, work: Event) -> None:
        self.working += 1
        self.clock.begin(partial(self._live, work), self.owner)

    def _live(self, work: Event) -> None:
        try:
            work()
        finally:
            self.working -= 1
            self._rouse()

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
        self.owner = self.clock._current

    def _await(self) -> None:
        self.waits = True
        self.clock._wait()

    def _rouse(self) -> None:
        if self.waits:
            self.waits = False
            self.clock._wake(self.owner)

    def __enter__(self) -> TaskPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.clock._stop(error)
        while self.working and error is None:
            self._await()
