"""Who waits for whom, from what processes say of themselves: for the message of a run that does not get on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlgraph.backends.engines.collectives import Collective
from rlgraph.backends.ray.activity import At
from rlgraph.backends.ray.failures import shown
from rlgraph.backends.ray.remote import Address
from rlgraph.errors import NO_SPAN, Related, counted

_MOST = 8
"""Sentences of a message."""


@dataclass(frozen=True)
class Wait:
    """Of one process for others."""

    who: Address
    what: str
    """In which it waits."""
    peers: tuple[Address, ...]


@dataclass(frozen=True)
class Waits:
    """What is known of processes that wait."""

    found: Mapping[Address, At]
    """What those tell of themselves that answer."""
    silent: Collection[Address]
    """Those that do not."""
    each: tuple[Wait, ...]

    @classmethod
    def of(cls, found: Mapping[Address, At], silent: Collection[Address]) -> Waits:
        called = {shown(who): who for who in (*found, *silent)}
        each: list[Wait] = []
        for who, at in found.items():
            for collective, ranks in at.open():
                if missing := tuple(peer for peer in ranks if peer != who and not _came(peer, collective, found)):
                    each.append(Wait(who, _called(collective, ranks), missing))
            for pending in at.moving:
                if pending.peer in called:
                    each.append(Wait(who, f"the transfer of {pending.about}", (called[pending.peer],)))
        return cls(found, silent, tuple(each))

    def blamed(self, unanswered: Iterable[Address]) -> Address | None:
        """Of those that owe an answer, the one to name: who says nothing at all, else who is waited for and waits for
        nobody, else who does not wait."""
        waiting, wanted = {each.who for each in self.each}, {peer for each in self.each for peer in each.peers}
        ranked = sorted(unanswered, key=lambda who: (who not in self.silent, who in waiting, who not in wanted, who))
        return ranked[0] if ranked else None

    def notes(self, unanswered: Collection[Address]) -> tuple[Related, ...]:
        """What to tell: who waits in what for whom, and of those that wait for nobody what they do."""
        alike: dict[tuple[str, tuple[Address, ...]], list[Address]] = {}
        for each in self.each:
            alike.setdefault((each.what, each.peers), []).append(each.who)
        told = [
            f"{everybody(who)} {'wait' if len(who) > 1 else 'waits'} for {everybody(peers)} in {what}"
            for (what, peers), who in sorted(alike.items(), key=lambda found: found[1])
        ]
        waiting, wanted = {each.who for each in self.each}, {peer for each in self.each for peer in each.peers}
        told += [_does(who, at) for who in sorted({*wanted, *unanswered} - waiting) if (at := self.found.get(who))]
        told += [
            f"{shown(who)} says nothing at all: its process, or its machine, stands still"
            for who in sorted(self.silent)
        ]
        if len(told) > _MOST:
            told[_MOST - 1 :] = [f"and {counted(len(told) - _MOST + 1, 'more sentence')} like these"]
        return tuple(Related(NO_SPAN, each) for each in told)


def everybody(who: Sequence[Address]) -> str:
    """How messages call several processes."""
    groups: dict[str, list[int]] = {}
    for group, rank in who:
        groups.setdefault(group, []).append(rank)
    told = [
        shown((group, ranks[0])) if len(ranks) == 1 else f"ranks {_numbers(ranks)} of {group}"
        for group, ranks in groups.items()
    ]
    return " and ".join(told)


def _numbers(ranks: Sequence[int]) -> str:
    """`0-3, 7`"""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _came(peer: Address, collective: Collective, found: Mapping[Address, At]) -> bool:
    """Whether a process has entered a collective, as far as it says so."""
    return peer in found and found[peer].entered.last.get(collective.group, 0) >= collective.number


def _called(collective: Collective, ranks: Sequence[Address]) -> str:
    size = f", with {counted(collective.elements, 'number')}" if collective.elements else ""
    return f"`{collective.name}`, number {collective.number} of {everybody(ranks)}{size}"


def _does(who: Address, at: At) -> str:
    if not at.work:
        return f"{shown(who)} does nothing: what it was asked for has not come to it, or has gone from it"
    longest = max(at.work, key=lambda work: work.seconds)
    return f"{shown(who)} does {longest.what}, for {longest.seconds:.0f} s, at {longest.place}"
