"""Signals to a run are for the run: Ray, which it starts, is not to end before the models are saved."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_SIGNALS = {signal.SIGTERM, signal.SIGHUP}

_starting: set[int] = set()
"""Threads whose processes get a session of their own."""


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


@contextmanager
def apart() -> Iterator[None]:
    """The daemons that Ray starts meanwhile in this thread are each in a session of their own. What is sent to all of
    the run's process group, by a terminal, by `kill -- -GROUP`, by `timeout`, is then not sent to them.

    They end with this process, however that ends: Linux does it, which Ray asks for that. Elsewhere Ray finds them by
    their group, and they stay in it.
    """
    _register()
    _starting.add(threading.get_ident())
    try:
        yield
    finally:
        _starting.discard(threading.get_ident())


@cache
def _register() -> None:
    # Ray lets nobody say how its daemons start. It runs Python in them before they become what they are, so that what
    # is registered for forks runs, too.
    os.register_at_fork(after_in_child=_leave)


def _leave() -> None:
    if threading.get_ident() in _starting:
        if sys.platform.startswith("linux"):
            os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
