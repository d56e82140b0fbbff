"""What a search knows so far: the best plan, and what no plan can beat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlgraph.placement.search.option import Option
from rlgraph.placement.search.problem import Blocks


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan of a search."""

    blocks: Blocks
    devices: tuple[int, ...]
    """Of each block."""
    options: tuple[Option, ...]
    """For each component."""
    seconds: float
    value: float
    """Seconds, or dollars, of a step."""
    bound: float
    """No plan has a smaller value."""
    looked: int
    """Allocations and ranges that were looked at."""

    @property
    def gap(self) -> float:
        """By which share of its value the plan may miss the best one."""
        return max(0.0, 1 - self.bound / self.value) if self.value else 0.0


class Incumbent:
    """The best plan so far, and the bounds of what was dropped."""

    def __init__(self, gap: float) -> None:
        """gap: how far from the best plan is near enough, as a share."""
        self.gap = gap
        self.best: Found | None = None
        self.looked = 0
        self.lowest = math.inf
        """The least bound of what was dropped."""
        self.left = 0.0
        """The least bound of what was not looked at yet."""

    def enough(self) -> float:
        """Bounds from here on are not worth looking at."""
        return math.inf if self.best is None else self.best.value * (1 - self.gap)

    def drop(self, bound: float) -> None:
        """Something with this bound is not looked at."""
        self.lowest = min(self.lowest, bound)

    def keep(
        self, blocks: Blocks, devices: tuple[int, ...], options: Sequence[Option], seconds: float, value: float
    ) -> None:
        """A plan, if it beats the best one."""
        if self.best is None or value < self.best.value:
            self.best = Found(blocks, devices, tuple(options), seconds, value, 0.0, 0)

    def proven(self) -> float:
        """What no plan can beat, as far as it is known."""
        return min(self.lowest, self.left, self.best.value if self.best else math.inf)

    def found(self) -> Found | None:
        """The best plan, with what is proven of it."""
        return self.best and replace(self.best, bound=self.proven(), looked=self.looked)

    def state(self) -> tuple[float | None, float]:
        """Seconds of the best plan so far, and its gap."""
        found = self.found()
        return (found.seconds, found.gap) if found else (None, 1.0)
