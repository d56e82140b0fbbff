"""New weights that come to a process, also while it samples: then they are taken between two tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from rlgraph.exchange.exchange import Moved


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


class Arrivals:
    """Of one model. Implements `rlgraph.engines.base.Refresh` for who samples with it."""

    def __init__(self) -> None:
        self.version = 0
        self._newer: int | None = None
        """What came since an order said which version is there."""
        self._sampling = False
        self._arrival: _Arrival | None = None
        self._lock = Lock()

    # For who samples

    @property
    def waits(self) -> bool:
        return self._arrival is not None

    def take(self) -> int:
        arrival, self._arrival = self._arrival, None
        assert arrival is not None
        arrival.take()
        arrival.moved.result()
        self.version = arrival.version
        return self.version

    @contextmanager
    def sampling(self, version: int) -> Iterator[None]:
        """An order is done whose weights were of this version when it was given: those that have come since are
        newer."""
        with self._lock:
            self.version = version if self._newer is None else self._newer
            self._sampling, self._newer = True, None
        try:
            yield
        finally:
            with self._lock:
                self._sampling, self._newer = False, None
                if self._arrival is not None:
                    self._receive(self._arrival)
                    self._arrival = None

    # For who brings them

    def bring(self, version: int, receive: Callable[[], Moved]) -> Moved:
        """Has new weights received: by who samples, before the next token, and otherwise at once."""
        arrival = _Arrival(version, receive)
        with self._lock:
            if self._sampling:
                self._arrival = arrival
            else:
                self._receive(arrival)
        return arrival.moved.result()

    def received(self) -> None:
        """Weights have come between two orders: the next one says which."""
        with self._lock:
            self._newer = None

    def _receive(self, arrival: _Arrival) -> None:
        arrival.take()
        self._newer = arrival.version
