"""Where the processes of a communicator meet, as NCCL has them meet: over keys of the store that they share.

A message between two processes is a meeting. The first of a pair makes their communicator, for which both wait; then
all messages of the pair, in both directions, follow each other in the order in which they were begun. So do the
collectives of all processes. Each process writes down what it begins, and whoever waits reads what the others have
begun.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import Store

from rlgraph.errors import NO_SPAN, Diagnostic, RunError, count_phrase

_FITS = {("sends", "receives"), ("receives", "sends")}


class Communicator:
    """A communicator of some processes, as one of them sees it."""

    def __init__(
        self,
        store: Store,
        rank: int,
        names: list[str],
        device: int,
        seconds: float,
        made: Callable[[], None] = lambda: None,
    ) -> None:
        """store: of these processes alone. names: how messages call each of them. device: the number of this one's.
        seconds: the longest wait. made: is told of each communicator, that of all processes and those of pairs."""
        self._store, self._rank, self._names, self._device = store, rank, names, device
        self._limit, self._seconds, self._made = timedelta(seconds=seconds), seconds, made
        self._begun = Counter[int]()
        """How many messages were begun with each peer."""
        self._kinds: dict[int, list[str]] = defaultdict(list)
        self._met = Counter[int]()
        self._collectives: list[str] = []
        self._collectives_met = 0

    def begin_message(self, kind: str, peer: int, elements: int) -> int:
        """Begin a message that this process `sends` or `receives`, and return its number among those with the peer.
        Raises RunError where the first one does not meet."""
        self._begun[peer] += 1
        self._kinds[peer].append(f"{kind} {elements}")
        number = self._begun[peer]
        self._store.set(self._message_key(peer, number, self._rank), f"{kind} {elements}")
        if number == 1:
            self._wait(self._message_key(peer, 1, peer), peer, f"{kind} its first message with {self._names[peer]}")
            self._made()
        return number

    def meet_message(self, peer: int, number: int) -> None:
        """Wait until the peer has begun this message, and all before it. Raises RunError where the two would not meet,
        or the peer does not come."""
        while self._met[peer] < number:
            at = self._met[peer] + 1
            ours = self._kinds[peer][at - 1]
            what = f"{ours.split()[0]} message {at} with {self._names[peer]}"
            theirs = self._wait(self._message_key(peer, at, peer), peer, what)
            self._compare(peer, at, ours, theirs)
            self._met[peer] = at

    def has_met(self, peer: int, number: int) -> bool:
        """Return whether the peer has begun this message."""
        return self._met[peer] >= number or self._store.check([self._message_key(peer, number, peer)])

    def begin_collective(self, what: str) -> int:
        """Begin a collective, and return its number. what: its name and size, the same on all. Raises RunError where
        the first one is not begun by all, or two of them are on one device."""
        self._collectives.append(what)
        number = len(self._collectives)
        self._store.set(self._collective_key(number, self._rank), f"{self._device}|{what}")
        if number == 1 and len(self._names) > 1:
            devices: dict[str, int] = {}
            for rank in range(len(self._names)):
                told = self._wait(
                    self._collective_key(1, rank), rank, f"begins `{what}`, the first of its communicator,"
                )
                device = told.partition("|")[0]
                if device in devices:
                    one, other = self._names[devices[device]], self._names[rank]
                    raise _never(f"{one} and {other} are in one communicator and both on device {device}")
                devices[device] = rank
            self._made()
        return number

    def meet_collective(self, number: int) -> None:
        """Wait until the next process has begun this collective, too. Raises RunError where it is at another one, or
        does not come."""
        peer = (self._rank + 1) % len(self._names)
        while self._collectives_met < number:
            at = self._collectives_met + 1
            ours = self._collectives[at - 1]
            theirs = self._wait(self._collective_key(at, peer), peer, f"is in `{ours}`, collective {at},").partition(
                "|"
            )[2]
            if theirs != ours:
                raise _never(
                    f"{self._names[self._rank]} is in `{ours}` and {self._names[peer]} in `{theirs}`: both are "
                    f"collective {at} of their communicator"
                )
            self._collectives_met = at

    def _compare(self, peer: int, at: int, ours: str, theirs: str) -> None:
        here, there = self._names[self._rank], self._names[peer]
        (kind, size), (other, other_size) = ours.split(), theirs.split()
        if (kind, other) not in _FITS:
            raise _never(f"{here} and {there} are both at message {at} of their communicator, and each {kind} it")
        if size != other_size:
            raise _never(
                f"{here} {kind} message {at} with {count_phrase(int(size), 'number')}, and {there} {other} "
                f"{count_phrase(int(other_size), 'number')}"
            )

    def _wait(self, key: str, peer: int, what: str) -> str:
        try:
            self._store.wait([key], self._limit)
        except Exception as error:
            raise _never(
                f"{self._names[self._rank]} {what} and {self._names[peer]} has not come to it in {self._seconds:g} s"
            ) from error
        return self._store.get(key).decode()

    def _message_key(self, peer: int, number: int, whose: int) -> str:
        low, high = sorted((self._rank, peer))
        return f"{low}-{high} {number} {whose}"

    def _collective_key(self, number: int, whose: int) -> str:
        return f"all {number} {whose}"


def _never(message: str) -> RunError:
    hint = "this is what NCCL would wait for without end: please report it, with the plan"
    return RunError(Diagnostic("E0751", message, NO_SPAN, hint))
