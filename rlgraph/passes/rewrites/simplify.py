"""Removes work whose result is constant, already computed or unused. Class: exact.

It runs four rewrites, each in its own file, in an order in which each benefits from those before.
"""

from __future__ import annotations

from rlgraph.ir.graph import Program
from rlgraph.passes.rewrites.common_subexpressions import merge_common_subexpressions
from rlgraph.passes.rewrites.dead import remove_dead_nodes
from rlgraph.passes.rewrites.fold import fold_constants
from rlgraph.passes.rewrites.reuse_logprobs import reuse_logprobs


def simplify(program: Program) -> Program:
    """Fold constants, reuse the sampler's log-probabilities, merge common subexpressions and remove unused values."""
    return remove_dead_nodes(merge_common_subexpressions(reuse_logprobs(fold_constants(program))))
