"""How far the engine that trains is from the one that sampled: log-probabilities of the same tokens at the same version
of the weights, of which a run has both without another pass over a model.

With p of the sampler and q of the trainer, and d = log q - log p of a token that was sampled,

    mismatch/kl   mean of exp(d) - 1 - d over the tokens (k3 of Schulman 2020), in nats a token
    mismatch/max  max of |d|

Both are 0 to rounding where one engine does both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from rlgraph.backends.step import Step

KL, MAX = "mismatch/kl", "mismatch/max"
"""The names of the metrics."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What was compared in a piece of work."""

    model: str
    tokens: int
    kl_sum: float
    """The sum of exp(d) - 1 - d over the tokens, in nats."""
    largest: float
    """The largest |d|, in nats."""


class Mismatches:
    """What was compared in the steps that are not over yet."""

    def __init__(self) -> None:
        self._by_step: dict[int, list[Mismatch]] = {}
        self._lock = Lock()

    def add(self, step: Step, compared: Iterable[Mismatch]) -> None:
        """Add what was compared in a piece of work of a step."""
        with self._lock:
            for one in compared:
                self._by_step.setdefault(step.number, []).append(one)

    def clear(self) -> None:
        """Forget everything: no step in flight will be over."""
        with self._lock:
            self._by_step.clear()

    def pop_metrics(self, step: Step) -> dict[str, float]:
        """Return the metrics of a step that is over; none where nothing could be compared."""
        with self._lock:
            compared = self._by_step.pop(step.number, [])
        tokens = sum(one.tokens for one in compared)
        if not tokens:
            return {}
        return {KL: sum(one.kl_sum for one in compared) / tokens, MAX: max(one.largest for one in compared)}
