"""Warns, once in a run, where the engine that trains and the one that sampled do not agree on the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlgraph.backends.mismatch import KL, MAX
from rlgraph.errors import NO_SPAN, Diagnostic

if TYPE_CHECKING:
    from rlgraph.backends.steps import StepResult

BOUND = 0.01
"""Nats a token. Two engines in bfloat16 are ten to a hundred times below it; a model whose weights arrived wrong, or
whose experts are chosen otherwise, is above it."""


class MismatchWarning:
    """Reads finished steps, and says the first whose `mismatch/kl` is past the bound."""

    def __init__(self, show_note: Callable[[str], None]) -> None:
        self._show_note = show_note
        self._said = False

    def step_done(self, step: StepResult) -> None:
        """Look at a finished step."""
        kl = step.extra.get(KL, 0.0)
        # What is not a number is past any bound.
        if self._said or kl <= BOUND:
            return
        self._said = True
        message = (
            f"in step {step.number} sampler and trainer give the same tokens other probabilities at the same weights: "
            f"`{KL}` is {kl:.2g}, above {BOUND:g}, and one token is off by {step.extra[MAX]:.2g} nats"
        )
        hint = (
            "weigh by the ratio of both, as `tis.rlf` does, or sample and train in a dtype with more digits; "
            "`rlgraph explain W0907` says more"
        )
        self._show_note(Diagnostic("W0907", message, NO_SPAN, hint).render())
