"""Orders whose rows a copy samples together: which of them are under way, and in which order they went out."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from rlgraph.backends.distributed.transport import Order
from rlgraph.backends.ray.calls import Copy
from rlgraph.backends.ray.processes import Processes
from rlgraph.backends.ray.remote import Address


class Together:
    """Of all copies."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._going: Counter[Address] = Counter()
        """By who speaks for a copy, how many orders it has whose rows are sampled together."""
        self._last: dict[Address, int] = {}
        """The number of the one that went out last."""
        self._lock = threading.Lock()

    def alone(self, copies: Sequence[Copy]) -> bool:
        """Whether each of these has one such order at most."""
        with self._lock:
            return all(self._going[speaker] <= 1 for speaker, _ in copies)

    @contextmanager
    def order(self, order: Order, copies: Sequence[Copy]) -> Iterator[Place]:
        """An order to copies of a group that has the turn for it, until it is over."""
        sending = self._processes.sending(order.group.name)
        if order.key is None:
            yield Place(self, sending, alone=True)
            return
        place = Place(self, sending)
        try:
            yield place
        finally:
            with self._lock:
                self._going.subtract(speaker for speaker, _ in copies if speaker in place.numbers)


@dataclass
class Place:
    """Of an order among those that are sampled together."""

    together: Together
    sending: AbstractContextManager[object]
    """Held while it is sent."""
    alone: bool = False
    """Its rows are sampled by who does it, and for it alone."""

    def __post_init__(self) -> None:
        self.numbers: dict[Address, int] = {}
        """The copies that it was sent to, by who speaks."""

    def after(self, copy: Copy) -> int | None:
        """The order that it joins at a copy; 0: there is none; None: it is alone."""
        if self.alone:
            return None
        return self.together._last[copy[0]] if self.together._going[copy[0]] else 0

    def given(self, copy: Copy, number: int) -> None:
        """It was sent to a copy under this number."""
        with self.together._lock:
            self.numbers[copy[0]] = number
            self.together._going[copy[0]] += 1
            self.together._last[copy[0]] = number
