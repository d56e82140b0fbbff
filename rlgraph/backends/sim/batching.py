"""Orders whose rows groups sample together, in a simulation: one that comes makes those before it take longer, and so
do new weights that come to all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlgraph.backends.turns import Seats
from rlgraph.passes.cost.sampled import Sampled
from rlgraph.passes.cost.sampled import Together as Copy

Ends = Sequence[Sequence[float]]
"""For each copy of a group the seconds after which each of its rows has ended, since its order began to be sampled."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Those that one copy samples for an order."""

    alone: Sampled
    """What that takes, if there are no others."""
    prompts: Sequence[float]
    answers: Sequence[float]
    """Tokens of each."""


@dataclass(eq=False)
class Member:
    """An order that is sampled with others, or could be."""

    began: float
    rows: Sequence[Rows]
    """Of each copy."""
    moved: Callable[[Ends, bool, Mapping[str, float]], None]
    """Is told when its rows end, where that changes, whether there are others that have come after it, and what the
    reasons are, each with its weight."""


@dataclass
class _Session:
    """Orders to the same devices, each of which was there before the one before it was over."""

    members: list[Member] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    calls: dict[Member, int] = field(default_factory=dict)

    def add(self, member: Member) -> None:
        for copy, rows in zip(self.copies, member.rows, strict=True):
            if rows.alone.pace is not None:
                self.calls[member] = copy.join(member.began, rows.alone.pace, rows.answers)

    def follow(self) -> bool:
        """Follows the rows of all of them from now on; whether that can be."""
        if any(rows.alone.pace is None for each in self.members for rows in each.rows):
            return False
        if not self.copies:
            self.copies = [Copy() for _ in self.members[0].rows]
        for each in self.members:
            if each not in self.calls:
                self.add(each)
        return True

    def tell(self, why: Mapping[str, float]) -> None:
        ends = [copy.ends() for copy in self.copies]
        for member in self.members:
            call = self.calls[member]
            after = member is not self.members[-1]
            member.moved([[end - member.began for end in own[call]] for own in ends], after, why)


class Together:
    """All of them."""

    def __init__(self) -> None:
        self._sessions: dict[Seats, _Session] = {}

    @contextmanager
    def sampled(self, seats: Seats, member: Member) -> Iterator[None]:
        """An order is sampled on these devices, with those that are there."""
        session = self._sessions.setdefault(seats, _Session())
        session.members.append(member)
        if (len(session.members) > 1 or session.copies) and session.follow():
            session.tell({"sampling": 1.0})
        try:
            yield
        finally:
            session.members.remove(member)
            if not session.members:
                del self._sessions[seats]

    def going(self, seats: Seats, now: float) -> list[float] | None:
        """Of the rows that are sampled on these devices at a moment the tokens that each has, with its prompt; None:
        nobody knows."""
        session = self._sessions.get(seats)
        if session is None or not session.follow():
            return None
        rows = {call: member.rows for member, call in session.calls.items()}
        return [
            own.prompts[row] + own.answers[row] - left
            for number, copy in enumerate(session.copies)
            for call, row, left in copy.going(now)
            for own in [rows[call][number]]
        ]

    def pause(self, seats: Seats, now: float, why: Mapping[str, float]) -> None:
        """Nothing is sampled there for so many seconds. Only where `going` tells something."""
        session = self._sessions[seats]
        for copy in session.copies:
            copy.pause(now, sum(why.values()))
        session.tell(why)
