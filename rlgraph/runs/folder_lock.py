"""A run's folder belongs to one process, which holds a lock in it."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import IO

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake

HOW = "run.json"


def lock_folder(metrics: IO[str], path: Path) -> None:
    """Lock a run's folder for as long as this process lives; the system releases the lock of a dead process. Raise
    UsageMistake if another run has it."""
    try:
        import fcntl

        fcntl.flock(metrics, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        metrics.close()
        host, pid = _process_at_work(path)
        who = f": process {pid} on {host}" if pid else ""
        hint = "wait for its end, or take another folder with `--out`"
        if host == platform.node():
            hint = f"{hint}; `kill {pid}` ends it, as Ctrl-C does"
        raise UsageMistake(Diagnostic("E0832", f"a run is at work in `{path}`{who}", NO_SPAN, hint)) from None
    except (ImportError, OSError):
        # Some network file systems have no locks.
        return


def this_process() -> dict[str, object]:
    """Return what says of a run which process is at work on it."""
    return {"host": platform.node(), "pid": os.getpid()}


def _process_at_work(path: Path) -> tuple[str, int]:
    """Return the machine and the number of the process that is at work in a folder; empty and 0 if it has not said
    that yet."""
    try:
        process = json.loads((path / HOW).read_text(encoding="utf-8"))["process"]
        return str(process["host"]), int(process["pid"])
    except (OSError, ValueError, LookupError, TypeError):
        return "", 0
