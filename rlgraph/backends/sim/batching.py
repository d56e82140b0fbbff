"""This module simulates requests whose rows groups sample together: one that comes makes those before it take longer,
and so do new weights that come to all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlgraph.backends.device_queues import DeviceSet
from rlgraph.passes.cost.sampling import ContinuousBatch, SamplingResult

Ends = Sequence[Sequence[float]]
"""For each replica of a group the seconds after which each of its rows has ended, since its request began to be
sampled."""


@dataclass(frozen=True, slots=True)
class ReplicaRows:
    """The rows that one replica samples for a request."""

    result_alone: SamplingResult
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
    on_ends_changed: Callable[[Ends, bool, Mapping[str, float]], None]
    """Is told when its rows end, where that changes, whether others have come after it, and the reasons, each with its
    weight."""


@dataclass
class _Session:
    """Requests to the same devices, each of which began before the one before it was over."""

    members: list[BatchedRequest] = field(default_factory=list)
    copies: list[ContinuousBatch] = field(default_factory=list)
    calls: dict[BatchedRequest, int] = field(default_factory=dict)

    def add_request(self, member: BatchedRequest) -> None:
        """Let the rows of a member join those of its replicas."""
        for copy, rows in zip(self.copies, member.rows, strict=True):
            if rows.result_alone.pace is not None:
                self.calls[member] = copy.add_call(member.began, rows.result_alone.pace, rows.answers)

    def start_tracking(self) -> bool:
        """Follow the rows of all requests from now on. Returns whether that can be done."""
        if any(rows.result_alone.pace is None for member in self.members for rows in member.rows):
            return False
        if not self.copies:
            self.copies = [ContinuousBatch() for _ in self.members[0].rows]
        for member in self.members:
            if member not in self.calls:
                self.add_request(member)
        return True

    def notify_end_times(self, why: Mapping[str, float]) -> None:
        """Tell all members when their rows end."""
        ends = [copy.row_end_times() for copy in self.copies]
        for member in self.members:
            call = self.calls[member]
            after = member is not self.members[-1]
            member.on_ends_changed([[end - member.began for end in row_ends[call]] for row_ends in ends], after, why)


class SharedBatches:
    """The sessions on all devices."""

    def __init__(self) -> None:
        self._sessions: dict[DeviceSet, _Session] = {}

    @contextmanager
    def sample_in_batch(self, seats: DeviceSet, member: BatchedRequest) -> Iterator[None]:
        """Sample a request on these devices in the context, with those that are sampled there."""
        session = self._sessions.setdefault(seats, _Session())
        session.members.append(member)
        if (len(session.members) > 1 or session.copies) and session.start_tracking():
            session.notify_end_times({"sampling": 1.0})
        try:
            yield
        finally:
            session.members.remove(member)
            if not session.members:
                del self._sessions[seats]

    def unfinished_row_tokens(self, seats: DeviceSet, now: float) -> list[float] | None:
        """Return for each row that is sampled on these devices at a moment the tokens that it has, with its prompt;
        None: this is not known."""
        session = self._sessions.get(seats)
        if session is None or not session.start_tracking():
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
            copy.pause_sampling(now, sum(why.values()))
        session.notify_end_times(why)
