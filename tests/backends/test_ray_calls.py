"""What all ranks of a copy are told reaches each of them in one order, whoever tells them something else meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event, Lock
from typing import Any

import pytest

pytest.importorskip("ray.util")

from rlgraph.backends.ray.calls import Calls, Copy
from rlgraph.backends.ray.processes import InlineProcesses, Processes, Reference
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.worker import Worker
from tests.waits import NEVER

COPY: Copy = (("play", 0), (("play", 1), ("play", 2)))


class Door:
    """A lock that tells when the second one who wants it is there."""

    def __init__(self, second: Event) -> None:
        self.lock, self.second, self.numbers = Lock(), second, count()

    def __enter__(self) -> None:
        if next(self.numbers) == 1:
            self.second.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


class Heard(InlineProcesses):
    """Processes of which is known what each is told, and in which order."""

    def __init__(self) -> None:
        Processes.__init__(self, dict.fromkeys([COPY[0], *COPY[1]]), 1.0)  # type: ignore[arg-type]
        self.told: dict[Address, list[int]] = {who: [] for who in self.who}
        self.began, self.came = Event(), Event()
        """Of the first call, that it has begun; of the second, that it stands at the door or is through."""
        self._sending = dict.fromkeys(self._sending, Door(self.came))  # type: ignore[arg-type]

    def call(self, who: Address, method: Any, *args: Any, **named: Any) -> Reference[Any]:
        self.told[who] += args
        if args == (1,):
            self.began.set()
            # Whoever can come in between does.
            assert self.came.wait(NEVER)
        return Reference()

    def call_through_leader(
        self, through: Address, to: Any, method: Any, *args: Any, **named: Any
    ) -> Reference[list[Any]]:
        for who in to:
            self.told[who] += args
        if args == (2,):
            self.came.set()
        return Reference()


def test_nobody_comes_in_between() -> None:
    processes = Heard()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(Calls[bool](processes).call_replica, COPY, Worker.wait_until_idle, 1)
        assert processes.began.wait(NEVER)
        second = pool.submit(Calls[bool](processes).call_replica, COPY, Worker.wait_until_idle, 2)
        first.result(NEVER)
        second.result(NEVER)
    assert processes.told == dict.fromkeys(processes.who, [1, 2])
