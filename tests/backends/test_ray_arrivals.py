"""New weights that come to a process: between two tokens of the order that they are meant for, by all ranks alike."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

pytest.importorskip("ray.util")

from rlgraph.backends.ray.arrivals import Arrivals
from rlgraph.exchange.exchange import Moved


class Coming:
    """A transfer that tells when it was taken part in."""

    def __init__(self) -> None:
        self.taken = Event()

    def __call__(self) -> Moved:
        self.taken.set()
        return Moved(0, 0, 0.0, 0)


def brought(pool: ThreadPoolExecutor, arrivals: Arrivals, sampling: int, coming: Coming) -> Future[Moved]:
    return pool.submit(arrivals.bring, sampling, 7, coming)


def test_they_wait_for_an_order_that_has_not_begun() -> None:
    """Another rank of the copy may be at work on it already, and takes them before its next token."""
    arrivals, coming = Arrivals(), Coming()
    with ThreadPoolExecutor() as pool:
        moved = brought(pool, arrivals, 3, coming)
        while not arrivals.waits:
            assert not coming.taken.is_set()
        with arrivals.sampling(3, 6):
            assert arrivals.version == 6 and arrivals.waits
            assert arrivals.take() == arrivals.version == 7
            assert not arrivals.waits and moved.result(20)


def test_they_come_at_once_when_it_is_over() -> None:
    arrivals, during, after = Arrivals(), Coming(), Coming()
    with ThreadPoolExecutor() as pool:
        with arrivals.sampling(3, 6):
            moved = brought(pool, arrivals, 3, during)
            while not arrivals.waits:
                assert not during.taken.is_set()
        assert moved.result(20) and during.taken.is_set() and not arrivals.waits
        assert brought(pool, arrivals, 3, after).result(20) and after.taken.is_set()
