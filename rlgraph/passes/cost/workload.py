"""Says what the program cannot: how long texts are, and how many rows a filter keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from rlgraph.passes.cost.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Workload:
    """What the program cannot say: how long texts are, and how many rows a filter keeps."""

    prompt: Lengths = Lengths.lognormal(mean=256, p99=1024)
    response: Lengths | None = None
    """The lengths of responses; None: `default_answer_lengths`, for the limit of the program."""
    kept: float = 1.0
    """The share of the rows that `keep` keeps."""
    alike: float = 0.0
    """How much the lengths of the answers to one prompt correlate, from 0 to 1: rank correlation, as normal scores."""
    turns: Lengths | None = None
    """How often a model acts in an episode; None: as often as the program lets it."""
    environment_s: Lengths | None = None
    """Seconds that an environment takes for an answer; None: `HostCosts.function_row`."""
    observation: Lengths | None = None
    """Tokens of an environment's answer; None: few, and none are counted."""
    kept_tokens: float | None = None
    """Tokens that a place keeps on average where nothing bounds them; None: `ASSUMED_TOKENS`."""
    foresight: float = 0.97
    """How much the expected length of a prompt's answers, by which rows may be ordered, correlates with the real
    length, as normal scores. At this value, of the longest fifth, tenth and twentieth of the rows 0.86, 0.83 and 0.80
    are among those expected to be: StreamRL's ranker (arXiv 2504.15930) found 0.87, 0.82 and 0.76 of them."""

    def answer_lengths(self, limit: int) -> Lengths:
        """Return the lengths of what is sampled with at most so many tokens."""
        return (self.response or default_answer_lengths(limit)).capped(limit)

    @property
    def of_episodes(self) -> dict[str, Lengths | None]:
        """What is told of episodes, by the name under which a user tells it."""
        return {
            "turns": self.turns,
            "environment_seconds": self.environment_s,
            "observation_tokens": self.observation,
        }

    @property
    def observed_tokens(self) -> float:
        """The tokens of an environment's answer, on average."""
        return self.observation.mean if self.observation else 0.0

    def turn_counts(self, limit: int) -> Lengths:
        """Return how often a model acts in episodes that let it so many times."""
        return Lengths((float(limit),)) if self.turns is None else self.turns.capped(limit)


LONGEST = 1 << 20
"""The longest context in tokens that models reach today."""


@cache
def default_answer_lengths(limit: int) -> Lengths:
    """Return the lengths of answers of which only the limit is known: log-normal, and 1 of 100 is cut.

    The limit is twice the median up to 256 tokens, and sqrt(limit) / 8 times beyond: 4 times at 1,024, 16 times at
    16,384. docs/reference/clusters.md has the published lengths that this lies between. A limit beyond `LONGEST` has
    the answers of that limit.
    """
    if not limit:
        return Lengths((0.0,))
    limit = min(limit, LONGEST)
    return Lengths.lognormal(p50=limit / max(2.0, math.sqrt(limit) / 8), p99=limit)
