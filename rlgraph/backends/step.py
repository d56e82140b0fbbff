"""This module has the step as a value: whatever belongs to a step carries it, so that steps may overlap."""

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
    """A step of a run: its number, its phase, and the source of its random numbers."""

    number: int
    """The number of the step, counted from 1 over all phases."""
    phase: str
    seed: int = 0
    """The seed of the run: random numbers are a function of it, the node, the step and the row, and of nothing else."""

    attempt: int = 0
    """How many steps of the run failed before it was begun: what they have left behind does not belong to it. No number
    depends on it."""
    batch: int | None = None
    """The batch of a `collect` that takes them as they end: which of those that it has begun in this step. No number
    depends on it."""

    def row_random_numbers(self, name: str, rows: Sequence[object], extra: object = "") -> np.ndarray:
        """Return a random number for each row of the node of this name, uint64."""
        head = f"{self.seed}/{name}/{self.number}/{extra}/".encode()
        raw = b"".join(hashlib.blake2b(head + repr(row).encode(), digest_size=8).digest() for row in rows)
        return np.frombuffer(raw, dtype=np.uint64)

    def picking_rng(self, name: str) -> random.Random:
        """Return a generator that picks rows for the node of this name."""
        return random.Random(f"{self.seed}/{name}/{self.number}")

    def shuffling_rng(self, name: str, epoch: int) -> random.Random:
        """Return a generator that shuffles the rows of a pass of the loop of this name."""
        return random.Random(f"{self.seed}/{self.number}/{name}/{epoch}")
