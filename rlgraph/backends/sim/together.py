"""Orders whose rows groups sample together, in a simulation: one that comes makes those before it take longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlgraph.backends.turns import Seats
from rlgraph.cost.sampled import Sampled
from rlgraph.cost.sampled import Together as Copy

Ends = Sequence[Sequence[float]]
"""For each copy of a group the seconds after which each of its rows has ended, since its order began to be sampled."""


@dataclass(eq=False)
class Member:
    """An order that is sampled with others, or could be."""

    began: float
    rows: Sequence[tuple[Sampled, Sequence[float]]]
    """Of each copy: what it takes alone, and the tokens of its rows."""
    moved: Callable[[Ends, bool], None]
    """Is told when its rows end, where others are there, and whether these have come after it."""


@dataclass
class _Session:
    """Orders to the same devices, each of which was there before the one before it was over."""

    members: list[Member] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    calls: dict[Member, int] = field(default_factory=dict)

    def add(self, member: Member) -> None:
        for copy, (alone, answers) in zip(self.copies, member.rows, strict=True):
            if alone.pace is not None:
                self.calls[member] = copy.join(member.began, alone.pace, answers)

    def tell(self) -> None:
        ends = [copy.ends() for copy in self.copies]
        for member in self.members:
            call = self.calls[member]
            after = member is not self.members[-1]
            member.moved([[end - member.began for end in own[call]] for own in ends], after)


class Together:
    """All of them."""

    def __init__(self) -> None:
        self._sessions: dict[Seats, _Session] = {}

    @contextmanager
    def sampled(self, seats: Seats, member: Member) -> Iterator[None]:
        """An order is sampled on these devices, with those that are there."""
        session = self._sessions.setdefault(seats, _Session())
        session.members.append(member)
        known = all(alone.pace is not None for each in session.members for alone, _ in each.rows)
        if len(session.members) > 1 and known:
            if not session.copies:
                session.copies = [Copy() for _ in member.rows]
                for each in session.members[:-1]:
                    session.add(each)
            session.add(member)
            session.tell()
        try:
            yield
        finally:
            session.members.remove(member)
            if not session.members:
                del self._sessions[seats]
