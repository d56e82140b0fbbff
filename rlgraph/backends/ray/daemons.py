"""Keeps signals to a run away from the Ray that it starts, which ends after the models are saved, and then
completely."""

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
"""Seconds that the system has to remove killed processes."""
_POLL = 0.02

_starting: dict[int, int] = {}
"""For threads that start daemons in sessions of their own, the file descriptor to which these write the session's
number."""


@contextmanager
def keep_signal_handlers() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces: it would end the process on SIGTERM, and the one before saves the
    models first. A signal that arrives meanwhile is delivered afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class Daemons:
    """The daemons that Ray starts here, and all processes that these start."""

    def __init__(self) -> None:
        self._sessions: set[int] = set()

    @contextmanager
    def start_in_own_session(self) -> Iterator[None]:
        """Start each of Ray's daemons, in this thread, in a session of its own. Signals to the run's process group,
        from a terminal, `kill -- -GROUP` or `timeout`, then do not reach them.

        If this process is killed Linux ends them, which Ray asks it to. Elsewhere Ray finds them by their group, and
        they stay in it.
        """
        _register()
        read, write = os.pipe()
        _starting[threading.get_ident()] = write
        try:
            yield
        finally:
            del _starting[threading.get_ident()]
            # Closed first, so that reading comes to an end of the file.
            os.close(write)
            with os.fdopen(read) as numbers:
                self._sessions |= {int(number) for number in numbers.read().split()}

    def kill_remaining(self) -> None:
        """Kill what Ray has left of the daemons, and return when it is gone: agents notice the end of their daemon only
        after all their imports, and its workers only at their next call to it."""
        import psutil  # Ray brings it.

        processes = [process for process in psutil.process_iter() if _session(process.pid) in self._sessions]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        end = time.monotonic() + _GONE
        # A dead process stays a zombie where nobody reaps it, as in many containers.
        while any(_alive(process) for process in processes) and time.monotonic() < end:
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
    # Ray has no option for how its daemons start. It runs Python in them before exec, so that a handler registered for
    # forks runs, too.
    os.register_at_fork(after_in_child=_leave)


def _leave() -> None:
    descriptor = _starting.get(threading.get_ident())
    if descriptor is not None:
        if sys.platform.startswith("linux"):
            os.setsid()
            os.write(descriptor, b"%d\n" % os.getpid())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
