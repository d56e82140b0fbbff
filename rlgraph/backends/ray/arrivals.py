"""What comes to a process: rows of orders, in their order; and new weights, also while it samples: then they are taken
between two tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Lock

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


class Came:
    """Of which orders the rows are here: who is told a later one by another thread may need them."""

    def __init__(self) -> None:
        self._last = 0
        self._changed = Condition()

    def add(self, number: int) -> None:
        with self._changed:
            self._last = max(self._last, number)
            self._changed.notify_all()

    def wait(self, number: int) -> None:
        """Until the rows of an order are here, or it has failed; 0: of none."""
        with self._changed:
            self._changed.wait_for(lambda: self._last >= number)


class Arrivals:
    """Of one model. Implements `rlgraph.engines.base.Refresh` for who samples with it."""

    def __init__(self) -> None:
        self.version = 0
        self._over = -1
        """The number of the last sampling that is over."""
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
    def sampling(self, number: int, version: int) -> Iterator[None]:
        """An order is done whose weights were of this version when it was given."""
        self.version = version
        try:
            yield
        finally:
            with self._lock:
                self._over = number
                if self._arrival is not None:
                    self._arrival.take()
                    self._arrival = None

    # For who brings them

    def bring(self, number: int, version: int, receive: Callable[[], Moved]) -> Moved:
        """Has new weights received that come to a sampling: before its next token, by who samples, or at once where it
        is over. Where it has not begun they wait for it: the ranks of a copy begin one after the other, and take them
        before the same token."""
        arrival = _Arrival(version, receive)
        with self._lock:
            if number > self._over:
                self._arrival = arrival
            else:
                arrival.take()
        return arrival.moved.result()
