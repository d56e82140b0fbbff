"""What each piece of a plan's work takes: the one place where search, simulator and explanations ask."""

from __future__ import annotations

from dataclasses import dataclass

from rlgraph.cost.lengths import Lengths
from rlgraph.cost.work import Tokens


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one table that a node works on."""

    rows: float
    prompt: Lengths
    response: Lengths
    """Of what carries loss: sampled, or an encoded answer."""
    samples: int = 1
    """Rows for each prompt, where the node samples them."""

    def tokens(self) -> Tokens:
        """What a model reads of them."""
        length = self.prompt.mean + self.response.mean
        spread = self.prompt.square + 2 * self.prompt.mean * self.response.mean + self.response.square
        longest = self.prompt.longest + self.response.longest
        return Tokens(self.rows, self.rows * length, self.rows * spread, self.rows * self.response.mean, longest)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds, and what they go to."""

    compute: float = 0.0
    memory: float = 0.0
    """Waiting for the device's own memory."""
    communication: float = 0.0
    bubble: float = 0.0
    """Stages of a pipeline that wait for each other."""
    overhead: float = 0.0
    """Calls, launches, what is done for each row."""

    @property
    def seconds(self) -> float:
        return self.compute + self.memory + self.communication + self.bubble + self.overhead
