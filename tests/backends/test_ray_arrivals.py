"""New weights that come to a process: between two tokens of what it samples, or between two of its orders, by all ranks
alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

pytest.importorskip("ray.util")

from rlgraph.backends.exchange.exchange import ExchangeCost
from rlgraph.backends.ray.arrivals import WeightArrivals
from tests.waits import NEVER


class Coming:
    """A transfer that tells when it was taken part in."""

    def __init__(self, fails: bool = False) -> None:
        self.taken, self.fails = Event(), fails

    def __call__(self) -> ExchangeCost:
        assert not self.taken.is_set(), "it is taken part in once"
        self.taken.set()
        if self.fails:
            raise ValueError("the link is gone")
        return ExchangeCost(0, 0, 0.0, 0)


def test_who_samples_takes_them_before_a_token() -> None:
    arrivals, coming = WeightArrivals(), Coming()
    arrivals.begin_sampling(6)
    assert arrivals.version == 6 and not arrivals.can_take_weights
    with ThreadPoolExecutor() as pool:
        moved = pool.submit(arrivals.announce_weights, 3, 7, coming)
        while not arrivals.can_take_weights and not moved.done():
            assert not coming.taken.is_set()
        assert arrivals.version == 6 and not moved.done()
        assert arrivals.take_weights() == arrivals.version == 7
        assert coming.taken.is_set() and not arrivals.can_take_weights and moved.result(NEVER)
    arrivals.wait_until_received(3)
    assert arrivals.version == 7
    # Who was told of older ones, when he was ordered, begins with these.
    arrivals.begin_sampling(6)
    assert arrivals.version == 7


def test_between_two_orders_they_are_taken_where_nobody_did() -> None:
    """Also if they are told of later beside the orders than among them."""
    arrivals, coming = WeightArrivals(), Coming()
    with ThreadPoolExecutor() as pool:
        settled = pool.submit(arrivals.wait_until_received, 3)
        assert not settled.done()
        assert arrivals.announce_weights(3, 7, coming) and coming.taken.is_set()
        settled.result(NEVER)
    assert arrivals.version == 7 and not arrivals.can_take_weights


def test_both_are_told_of_a_failure() -> None:
    arrivals = WeightArrivals()
    with ThreadPoolExecutor() as pool:
        moved = pool.submit(arrivals.announce_weights, 1, 7, Coming(fails=True))
        with pytest.raises(ValueError, match="the link is gone"):
            arrivals.wait_until_received(1)
        with pytest.raises(ValueError, match="the link is gone"):
            moved.result(NEVER)
    assert arrivals.version == 0
