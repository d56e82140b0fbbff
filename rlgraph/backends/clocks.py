"""Clocks: how the work of nodes that do not wait for each other goes on at the same time.

There are three, and one executor. `InLine` does a node's work at once: one process, one thing after the other.
`Threads` has a thread for each node that is at work: the processes of a cluster work meanwhile. `Virtual` has
greenlets instead, of which one runs at a time, and moves its time on when all wait: a simulation, in which the same
order comes out every time. From one of them to the next it takes less than a microsecond, from thread to thread up to
a hundred.
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


class _Turn:
    """One of those that take turns at running."""

    def __init__(self, stack: greenlet, since: float, cause: object) -> None:
        self.stack = stack
        self.since, self.cause = since, cause
        """What it waited for last, and when that was there."""

    def take(self, other: _Turn) -> None:
        """It could not go on before the other one was here."""
        if other.since >= self.since:
            self.since, self.cause = other.since, other.cause


class Virtual:
    """Time that passes when everybody waits.

    Exactly one of those that take turns runs; it gives way where it sleeps, waits for a lock, or waits to be told
    something. Who was woken first goes on first; when nobody can, the earliest sleeper wakes, of several the one that
    lay down first. So the order of everything is a function of the seconds that are slept. Who begins the outermost
    crew is the first to run; all run in its thread.
    """

    together = True

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since it began."""
        self._first = self._me = _Turn(getcurrent(), 0.0, None)
        self._begun: dict[_Turn, None] = {}
        """Those beside the first one that have not ended."""
        self._ready: deque[_Turn] = deque()
        self._sleepers: list[tuple[float, int, _Turn]] = []
        self._number = count()
        self._failure: BaseException | None = None

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        heappush(self._sleepers, (self.now + seconds, next(self._number), self._me))
        self._wait()

    def lock(self, places: int = 1) -> Lock:
        return _VirtualLock(self, places)

    def crew(self, size: int) -> AbstractContextManager[Crew]:
        return _VirtualCrew(self)

    # Causes

    @property
    def cause(self) -> object:
        """What this one waited for last: itself `noted` it, or who woke it had waited for it."""
        return self._me.cause

    def note(self, cause: object) -> None:
        """Something is done now, and this one goes on because of it."""
        self._me.since, self._me.cause = self.now, cause

    # Turns

    def begin(self, work: Event, owner: _Turn) -> None:
        """Lets somebody else do it, after those who are ready already; that goes on because its owner does."""

        def run(*_: object) -> None:
            self._me = mine
            try:
                work()
            except Stopped:
                pass
            finally:
                del self._begun[mine]
            # A greenlet that ends gives way to its parent.
            mine.stack.parent = self._first.stack if self._failure else self._next().stack

        if self._me is self._first:
            self._first.stack = getcurrent()
        mine = _Turn(greenlet(run, self._first.stack), owner.since, owner.cause)
        self._begun[mine] = None
        self._ready.append(mine)

    def _wait(self) -> None:
        """Gives way, and goes on when somebody has woken this one."""
        me = self._me
        if self._failure is None:
            other = self._next()
            if other is not me:
                other.stack.switch()
        if self._failure is not None:
            raise self._failure if me is self._first else Stopped
        self._me = me

    def _wake(self, turn: _Turn) -> None:
        turn.take(self._me)
        self._ready.append(turn)

    def _next(self) -> _Turn:
        """Whose turn it is."""
        if self._ready:
            return self._ready.popleft()
        if self._sleepers:
            self.now, _, turn = heappop(self._sleepers)
            return turn
        self._failure = AssertionError("everybody waits for somebody else")
        return self._first

    def _stop(self, failure: BaseException) -> None:
        """Ends the first one with the failure, which ends all others, each where it waits."""
        self._failure = self._failure or failure
        if getcurrent() is not self._first.stack:
            return
        for turn in list(self._begun):
            # Neither those that have not begun to run, nor those that another one has ended.
            if turn.stack:
                turn.stack.throw(Stopped)
        self._begun.clear()


class _VirtualLock(_Takes):
    def __init__(self, clock: Virtual, places: int) -> None:
        self.clock, self.places = clock, Places(places)
        self.handed: dict[_Turn, frozenset[int]] = {}

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

    def _hand(self, given: Iterable[tuple[_Turn, frozenset[int]]]) -> None:
        for turn, places in given:
            self.handed[turn] = places
            if turn is not self.clock._me:
                self.clock._wake(turn)


class _VirtualCrew:
    def __init__(self, clock: Virtual) -> None:
        self.clock, self.owner = clock, clock._me
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
