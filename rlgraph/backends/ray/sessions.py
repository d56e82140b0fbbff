"""Signals to a run are for the run: Ray, which it starts, ends after the models are saved, and then for good."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

_SIGNALS = {signal.SIGTERM, signal.SIGHUP}

_GONE = 30.0
"""Seconds that the system has to take away processes that were killed."""
_POLL = 0.02

_starting: dict[int, int] = {}
"""Threads whose processes get a session of their own, and where these write its number."""


@contextmanager
def own_signals() -> Iterator[None]:
    """Ray takes SIGTERM and ends the process with it; whoever cared for that before saves the models first. One that
    comes meanwhile is delivered afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class Daemons:
    """Those that Ray starts here, and all that these start."""

    def __init__(self) -> None:
        self._sessions: set[int] = set()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """The daemons that Ray starts meanwhile in this thread are each in a session of their own. What is sent to all
        of the run's process group, by a terminal, by `kill -- -GROUP`, by `timeout`, is then not sent to them.

        If this process is killed Linux ends them, which Ray asks for that. Elsewhere Ray finds them by their group, and
        they stay in it.
        """
        _register()
        read, write = os.pipe()
        _starting[threading.get_ident()] = write
        try:
            yield
        finally:
            del _starting[threading.get_ident()]
            # First this end, so that there is an end to read.
            os.close(write)
            with os.fdopen(read) as numbers:
                self._sessions |= {int(number) for number in numbers.read().split()}

    def end(self) -> None:
        """Kills what Ray has left of them, and returns when it is gone: agents find out by themselves that their daemon
        has ended, once all they import is loaded, and its workers when they next ask it for something."""
        import psutil  # Ray brings it.

        left = [process for process in psutil.process_iter() if _session(process.pid) in self._sessions]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        end = time.monotonic() + _GONE
        # One that has ended stays a zombie where nobody asks for its exit code, as in many containers.
        while any(_alive(process) for process in left) and time.monotonic() < end:
            time.sleep(_POLL)
        self._sessions.clear()


def _alive(process: Any) -> bool:
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return 0


@cache
def _register() -> None:
    # Ray lets nobody say how its daemons start. It runs Python in them before they become what they are, so that what
    # is registered for forks runs, too.
    os.register_at_fork(after_in_child=_leave)


def _leave() -> None:
    write = _starting.get(threading.get_ident())
    if write is not None:
        if sys.platform.startswith("linux"):
            os.setsid()
            os.write(write, b"%d\n" % os.getpid())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
