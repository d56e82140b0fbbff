"""What a search knows so far: the best plan, and what no plan can beat."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rlgraph.passes.placement.search.fusing import Pieces
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.problem import Blocks


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
    tight: bool = False
    """Whether a pool of it is fuller than `TIGHT`."""
    way: int = 0
    """Of which of the problems that were searched it is a plan."""
    pieces: Pieces = ()
    """Trainings that share a pipeline."""
    before: Found | None = None
    """The best plan in which none do, or none that are split unlike; of such plans alone is the bound, then, and the
    gap."""

    @property
    def searched(self) -> Found:
        """The best of the plans of which the bound is."""
        return self.before.searched if self.before else self

    @property
    def gap(self) -> float:
        """By which share of its value the plan may miss the best one."""
        value = self.searched.value
        return max(0.0, 1 - self.bound / value) if value else 0.0


class Incumbent:
    """The best plan so far, and the bounds of what was dropped."""

    def __init__(self, gap: float, spare: float = 0.0) -> None:
        """gap: how far from the best plan is near enough, as a share. spare: by how much of it a tight plan has to be
        better than one that is not."""
        self.gap, self.spare = gap, spare
        self.best: Found | None = None
        self.looked = 0
        self.lowest = math.inf
        """The least bound of what was dropped."""
        self.left = 0.0
        """The least bound of what was not looked at yet."""

    def enough(self) -> float:
        """Bounds from here on are not worth looking at."""
        if self.best is None:
            return math.inf
        enough = self.best.value * (1 - self.gap)
        # One that is not tight may be better although it takes longer.
        return enough / (1 - self.spare) if self.best.tight else enough

    def drop(self, bound: float) -> None:
        """Something with this bound is not looked at."""
        self.lowest = min(self.lowest, bound)

    def keep(self, found: Found) -> None:
        """A plan, if it beats the best one; the other one is not looked at any more."""
        best = self.best
        if best is None:
            self.best = found
        elif self._beats(found, best):
            self.best = found
            self.drop(best.value)
        else:
            self.drop(found.value)

    def _beats(self, found: Found, best: Found) -> bool:
        if found.tight == best.tight:
            return found.value < best.value
        if found.tight:
            return found.value < best.value * (1 - self.spare)
        if found.value < best.value:
            return True
        # What was dropped as near enough to the tight one has to be so beside this one.
        near = found.value * (1 - max(self.gap, self.spare)) <= self.lowest
        return near and found.value * (1 - self.spare) <= best.value

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
