"""The state of a search: the best plan so far, and what no plan can beat."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.fused_pipelines import Pieces
from rlgraph.passes.placement.search.option import Option


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best plan of a search."""

    blocks: Blocks
    devices: tuple[int, ...]
    """The devices of each block."""
    options: tuple[Option, ...]
    """The option of each component."""
    seconds: float
    value: float
    """The seconds, or dollars, of a step."""
    bound: float
    """No plan has a smaller value."""
    ranges_searched: int
    """The number of allocations and ranges that were looked at."""
    is_tight: bool = False
    """Whether one of its pools is fuller than `TIGHT`."""
    problem_index: int = 0
    """The index, among the problems that were searched together, of the one that this is a plan of."""
    pieces: Pieces = ()
    """The trainings that share a pipeline."""
    before_fusing: SearchResult | None = None
    """The best plan in which no trainings share a pipeline, or none with heterogeneous meshes; the bound and the gap
    are then those of such plans alone."""

    @property
    def result_before_fusing(self) -> SearchResult:
        """The best plan before trainings were fused, about which the bound is."""
        return self.before_fusing.result_before_fusing if self.before_fusing else self

    @property
    def gap(self) -> float:
        """The share of its value by which the plan may miss the best one."""
        value = self.result_before_fusing.value
        return max(0.0, 1 - self.bound / value) if value else 0.0


class Incumbent:
    """The best plan so far, and the bounds of what was pruned."""

    def __init__(self, gap: float, spare: float = 0.0, known: SearchResult | None = None, margin: float = 0.0) -> None:
        """gap: how far from the best plan is near enough, as a share. spare: the share of it by which a tight plan has
        to be better than one that is not. known: a plan for another problem that has to be beaten, by a share `margin`
        of its value."""
        self.gap, self.spare = gap, spare
        self.known, self.margin = known, margin
        self.best = known
        self.ranges_searched = 0
        self.least_pruned_bound = math.inf
        """The least bound of what was pruned."""
        self.least_open_bound = 0.0
        """The least bound of what is still open."""
        self.least_postponed_bound = math.inf
        """The least bound of allocations of which not all choices were tried."""

    def good_enough_bound(self) -> float:
        """Return the bound from which on nothing is worth looking at."""
        if self.best is None:
            return math.inf
        if self.best is self.known:
            return self.best.value * (1 - max(self.gap, self.margin))
        enough = self.best.value * (1 - self.gap)
        # A plan that is not tight may be better although it takes longer.
        return enough / (1 - self.spare) if self.best.is_tight else enough

    def note_pruned(self, bound: float) -> None:
        """Record that something with this bound is pruned."""
        self.least_pruned_bound = min(self.least_pruned_bound, bound)

    def keep_if_better(self, found: SearchResult) -> None:
        """Keep a plan if it beats the best one; the loser of the two is pruned."""
        best = self.best
        if best is None:
            self.best = found
        elif self._beats(found, best):
            self.best = found
            self.note_pruned(best.value)
        else:
            self.note_pruned(found.value)

    def _beats(self, plan: SearchResult, best: SearchResult) -> bool:
        if best is self.known:
            return plan.value < best.value * (1 - self.margin)
        if plan.is_tight == best.is_tight:
            return plan.value < best.value
        if plan.is_tight:
            return plan.value < best.value * (1 - self.spare)
        if plan.value < best.value:
            return True
        # What was pruned as near enough to the tight one has to be near enough to this one.
        near = plan.value * (1 - max(self.gap, self.spare)) <= self.least_pruned_bound
        return near and plan.value * (1 - self.spare) <= best.value

    def proven_bound(self) -> float:
        """Return the value that no plan can beat, as far as it is proven."""
        left = min(self.least_open_bound, self.least_postponed_bound)
        return min(self.least_pruned_bound, left, self.best.value if self.best else math.inf)

    def best_with_bound(self) -> SearchResult | None:
        """Return the best plan, with the bound that is proven of it."""
        return self.best and replace(self.best, bound=self.proven_bound(), ranges_searched=self.ranges_searched)

    def value_and_gap(self) -> tuple[float | None, float]:
        """Return what is minimized of the best plan so far, seconds or dollars, and its gap."""
        plan = self.best_with_bound()
        return (plan.value, plan.gap) if plan else (None, 1.0)
