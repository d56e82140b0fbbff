"""This module has the clock of simulations, whose time passes when everybody waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import TracebackType

from greenlet import getcurrent, greenlet

from rlgraph.backends.clocks import Event, TaskPool
from rlgraph.backends.locks import Lock


class SimulationStopped(BaseException):
    """The simulation failed elsewhere: this ends each greenlet that waits in it."""


class _Coroutine:
    """One of the greenlets that take turns at running."""

    def __init__(self, stack: greenlet, since: float, cause: object) -> None:
        self.stack = stack
        self.since, self.cause = since, cause
        """What it waited for last, and when that had come."""

    def inherit_wait_cause(self, other: _Coroutine) -> None:
        """Take over the other one's cause if it is later: this one could not go on before the other was here."""
        if other.since >= self.since:
            self.since, self.cause = other.since, other.cause


class VirtualClock:
    """A clock whose time passes when everybody waits.

    Exactly one greenlet runs at a time; it gives way where it sleeps, waits for a lock, or waits for an event. The one
    woken first goes on first; when none can, the earliest sleeper wakes, among equals the one that lay down first. So
    the order of everything is a function of the seconds slept. Whoever begins the outermost task pool is the first to
    run; all run in its thread.
    """

    concurrent = True

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

    def new_lock(self, places: int = 1) -> Lock:
        return _VirtualLock(self, places)

    def task_pool(self, size: int) -> AbstractContextManager[TaskPool]:
        return _VirtualTaskPool(self)

    # Causes

    @property
    def wait_cause(self) -> object:
        """What this greenlet waited for last: it told `note_wait_cause` that itself, or whoever woke it had waited for
        it."""
        return self._current.cause

    def note_wait_cause(self, cause: object) -> None:
        """Note that something is done now, and that this greenlet goes on because of it."""
        self._current.since, self._current.cause = self.now, cause

    # Turns

    def start_greenlet(self, work: Event, owner: _Coroutine) -> None:
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
        coroutine.inherit_wait_cause(self._current)
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


class _VirtualLock(Lock):
    """A lock for greenlets, of which one runs at a time."""

    def __init__(self, clock: VirtualClock, places: int) -> None:
        super().__init__(places, nullcontext())
        self.clock = clock
        self.granted: dict[_Coroutine, frozenset[int]] = {}

    def _waiter(self) -> _Coroutine:
        return self.clock._current

    def _wait(self, waiter: _Coroutine) -> frozenset[int]:
        if waiter not in self.granted:
            self.clock._wait()
        return self.granted.pop(waiter)

    def _grant(self, grants: Iterable[tuple[_Coroutine, frozenset[int]]]) -> None:
        for coroutine, places in grants:
            self.granted[coroutine] = places
            if coroutine is not self.clock._current:
                self.clock._wake(coroutine)


class _VirtualTaskPool:
    """A task pool of greenlets."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock, self.owner = clock, clock._current
        self.waits, self.working = False, 0
        self.events: deque[Event] = deque()

    def submit(self, work: Event) -> None:
        self.working += 1
        self.clock.start_greenlet(partial(self._live, work), self.owner)

    def _live(self, work: Event) -> None:
        try:
            work()
        finally:
            self.working -= 1
            self._rouse()

    def post_event(self, event: Event) -> None:
        self.events.append(event)
        self._rouse()

    @property
    def has_event(self) -> bool:
        return bool(self.events)

    def next_event(self) -> Event:
        while not self.events:
            self._await()
        return self.events.popleft()

    def become_event_thread(self) -> None:
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
