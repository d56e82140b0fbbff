"""What can happen to a process of a run. `benchmarks/kills.py` does it at random moments."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

FAULTS = ("kill", "stop", "delay", "full", "drop")
"""It is killed; stopped, and never goes on; held up for two seconds; can write no byte more into any file, as where the
disk is full; loses all of its connections to others."""
HELD_UP = 2
"""Seconds."""
_PIDFD_GETFD = 438
"""The number of Linux's call for the file of another process, which Python does not have."""

RUN, OWN = "run", ("control", "store")
"""The kinds of processes that are no part of a plan: who starts all others, and Ray's."""


def meets(fault: str, kind: str) -> bool:
    """Whether it is promised that a run gets over this: who waits for the run itself notices that it is stopped, and of
    Ray's own processes Ray itself does, in time of its own."""
    if fault == "drop":
        return kind not in (RUN, "function", *OWN)
    if fault == "stop":
        return kind not in (RUN, *OWN)
    return fault in ("kill", "delay") or kind not in OWN


def inject(fault: str, pid: int) -> None:
    """Does it to a process, which may be this one."""
    if fault == "delay":
        # Who is stopped cannot wake itself up. It has none of the run's variables, by which the run's are found.
        subprocess.Popen(["sh", "-c", f"sleep {HELD_UP}; kill -CONT {pid}"], env={"PATH": os.defpath})
    if fault in ("stop", "delay"):
        os.kill(pid, signal.SIGSTOP)
    elif fault == "kill":
        os.kill(pid, signal.SIGKILL)
    elif fault == "full":
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))
    else:
        _drop(pid)


def _drop(pid: int) -> None:
    """Ends each connection that a process has, as a network does that breaks: both ends are told."""
    connected, libc = _sockets("01"), ctypes.CDLL(None, use_errno=True)
    there = os.pidfd_open(pid)
    try:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(each).removeprefix("socket:[").rstrip("]") not in connected:
                    continue
                own = libc.syscall(_PIDFD_GETFD, there, int(each.name), 0)
                if own >= 0:
                    with socket.socket(fileno=own) as end:
                        end.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(there)


def listening() -> set[str]:
    """Inodes of the sockets that do."""
    return _sockets("0A")


def _sockets(state: str) -> set[str]:
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {line[9] for line in lines if line[3] == state}
