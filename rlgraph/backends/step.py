"""A step as a value: whatever belongs to a step carries it, so that steps need not come one after the other."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Ended = tuple[int, int]
"""A batch of a `collect`: the step that began it, and its number there."""


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    """Counted from 1 over all phases."""
    phase: str
    seed: int = 0
    """Of the run: random numbers are a function of it, the node, the step and the row, and of nothing else."""

    attempt: int = 0
    """How many steps of the run failed before it was begun: what they have left behind is not its own. No number
    depends on it."""
    batch: int | None = None
    """Of a `collect` that takes batches as they end: which of those that it has begun in this step. No number depends
    on it."""

    def row_keys(self, name: str, rows: Sequence[object], extra: object = "") -> np.ndarray:
        """A random number for each row of the node that is called so, uint64."""
        head = f"{self.seed}/{name}/{self.number}/{extra}/".encode()
        raw = b"".join(hashlib.blake2b(head + repr(row).encode(), digest_size=8).digest() for row in rows)
        return np.frombuffer(raw, dtype=np.uint64)

    def sampler(self, name: str) -> random.Random:
        """Picks rows for the node that is called so."""
        return random.Random(f"{self.seed}/{name}/{self.number}")

    def shuffler(self, name: str, epoch: int) -> random.Random:
        """Shuffles the rows of a pass of the loop that is called so."""
        return random.Random(f"{self.seed}/{self.number}/{name}/{epoch}")
