"""This module has rows while they are sampled: when each ends, and until when some of them are waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.sim.batching import Ends, ReplicaRows
from rlgraph.backends.sim.fake_rows import FakeRows, no_row_numbers


@dataclass
class SamplingRequest:
    """A request that a group samples."""

    order: NodeRequest
    rows: FakeRows
    began: float
    delays_s: dict[str, float]
    """What newer weights add to its time, in seconds."""


@dataclass(eq=False)
class SamplingRows:
    """Rows while they are sampled, and until when some of them are waited for. All seconds are since they began."""

    copies: Sequence[ReplicaRows]
    part_end: Callable[[Ends], float]
    """Returns when what is waited for has come, by when the rows of each replica end."""
    waits_until: float = 0.0
    waited_until: float = 0.0
    """The moment until which it has been waited."""
    delays_s: dict[str, float] = field(default_factory=dict)
    """By how much longer it is waited, because others have come, or new weights."""
    followed: bool = False
    """Whether rows of others begin where its rows have ended."""

    def __post_init__(self) -> None:
        self.ends: Ends = [rows.result_alone.end_times for rows in self.copies]
        self.over = [rows.result_alone.cost.seconds for rows in self.copies]
        """When each replica has ended."""

    def begin_part_wait(self, part: Callable[[Ends], float]) -> None:
        """Wait for the next part."""
        self.part_end = part
        self.waits_until = max(self.waited_until, part(self.ends))
        self.delays_s.clear()

    def reschedule(self, ends: Ends, followed: bool, why: Mapping[str, float]) -> None:
        """Note that the rows end at other times, and why."""
        self.ends, self.over, self.followed = ends, [max(row_ends, default=0.0) for row_ends in ends], followed
        until, total = max(self.waits_until, self.part_end(ends)), sum(why.values())
        for name, weight in why.items() if until > self.waits_until else ():
            added = (until - self.waits_until) * weight / total
            self.delays_s[name] = self.delays_s.get(name, 0.0) + added
        self.waits_until = until

    def note_rows_moved(self, here: Sequence[int], ends: Ends) -> None:
        """Note that some replicas alone go on with the rows that have not ended."""
        self.ends, self.over = ends, [max(ends[replica], default=0.0) for replica in here]

    def idle_seconds(self) -> float:
        """Return the seconds of this wait that a replica has nothing to do, on average: all its rows have ended."""
        if self.followed:
            return 0.0
        # Differences first: the mean of equal numbers need not be that number.
        return fmean(self.waits_until - min(self.waits_until, max(self.waited_until, end)) for end in self.over)


class ReplicaParts:
    """What one replica does of a request that is done in parts."""

    def __init__(self, parts: Sequence[int], made: Sequence[FakeRows], kept: int) -> None:
        """parts: their numbers. made: the rows of each, of which so many belong to each prompt."""
        self.rows = made[0].concat(made[1:]) if made else None
        first, self.places = 0, list[tuple[int, np.ndarray]]()
        """For each part the places of its prompts among all that the replica samples, in the order in which they
        begin."""
        turn = self.rows.prompt_begin_order(kept).argsort() if self.rows else no_row_numbers()
        for part, rows in zip(parts, made, strict=True):
            last = first + rows.row_count // kept
            self.places.append((part, turn[first:last]))
            first = last


class PartEnds:
    """Computes the seconds after which each part of a request has ended, from those after which each row of each
    replica has."""

    def __init__(self, dealt: Sequence[ReplicaParts], kept: int, samples: int) -> None:
        """dealt: what each replica does. Of so many samples of a prompt so many are kept."""
        self.dealt, self.kept, self.samples = dealt, kept, samples
        self._last: tuple[Ends, list[float]] | None = None

    def __call__(self, rows: Ends) -> list[float]:
        # Each part asks for them when the one before it has ended, and most often nothing has changed.
        if self._last is None or self._last[0] is not rows:
            self._last = rows, self._of(rows)
        return self._last[1]

    def _of(self, rows: Ends) -> list[float]:
        ends = [0.0] * sum(len(shard.places) for shard in self.dealt)
        for shard, row_ends in zip(self.dealt, rows, strict=True):
            left = np.asarray(row_ends).reshape(-1, self.samples)[:, : self.kept]
            for part, places in shard.places:
                ends[part] = float(left[places].max(initial=0.0))
        return ends


def last_end(ends: Ends) -> float:
    """Return when the last of all rows ends."""
    return max(max(row_ends, default=0.0) for row_ends in ends)
