"""What a process is doing, and for whom it waits: kept by the threads that do it, read by another one while they do."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlgraph.backends.engines.collectives import Collective, Entered, Key, entered, is_broken
from rlgraph.backends.exchange.exchange import Pending
from rlgraph.backends.exchange.mailbox import lost
from rlgraph.backends.ray.remote import Address

_PARTS = 3
"""Of a path, so that it says which package a file is of."""


@dataclass(frozen=True)
class Work:
    """Of one thread of a process."""

    what: str
    """`train` for `actor@1`."""
    seconds: float
    """Since it began."""
    place: str
    """Where in a Python file it is."""


@dataclass(frozen=True)
class At:
    """What a process tells of itself."""

    work: tuple[Work, ...]
    entered: Entered
    ranks: Mapping[Key, tuple[Address, ...]]
    """Of each torch group its processes, in order."""
    moving: tuple[Pending, ...]
    """The messages of transfers that it is at."""

    def open(self) -> Iterator[tuple[Collective, tuple[Address, ...]]]:
        """The collectives that are not over, and whose they are."""
        for each in self.entered.open:
            yield each, self.ranks[each.group]


class Doing:
    """Of all threads of a process."""

    def __init__(self) -> None:
        self._now: dict[int, tuple[str, float]] = {}
        """By thread: what, and since when."""

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Around the work of a thread. A collective that does not come to its end there fails as a transfer does, with
        LinkError: somebody else is to blame."""
        thread, began = threading.get_ident(), time.monotonic()
        before = self._now.get(thread)
        self._now[thread] = what, began
        try:
            yield
        except RuntimeError as error:
            if not is_broken(error):
                raise
            raise lost(error, time.monotonic() - began) from error
        finally:
            if before is None:
                del self._now[thread]
            else:
                self._now[thread] = before

    def work(self) -> tuple[Work, ...]:
        frames, now = sys._current_frames(), time.monotonic()
        return tuple(
            Work(what, now - since, _place(frames.get(thread))) for thread, (what, since) in list(self._now.items())
        )

    def at(self, world: tuple[Address, ...], moving: tuple[Pending, ...]) -> At:
        """world: the processes of torch's default group, in order."""
        found = entered()
        ranks = {key: tuple(world[rank] for rank in key[1] if rank < len(world)) for key in found.last}
        return At(self.work(), found, ranks, moving)


def _place(frame: object) -> str:
    code, line = getattr(frame, "f_code", None), getattr(frame, "f_lineno", 0)
    return f"{Path(*Path(code.co_filename).parts[-_PARTS:])}:{line}, in {code.co_name}" if code else ""
