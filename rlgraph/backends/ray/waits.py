"""Works out which process waits for which, from their own reports, for the message of a run that does not progress."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlgraph.backends.engines.collectives import Collective
from rlgraph.backends.ray.activity import ActivityReport
from rlgraph.backends.ray.failures import process_name
from rlgraph.backends.ray.row_refs import Address
from rlgraph.errors import NO_SPAN, Related, count_phrase

_MOST = 8
"""The most sentences of a message."""


@dataclass(frozen=True)
class WaitingProcess:
    """A process that waits for others."""

    who: Address
    what: str
    """The collective or transfer in which it waits."""
    peers: tuple[Address, ...]


@dataclass(frozen=True)
class WaitGraph:
    """Says which processes wait for which others, by their own reports."""

    reports: Mapping[Address, ActivityReport]
    """The reports of those that answer."""
    silent: Collection[Address]
    """The processes that do not answer."""
    waits: tuple[WaitingProcess, ...]

    @classmethod
    def from_reports(cls, found: Mapping[Address, ActivityReport], silent: Collection[Address]) -> WaitGraph:
        called = {process_name(who): who for who in (*found, *silent)}
        waits: list[WaitingProcess] = []
        for who, at in found.items():
            for collective, ranks in at.open_collectives():
                if missing := tuple(peer for peer in ranks if peer != who and not _came(peer, collective, found)):
                    waits.append(WaitingProcess(who, _called(collective, ranks), missing))
            for pending in at.pending_messages:
                if pending.peer in called:
                    waits.append(WaitingProcess(who, f"the transfer of {pending.description}", (called[pending.peer],)))
        return cls(found, silent, tuple(waits))

    def process_to_blame(self, unanswered: Iterable[Address]) -> Address | None:
        """Return which process to name of those that owe an answer: one that does not respond at all, else one that
        others wait for and that waits for nobody, else one that does not wait."""
        waiting, wanted = {wait.who for wait in self.waits}, {peer for wait in self.waits for peer in wait.peers}
        ranked = sorted(unanswered, key=lambda who: (who not in self.silent, who in waiting, who not in wanted, who))
        return ranked[0] if ranked else None

    def explain_waits(self, unanswered: Collection[Address]) -> tuple[Related, ...]:
        """Return sentences that say who waits for whom and in what, and what those do that wait for nobody."""
        alike: dict[tuple[str, tuple[Address, ...]], list[Address]] = {}
        for wait in self.waits:
            alike.setdefault((wait.what, wait.peers), []).append(wait.who)
        sentences = [
            f"{processes_name(who)} {'wait' if len(who) > 1 else 'waits'} for {processes_name(peers)} in {what}"
            for (what, peers), who in sorted(alike.items(), key=lambda item: item[1])
        ]
        waiting, wanted = {wait.who for wait in self.waits}, {peer for wait in self.waits for peer in wait.peers}
        sentences += [
            _does(who, at) for who in sorted({*wanted, *unanswered} - waiting) if (at := self.reports.get(who))
        ]
        sentences += [
            f"{process_name(who)} says nothing at all: its process, or its machine, stands still"
            for who in sorted(self.silent)
        ]
        if len(sentences) > _MOST:
            sentences[_MOST - 1 :] = [f"and {count_phrase(len(sentences) - _MOST + 1, 'more sentence')} like these"]
        return tuple(Related(NO_SPAN, sentence) for sentence in sentences)


def processes_name(who: Sequence[Address]) -> str:
    """Return the name of several processes in messages."""
    groups: dict[str, list[int]] = {}
    for group, rank in who:
        groups.setdefault(group, []).append(rank)
    names = [
        process_name((group, ranks[0])) if len(ranks) == 1 else f"ranks {_numbers(ranks)} of {group}"
        for group, ranks in groups.items()
    ]
    return " and ".join(names)


def _numbers(ranks: Sequence[int]) -> str:
    """Return ranks as text: `0-3, 7`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _came(peer: Address, collective: Collective, reports: Mapping[Address, ActivityReport]) -> bool:
    """Return whether a process has entered a collective, as far as it reports."""
    return peer in reports and reports[peer].collectives.last_numbers.get(collective.group, 0) >= collective.number


def _called(collective: Collective, ranks: Sequence[Address]) -> str:
    size = f", with {count_phrase(collective.elements, 'number')}" if collective.elements else ""
    return f"`{collective.name}`, number {collective.number} of {processes_name(ranks)}{size}"


def _does(who: Address, at: ActivityReport) -> str:
    if not at.thread_work:
        return f"{process_name(who)} does nothing: what it was asked for has not come to it, or has gone from it"
    longest = max(at.thread_work, key=lambda work: work.seconds)
    return f"{process_name(who)} does {longest.what}, for {longest.seconds:.0f} s, at {longest.place}"
