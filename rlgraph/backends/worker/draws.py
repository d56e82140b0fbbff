"""Draws random numbers that belong to rows, and not to the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.step import Step
from rlgraph.backends.worker.session import Session
from rlgraph.ir.graph import Node
from rlgraph.ir.types import axis_of


def draw(weights: np.ndarray, rows: Sequence[object], count: int, replace: bool, name: str, step: Step) -> np.ndarray:
    """Return the places of rows that are drawn with chances in proportion to their weights, int64. rows: their
    identities, sorted, on which alone the draw depends, with the seed and the step. Without replacement all rows with a
    weight are drawn where there are no more than `count`."""
    if replace:
        ends, rng = weights.cumsum(), step.picking_rng(name)
        at = np.array([rng.random() for _ in range(count)]) * ends[-1]
        # Rounding may lead to the very end.
        places: np.ndarray = np.minimum(np.searchsorted(ends, at, side="right"), int(np.flatnonzero(weights)[-1]))
        return places
    # Efraimidis and Spirakis (2006): the largest u ** (1 / w), in logarithms.
    numbers = (step.row_random_numbers(name, rows) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    with np.errstate(divide="ignore", invalid="ignore"):
        keys = np.where(weights > 0, np.log(numbers) / weights, -np.inf)
    order = np.argsort(-keys, kind="stable")
    return order[: min(count, int((weights > 0).sum()))]


def run_uniform(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return a number in [0, 1) for each row: a function of the row's identity, the step, the run's seed and the place
    in the program, so that no block, plan or interruption changes it."""
    axis = axis_of(node.outputs[0].type)
    assert axis is not None
    bits = frame.step.row_random_numbers(node.attr("key"), frame.rows[axis.key].known_ids)
    # With as many digits as the dtype has: 1 - 2**-53 would be rounded to 1.
    digits = 1 - round(math.log2(torch.finfo(session.dtype).eps))
    numbers = (bits >> np.uint64(64 - digits)).astype(np.float64) * 2.0**-digits
    return NodeOutput({node.outputs[0].name: torch.from_numpy(numbers).to(session.dtype)})
