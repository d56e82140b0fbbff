"""Says where a plan does not know how many tokens are kept in each place."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.errors import NO_SPAN, Diagnostic
from rlgraph.ir.graph import Program
from rlgraph.ops.nodes import attribute_value
from rlgraph.passes.compilation.assumed_episodes import UNUSED_OF_STEPS
from rlgraph.passes.cost.kept_tokens import ASSUMED_TOKENS, TOKEN_BYTES, keeps_tokens
from rlgraph.passes.cost.tasks import main_phase
from rlgraph.passes.cost.workload import Workload

ASSUMED_KEPT = "W0519"


def assumed_kept_token_warnings(program: Program, workload: Workload) -> Iterator[Diagnostic]:
    """Yield a warning for each node that keeps tokens of which nothing bounds how many, where nobody told; and one for
    what is told where there is no such node."""
    unbounded = [
        node for node in main_phase(program).graph.walk() if keeps_tokens(node) and not attribute_value(node, "top_k")
    ]
    if workload.kept_tokens is not None:
        if not unbounded:
            message = "no `likeliest` or `support=keep` is without `top_k` in a step: `--kept-tokens` tells of nothing"
            yield Diagnostic(UNUSED_OF_STEPS, message, NO_SPAN, "leave it out: `top_k` says how many are kept")
        return
    for node in unbounded:
        cut = " and ".join(f"`{name}`" for name in ("top_p", "min_p") if attribute_value(node, name) not in (0, 1))
        yield Diagnostic(
            ASSUMED_KEPT,
            f"how many tokens {cut} keeps in a place of `{node.name.removesuffix('.sum')}` is not known before a "
            f"run: {ASSUMED_TOKENS} are assumed, of {TOKEN_BYTES} bytes each",
            node.span,
            f"bound them, as in `top_k={ASSUMED_TOKENS}`, or say how many, as in `--kept-tokens 600`",
        )
