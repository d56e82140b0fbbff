"""Messages between threads as NCCL has them: neither end goes on before both are there. Nobody holds a clock: where all
threads that have not ended wait for what only another of them can do, all of them hear so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")


class NobodyMoves(Exception):
    """Raised in every thread that waits when all do."""


class Meetings:
    """Where threads meet: a message has a name, under which one gives it and another one takes it."""

    def __init__(self, threads: int) -> None:
        self._news = threading.Condition()
        self._moving, self._stuck = threads, False
        self._given: dict[Hashable, Any] = {}
        self._taken = set[Hashable]()
        self._waiting: dict[int, Callable[[], bool]] = {}

    def exchange(self, given: Mapping[Hashable, Any], taken: Sequence[Hashable]) -> list[Any]:
        """Give messages and take others, all at the same time, and wait for every one."""
        with self._news:
            self._given.update(given)
            self._news.notify_all()
            for name in taken:
                # Whoever gives it goes on, though this thread may wait for others.
                self._taken.add(name)
            self._wait(lambda: all(name in self._given for name in taken) and self._taken.issuperset(given))
            return [self._given[name] for name in taken]

    def give(self, name: Hashable) -> None:
        """Give a message that needs nobody to wait for it."""
        with self._news:
            self._given[name] = None
            self._news.notify_all()

    def leave(self) -> None:
        """End a thread's part."""
        with self._news:
            self._moving -= 1
            self._news.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        me = threading.get_ident()
        self._waiting[me] = ready
        while not ready():
            stuck = len(self._waiting) == self._moving and not any(other() for other in self._waiting.values())
            if self._stuck or stuck:
                self._stuck = True
                self._news.notify_all()
                raise NobodyMoves
            self._news.wait()
        del self._waiting[me]


def run_threads(works: Sequence[Callable[[Meetings], Result]]) -> list[Result] | None:
    """Return what each work returns, in a thread of its own; None where nobody can move."""
    meetings, results, failures = Meetings(len(works)), dict[int, Result](), list[BaseException]()

    def run(number: int) -> None:
        try:
            results[number] = works[number](meetings)
        except BaseException as failure:
            failures.append(failure)
        finally:
            meetings.leave()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        if not isinstance(failure, NobodyMoves):
            raise failure
    return None if failures else [results[number] for number in range(len(works))]
