"""Requests whose rows a replica samples in one batch: which are in flight, and in which order they were sent."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.ray.calls import Copy
from rlgraph.backends.ray.processes import Processes
from rlgraph.backends.ray.row_refs import Address


class SharedBatches:
    """The requests of all replicas that are sampled together."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._going: Counter[Address] = Counter()
        """How many such requests the leader of each replica has in flight."""
        self._last: dict[Address, int] = {}
        """The number of the request that was sent last to each leader."""
        self._lock = threading.Lock()

    def have_at_most_one_request(self, copies: Sequence[Copy]) -> bool:
        """Return whether each of these replicas has at most one such request."""
        with self._lock:
            return all(self._going[speaker] <= 1 for speaker, _ in copies)

    @contextmanager
    def queue_request(self, order: NodeRequest, copies: Sequence[Copy]) -> Iterator[BatchPlace]:
        """Yield the place of a request to replicas of a group that has the turn for it, until it ends."""
        sending = self._processes.call_lock(order.group.name)
        if order.weights_key is None:
            yield BatchPlace(self, sending, alone=True)
            return
        place = BatchPlace(self, sending)
        try:
            yield place
        finally:
            with self._lock:
                self._going.subtract(speaker for speaker, _ in copies if speaker in place.numbers)


@dataclass
class BatchPlace:
    """The place of a request among those that are sampled together."""

    shared_batches: SharedBatches
    call_lock: AbstractContextManager[object]
    """Held while it is sent."""
    alone: bool = False
    """Whether its rows are sampled by its own thread, with no others."""

    def __post_init__(self) -> None:
        self.numbers: dict[Address, int] = {}
        """Its number at each replica that it was sent to, by leader."""

    def joined_request_number(self, copy: Copy) -> int | None:
        """Return the number of the request that it joins at a replica: 0 if there is none, None if it is alone."""
        if self.alone:
            return None
        return self.shared_batches._last[copy[0]] if self.shared_batches._going[copy[0]] else 0

    def note_sent(self, copy: Copy, number: int) -> None:
        """Record that it was sent to a replica under this number."""
        with self.shared_batches._lock:
            self.numbers[copy[0]] = number
            self.shared_batches._going[copy[0]] += 1
            self.shared_batches._last[copy[0]] = number
