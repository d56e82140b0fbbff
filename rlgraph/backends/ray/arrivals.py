"""What arrives at a process while it works: the rows of requests, in order, and new weights, which a sampling process
takes between two tokens.

New weights are announced twice: concurrently with the work of the process, so that a sampling thread can take them
before a token, and among its requests, as a point at which they must have arrived. All ranks of a replica get the same
requests in the same order. So either all of them take new weights before the same token, or all do between the same two
requests.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition

from rlgraph.backends.exchange.exchange import ExchangeCost


@dataclass(frozen=True)
class _Arrival:
    """New weights that can be received."""

    version: int
    receive: Callable[[], ExchangeCost]
    """Takes part in the transfer."""
    moved: Future[ExchangeCost] = field(default_factory=Future)

    def receive_weights(self) -> None:
        try:
            self.moved.set_result(self.receive())
        except BaseException as error:
            self.moved.set_exception(error)


class RequestArrivalTracker:
    """Tracks which requests have arrived, so that a later one, in another thread, can wait for those that it depends
    on: their rows are here, or they have failed."""

    def __init__(self) -> None:
        self._last = 0
        self._changed = Condition()

    def note_arrived(self, number: int) -> None:
        with self._changed:
            self._last = max(self._last, number)
            self._changed.notify_all()

    def wait_until_arrived(self, number: int) -> None:
        """Wait until the request with this number has arrived or failed; 0 means none."""
        with self._changed:
            self._changed.wait_for(lambda: self._last >= number)


class WeightArrivals:
    """The new weights of one model. Implements `rlgraph.backends.engines.base.WeightRefresh` for the engine that
    samples with it. All methods but `announce_weights` are called by the thread that does the process's requests,
    or while it waits."""

    def __init__(self) -> None:
        self.version = 0
        self._arrivals: dict[int, _Arrival] = {}
        """New weights by their numbers, until they are settled."""
        self._waiting: _Arrival | None = None
        self._changed = Condition()

    def begin_sampling(self, version: int) -> None:
        """Begin to sample for a request that was sent with this version; newer weights may have arrived since."""
        self.version = max(self.version, version)

    @property
    def can_take_weights(self) -> bool:
        return self._waiting is not None

    def take_weights(self) -> int:
        with self._changed:
            arrival, self._waiting = self._waiting, None
        assert arrival is not None
        arrival.receive_weights()
        arrival.moved.result()
        self.version = arrival.version
        return self.version

    def announce_weights(self, number: int, version: int, receive: Callable[[], ExchangeCost]) -> ExchangeCost:
        """Announce new weights that can be received from now on, and wait until another thread has received them."""
        arrival = _Arrival(version, receive)
        with self._changed:
            self._waiting = self._arrivals[number] = arrival
            self._changed.notify_all()
        return arrival.moved.result()

    def wait_until_received(self, number: int) -> None:
        """Return when new weights have been received, by this thread if no other has taken them."""
        with self._changed:
            self._changed.wait_for(lambda: number in self._arrivals)
            arrival = self._arrivals.pop(number)
            waits = self._waiting is arrival
        if waits:
            self.take_weights()
