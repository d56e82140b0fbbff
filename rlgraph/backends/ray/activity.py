"""What each thread of a process does and waits for: working threads write it while another thread reads it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rlgraph.backends.engines.collectives import (
    Collective,
    CollectiveState,
    Key,
    is_collective_error,
    read_flight_recorder,
)
from rlgraph.backends.exchange.exchange import CurrentMessage
from rlgraph.backends.exchange.mailbox import link_error
from rlgraph.backends.ray.row_refs import Address

_PARTS = 3
"""Parts shown of a file's path: enough to tell its package."""


@dataclass(frozen=True)
class ThreadWork:
    """What one thread is working on."""

    what: str
    """E.g. `train` for `actor@1`."""
    seconds: float
    """Seconds since it began."""
    place: str
    """The line of a Python file that it is at."""


@dataclass(frozen=True)
class ActivityReport:
    """What a process reports of its threads, collectives and transfers."""

    thread_work: tuple[ThreadWork, ...]
    collectives: CollectiveState
    ranks: Mapping[Key, tuple[Address, ...]]
    """The processes of each torch group, in order."""
    pending_messages: tuple[CurrentMessage, ...]
    """The transfer messages that it is sending or receiving."""

    def open_collectives(self) -> Iterator[tuple[Collective, tuple[Address, ...]]]:
        """Yield each unfinished collective with the processes of its group."""
        for collective in self.collectives.unfinished:
            yield collective, self.ranks[collective.group]


class ActivityLog:
    """Records what each thread is doing."""

    def __init__(self) -> None:
        self._now: dict[int, tuple[str, float]] = {}
        """What each thread does, and since when."""
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        """What all of it is done in."""

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Record `what` for this thread while the block runs. A collective that breaks in it raises LinkError, as a
        broken transfer does: another process is to blame."""
        thread, began = threading.get_ident(), time.monotonic()
        before = self._now.get(thread)
        self._now[thread] = what, began
        try:
            with self.around():
                yield
        except RuntimeError as error:
            if not is_collective_error(error):
                raise
            raise link_error(error, time.monotonic() - began) from error
        finally:
            if before is None:
                del self._now[thread]
            else:
                self._now[thread] = before

    def current_work(self) -> tuple[ThreadWork, ...]:
        """Return what the threads are doing."""
        frames, now = sys._current_frames(), time.monotonic()
        return tuple(
            ThreadWork(what, now - since, _place(frames.get(thread)))
            for thread, (what, since) in list(self._now.items())
        )

    def make_report(self, world: tuple[Address, ...], moving: tuple[CurrentMessage, ...]) -> ActivityReport:
        """Return the report of this process. world: the processes of torch's default group, in order."""
        collectives = read_flight_recorder()
        ranks = {key: tuple(world[rank] for rank in key[1] if rank < len(world)) for key in collectives.last_numbers}
        return ActivityReport(self.current_work(), collectives, ranks, moving)


def _place(frame: object) -> str:
    code, line = getattr(frame, "f_code", None), getattr(frame, "f_lineno", 0)
    return f"{Path(*Path(code.co_filename).parts[-_PARTS:])}:{line}, in {code.co_name}" if code else ""
