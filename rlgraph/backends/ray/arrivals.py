"""What comes to a process: rows of orders, in their order; and new weights, also while it samples: then they are taken
between two tokens.

New weights are told of twice: beside what the process does, so that who samples can take them before a token; and among
its orders, where they are here when it goes on. All ranks of a copy have the same orders in the same order. So either
all of them take new weights before the same token, or all do between the same two orders.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition

from rlgraph.backends.exchange.exchange import Moved


@dataclass(frozen=True)
class _Arrival:
    version: int
    receive: Callable[[], Moved]
    """Takes part in the transfer."""
    moved: Future[Moved] = field(default_factory=Future)

    def take(self) -> None:
        try:
            self.moved.set_result(self.receive())
        except BaseException as error:
            self.moved.set_exception(error)


class Came:
    """Which orders have come so far that a later one, which is told to another thread, may go on: their rows are here,
    or they have been passed on."""

    def __init__(self) -> None:
        self._last = 0
        self._changed = Condition()

    def add(self, number: int) -> None:
        with self._changed:
            self._last = max(self._last, number)
            self._changed.notify_all()

    def wait(self, number: int) -> None:
        """Until an order has come so far, or it has failed; 0: none."""
        with self._changed:
            self._changed.wait_for(lambda: self._last >= number)


class Arrivals:
    """Of one model. Implements `rlgraph.backends.engines.base.Refresh` for who samples with it; but for `bring`, all is
    done by the thread that does the process's orders, or while that waits."""

    def __init__(self) -> None:
        self.version = 0
        self._arrivals: dict[int, _Arrival] = {}
        """By their numbers, until they are settled."""
        self._waiting: _Arrival | None = None
        self._changed = Condition()

    def begin(self, version: int) -> None:
        """Somebody begins to sample who was told this version with the order: newer ones may have come since."""
        self.version = max(self.version, version)

    @property
    def waits(self) -> bool:
        return self._waiting is not None

    def take(self) -> int:
        with self._changed:
            arrival, self._waiting = self._waiting, None
        assert arrival is not None
        arrival.take()
        arrival.moved.result()
        self.version = arrival.version
        return self.version

    def bring(self, number: int, version: int, receive: Callable[[], Moved]) -> Moved:
        """There are new weights, which can be received from now on: waits until they have been, in another thread."""
        arrival = _Arrival(version, receive)
        with self._changed:
            self._waiting = self._arrivals[number] = arrival
            self._changed.notify_all()
        return arrival.moved.result()

    def settle(self, number: int) -> None:
        """New weights are here when this is over: nobody may have taken them."""
        with self._changed:
            self._changed.wait_for(lambda: number in self._arrivals)
            arrival = self._arrivals.pop(number)
            waits = self._waiting is arrival
        if waits:
            self.take()
