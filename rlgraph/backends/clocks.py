"""This module has the clocks: how nodes that do not wait for each other work at the same time.

There are three, and one executor. `InlineClock` does a node's work at once: one process, one thing after the other.
`ThreadClock` has a thread for each node that is at work, while the processes of a cluster do it. `VirtualClock` has
greenlets instead, of which one runs at a time, and moves its time on when all wait: a simulation, in which the same
order comes out every time (`virtual_clock.py`). To switch between greenlets takes less than a microsecond, between
threads up to a hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import Protocol

from rlgraph.backends.locks import Lock, ThreadLock

Event = Callable[[], None]
"""A callback to run because a node made something."""


class TaskPool(Protocol):
    """A pool that does the work of a graph's nodes. The thread that runs the graph begins work and runs the events it
    reports."""

    def submit(self, work: Event) -> None:
        """Start some work, which reports its own failures."""
        ...

    def post_event(self, event: Event) -> None:
        """Report an event. Called by the work; the event runs in the thread that runs the graph."""
        ...

    @property
    def has_event(self) -> bool:
        """Whether an event is reported already."""
        ...

    def next_event(self) -> Event:
        """Wait until an event is reported, and return it."""
        ...

    def become_event_thread(self) -> None:
        """Make the calling thread the one that runs the graph."""
        ...


def report_failure(pool: TaskPool, error: BaseException) -> None:
    """Report an error of some work, which the thread that runs the graph raises."""

    def fail() -> None:
        raise error

    pool.post_event(fail)


class Clock(Protocol):
    """A way for nodes to work at the same time, or one by one."""

    concurrent: bool
    """Whether nodes that do not wait for each other work at the same time."""

    def task_pool(self, size: int) -> AbstractContextManager[TaskPool]:
        """Return a task pool for a graph of so many nodes. When the context is left, all its work has ended."""
        ...

    def new_lock(self, places: int = 1) -> Lock:
        """Return a lock that so many can have at a time."""
        ...


# In line


class InlineClock:
    """A clock that does work when it begins."""

    concurrent = False

    @contextmanager
    def task_pool(self, size: int) -> Iterator[TaskPool]:
        yield _InlineTaskPool()

    def new_lock(self, places: int = 1) -> Lock:
        return ThreadLock(places)


class _InlineTaskPool:
    """A task pool whose work is over when it has begun."""

    def submit(self, work: Event) -> None:
        work()

    def post_event(self, event: Event) -> None:
        event()

    @property
    def has_event(self) -> bool:
        return False

    def next_event(self) -> Event:
        raise AssertionError("work is over when it has begun: there is nothing to wait for")

    def become_event_thread(self) -> None: ...


# Threads


class ThreadClock:
    """A clock that does work in threads, in real time."""

    concurrent = True

    @contextmanager
    def task_pool(self, size: int) -> Iterator[TaskPool]:
        with ThreadPoolExecutor(max(1, size), "node") as pool:
            yield _ThreadTaskPool(pool)

    def new_lock(self, places: int = 1) -> Lock:
        return ThreadLock(places)


class _ThreadTaskPool:
    """A task pool of threads."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.events: SimpleQueue[Event] = SimpleQueue()

    def submit(self, work: Event) -> None:
        self.pool.submit(work)

    def post_event(self, event: Event) -> None:
        self.events.put(event)

    @property
    def has_event(self) -> bool:
        return not self.events.empty()

    def next_event(self) -> Event:
        return self.events.get()

    def become_event_thread(self) -> None: ...
