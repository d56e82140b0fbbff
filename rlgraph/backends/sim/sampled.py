"""Rows while they are sampled: when each ends, and until when somebody waits for some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from rlgraph.backends.distributed.transport import Order
from rlgraph.backends.sim.batching import Ends
from rlgraph.backends.sim.batching import Rows as CopyRows
from rlgraph.backends.sim.fake_rows import Held, none


@dataclass
class AtWork:
    """A group that samples."""

    order: Order
    rows: Held
    began: float
    later: dict[str, float]
    """What newer weights add to its time, in seconds."""


@dataclass(eq=False)
class SampledRows:
    """Rows while they are sampled, and until when somebody waits for some of them. All seconds since they began."""

    copies: Sequence[CopyRows]
    part: Callable[[Ends], float]
    """When what somebody waits for is there, by when the rows of each copy end."""
    until: float = 0.0
    there: float = 0.0
    """Until when somebody has waited."""
    later: dict[str, float] = field(default_factory=dict)
    """By how much longer somebody waits, because others have come, or new weights."""
    followed: bool = False
    """Where its rows have ended there are those of others."""

    def __post_init__(self) -> None:
        self.ends: Ends = [own.alone.ends for own in self.copies]
        self.over = [own.alone.cost.seconds for own in self.copies]
        """When each copy has ended."""

    def begin(self, part: Callable[[Ends], float]) -> None:
        """Somebody waits for the next part."""
        self.part = part
        self.until = max(self.there, part(self.ends))
        self.later.clear()

    def moved(self, ends: Ends, followed: bool, why: Mapping[str, float]) -> None:
        self.ends, self.over, self.followed = ends, [max(own, default=0.0) for own in ends], followed
        until, whole = max(self.until, self.part(ends)), sum(why.values())
        for name, share_of_it in why.items() if until > self.until else ():
            more = (until - self.until) * share_of_it / whole
            self.later[name] = self.later.get(name, 0.0) + more
        self.until = until

    def move(self, here: Sequence[int], ends: Ends) -> None:
        """Some copies alone go on with the rows that have not ended."""
        self.ends, self.over = ends, [max(ends[copy], default=0.0) for copy in here]

    def idle(self) -> float:
        """Seconds of this wait that a copy has nothing to do, on average: all rows that it has have ended."""
        if self.followed:
            return 0.0
        # Differences first: the mean of equal numbers need not be that number.
        return fmean(self.until - min(self.until, max(self.there, end)) for end in self.over)


class Dealt:
    """What one copy does of an order that is done in parts."""

    def __init__(self, parts: Sequence[int], made: Sequence[Held], kept: int) -> None:
        """parts: their numbers. made: the rows of each, of which so many belong to each prompt."""
        self.rows = made[0].join(made[1:]) if made else None
        first, self.places = 0, list[tuple[int, np.ndarray]]()
        """For each part the places of its prompts among all that it samples, in the order in which these begin."""
        turn = self.rows.in_turn(kept).argsort() if self.rows else none()
        for part, own in zip(parts, made, strict=True):
            last = first + own.rows // kept
            self.places.append((part, turn[first:last]))
            first = last


class PartEnds:
    """Seconds after which each part of an order has ended, of those after which each row of each copy has."""

    def __init__(self, dealt: Sequence[Dealt], kept: int, samples: int) -> None:
        """dealt: to each copy. Of so many samples of a prompt so many are kept."""
        self.dealt, self.kept, self.samples = dealt, kept, samples
        self._last: tuple[Ends, list[float]] | None = None

    def __call__(self, rows: Ends) -> list[float]:
        # Each part asks for them when the one before it has ended, and most often nothing has changed.
        if self._last is None or self._last[0] is not rows:
            self._last = rows, self._of(rows)
        return self._last[1]

    def _of(self, rows: Ends) -> list[float]:
        ends = [0.0] * sum(len(own.places) for own in self.dealt)
        for own, found in zip(self.dealt, rows, strict=True):
            left = np.asarray(found).reshape(-1, self.samples)[:, : self.kept]
            for part, places in own.places:
                ends[part] = float(left[places].max(initial=0.0))
        return ends


def last_of(ends: Ends) -> float:
    """When the last of all rows ends."""
    return max(max(own, default=0.0) for own in ends)
