"""Computes what an optimizer keeps and moves for each weight that is trained.

The optimizer computes in float32, or in the dtype of the weights where that is wider; it keeps wide copies of narrow
weights (mixed precision, arXiv 1710.03740).
"""

from __future__ import annotations

from dataclasses import dataclass

from rlgraph.ops.optimizers import ADAMW, OptimizerSpec

WIDE = 4
"""The bytes of a number in which it computes at least: float32."""


@dataclass(frozen=True, slots=True)
class OptimizerBytesPerWeight:
    """The bytes of an optimizer for each weight."""

    gradient: int
    moments: int
    """All that it keeps from one step to the next, but for the wide copy."""
    master: int
    """The bytes of the wide copy; 0 if the weight is wide itself."""

    @property
    def host_bytes(self) -> int:
        """Return the bytes that the host has where it makes the step: with a copy of wide weights, too."""
        return self.moments + (self.master or self.gradient)

    @property
    def memory_traffic_bytes(self) -> int:
        """Return the bytes that a step reads and writes: it reads the gradient, and changes the moments and the wide
        weight."""
        return self.gradient + 2 * (self.moments + (self.master or self.gradient))


def optimizer_bytes_per_weight(optimizer: OptimizerSpec = ADAMW, item: int = WIDE) -> OptimizerBytesPerWeight:
    """Return the bytes of an optimizer for weights of `item` bytes each."""
    wide = max(WIDE, item)
    return OptimizerBytesPerWeight(wide, optimizer.numbers_per_weight * wide, 0 if item >= WIDE else WIDE)
