"""Removes work whose result is constant, already computed or unused. Class: exact.

It runs four rewrites, each in its own file, in an order in which each benefits from those before.
"""

from __future__ import annotations

from rlgraph.ir.graph import Program
from rlgraph.passes.rewrites.common import common
from rlgraph.passes.rewrites.dead import dead
from rlgraph.passes.rewrites.fold import fold
from rlgraph.passes.rewrites.reuse import reuse


def simplify(program: Program) -> Program:
    """Fold constants, reuse the sampler's log-probabilities, merge common subexpressions and remove unused values."""
    return dead(common(reuse(fold(program))))
