"""What an optimizer keeps and moves for each weight that is trained.

It computes in float32, or in the weights' own dtype where that is wider; of narrow weights it keeps wide copies (mixed
precision, arXiv 1710.03740).
"""

from __future__ import annotations

from dataclasses import dataclass

from rlgraph.ops.optimizers import ADAMW, Optimizer

WIDE = 4
"""Bytes of a number that it computes with at least: float32."""


@dataclass(frozen=True, slots=True)
class OptimizerBytes:
    """For each weight."""

    gradient: int
    moments: int
    """All that it keeps from one step to the next."""
    master: int
    """Of the wide copy; 0 of a weight that is wide itself."""

    @property
    def moved(self) -> int:
        """That a step reads and writes: it reads the gradient, and changes the moments and the wide weight."""
        return self.gradient + 2 * (self.moments + (self.master or self.gradient))


def optimizer_bytes(optimizer: Optimizer = ADAMW, item: int = WIDE) -> OptimizerBytes:
    """Of weights with so many bytes each."""
    wide = max(WIDE, item)
    return OptimizerBytes(wide, optimizer.kept * wide, 0 if item >= WIDE else WIDE)
