"""Draws random numbers that belong to rows, and not to the batch."""

from __future__ import annotations

import math

import numpy as np
import torch

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.worker.session import Session
from rlgraph.ir.graph import Node
from rlgraph.ir.types import axis_of


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
