"""What a run is between two steps, so that another process can go on with it.

Beside the values of things that live across steps these are the models. Nothing else is left of a step: random numbers
are a function of the seed, the node, the step and the row, and steps that had begun before their turn begin again with
the weights that they began with, which are kept as long as a step may sample with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlgraph.engines.base import State


@dataclass(frozen=True)
class SavedModel:
    """A model whose weights have changed since they were loaded."""

    updates: int
    """Optimizer steps that it took."""
    changed: int
    """The last step that changed its weights."""
    version: int
    """Of the weights."""
    weights: State
    """By the names of the tensors in the Hugging Face model; of a model with adapters these, and its head."""
    moments: State
    """What the optimizer keeps: `KIND:NAME`, of the kinds that it has (`exp_avg`, `exp_avg_sq`, `step`), and `master`
    for the wide copy of a narrow parameter."""
    past: Mapping[int, State]
    """Weights before these that a step to come may sample with, by version."""
