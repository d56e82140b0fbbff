"""Says where lengths were drawn of which only their mean and their cut are told."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.errors import NO_SPAN, Diagnostic
from rlgraph.passes.cost.lengths import TAIL
from rlgraph.passes.cost.workload import Workload

ASSUMED_TAIL = "W0967"


def assumed_tail_warnings(workload: Workload) -> Iterator[Diagnostic]:
    """Yield a warning for each kind of lengths whose tail nobody told."""
    told = {
        "prompts": workload.prompt,
        "answers": workload.response,
        "numbers of turns": workload.turns,
        "seconds of environments": workload.environment_s,
        "observations": workload.observation,
    }
    for what, lengths in told.items():
        if lengths is not None and lengths.tail_is_assumed:
            yield Diagnostic(
                ASSUMED_TAIL,
                f"nobody says how {what} of `{lengths.text}` are spread: they are drawn from a log-normal "
                f"distribution of which 1 of 100 is {TAIL:g} times the median, {lengths.fraction_cut:.0%} of them cut",
                NO_SPAN,
                "give the lengths of a run with `--lengths`, or a percentile, as in `mean=1060, p99=4096`",
            )
