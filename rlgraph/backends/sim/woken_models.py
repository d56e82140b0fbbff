"""Remembers which off-loaded models were woken by weights that came for them, until they work: their work takes the
seconds of that."""

from __future__ import annotations

import threading

from rlgraph.backends.distributed.offload import OffloadChange


class WokenByWeights:
    """The models that have new weights, and have not worked since they were off-loaded."""

    def __init__(self) -> None:
        self._replicas: set[tuple[str, str, int]] = set()
        self._lock = threading.Lock()

    def add(self, change: OffloadChange) -> None:
        """Remember what a transfer of weights wakes, and forget what it off-loads."""
        with self._lock:
            self._replicas -= {(bed.model, bed.group.name, bed.copy) for bed, _ in change.sleep}
            self._replicas |= {(bed.model, bed.group.name, bed.copy) for bed in change.wake}

    def take(self, model: str, group: str, copy: int | None) -> bool:
        """Return whether a replica of a group, or any of them, was woken since it last worked, and forget it."""
        with self._lock:
            woken = {
                replica for replica in self._replicas if replica[:2] == (model, group) and copy in (None, replica[2])
            }
            self._replicas -= woken
        return bool(woken)
