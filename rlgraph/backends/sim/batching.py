"""This module simulates requests whose rows groups sample together: one that comes makes those before it take longer,
and so do new weights that come to all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlgraph.backends.turns import DeviceSet
from rlgraph.passes.cost.sampled import ContinuousBatch, SamplingResult

Ends = Sequence[Sequence[float]]
"""For each replica of a group the seconds after which each of its rows has ended, since its request began to be
sampled."""


@dataclass(frozen=True, slots=True)
class ReplicaRows:
    """The rows that one replica samples for a request."""

    alone: SamplingResult
    """What they take, if there are no others."""
    prompts: Sequence[float]
    answers: Sequence[float]
    """Tokens of each row."""


@dataclass(eq=False)
class BatchedRequest:
    """A request that is sampled with others, or could be."""

    began: float
    rows: Sequence[ReplicaRows]
    """The rows of each replica."""
    moved: Callable[[Ends, bool, Mapping[str, float]], None]
    """Is told when its rows end, where that changes, whether others have come after it, and the reasons, each with its
    weight."""


@dataclass
class _Session:
    """Requests to the same devices, each of which began before the one before it was over."""

    members: list[BatchedRequest] = field(default_factory=list)
    copies: list[ContinuousBatch] = field(default_factory=list)
    calls: dict[BatchedRequest, int] = field(default_factory=dict)

    def add(self, member: BatchedRequest) -> None:
        """Let the rows of a member join those of its replicas."""
        for copy, rows in zip(self.copies, member.rows, strict=True):
            if rows.alone.pace is not None:
                self.calls[member] = copy.join(member.began, rows.alone.pace, rows.answers)

    def follow(self) -> bool:
        """Follow the rows of all requests from now on. Returns whether that can be done."""
        if any(rows.alone.pace is None for member in self.members for rows in member.rows):
            return False
        if not self.copies:
            self.copies = [ContinuousBatch() for _ in self.members[0].rows]
        for member in self.members:
            if member not in self.calls:
                self.add(member)
        return True

    def tell_ends(self, why: Mapping[str, float]) -> None:
        """Tell all members when their rows end."""
        ends = [copy.ends() for copy in self.copies]
        for member in self.members:
            call = self.calls[member]
            after = member is not self.members[-1]
            member.moved([[end - member.began for end in row_ends[call]] for row_ends in ends], after, why)


class SharedBatches:
    """The sessions on all devices."""

    def __init__(self) -> None:
        self._sessions: dict[DeviceSet, _Session] = {}

    @contextmanager
    def sampled(self, seats: DeviceSet, member: BatchedRequest) -> Iterator[None]:
        """Sample a request on these devices in the context, with those that are sampled there."""
        session = self._sessions.setdefault(seats, _Session())
        session.members.append(member)
        if (len(session.members) > 1 or session.copies) and session.follow():
            session.tell_ends({"sampling": 1.0})
        try:
            yield
        finally:
            session.members.remove(member)
            if not session.members:
                del self._sessions[seats]

    def unfinished_rows(self, seats: DeviceSet, now: float) -> list[float] | None:
        """Return for each row that is sampled on these devices at a moment the tokens that it has, with its prompt;
        None: this is not known."""
        session = self._sessions.get(seats)
        if session is None or not session.follow():
            return None
        rows = {call: member.rows for member, call in session.calls.items()}
        return [
            rows_of_call.prompts[row] + rows_of_call.answers[row] - left
            for number, copy in enumerate(session.copies)
            for call, row, left in copy.unfinished_rows(now)
            for rows_of_call in [rows[call][number]]
        ]

    def pause_sampling(self, seats: DeviceSet, now: float, why: Mapping[str, float]) -> None:
        """Sample nothing there for so many seconds. Only where `unfinished_rows` returns rows."""
        session = self._sessions[seats]
        for copy in session.copies:
            copy.pause(now, sum(why.values()))
        session.tell_ends(why)
