"""Ray gives its own processes 30 seconds to start; on a machine that is busy they take longer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 180.0
"""Seconds in which Ray starts here."""
_POLL = 0.1


@contextmanager
def patient(seconds: float = PATIENCE) -> Iterator[None]:
    """Ray that is started meanwhile has so many seconds for it.

    Its control process has a variable for that; for the daemon Ray asks whether it is known yet, again and again, and
    has 30 seconds written into the loop around the question. Here the question waits for its answer.
    """
    from ray._private import services

    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(round(seconds)))
    plain: Callable[..., Any] = services.get_node
    end = time.monotonic() + seconds

    def wait(*asked: Any) -> Any:
        while True:
            try:
                return plain(*asked)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(_POLL)

    services.get_node = wait
    try:
        yield
    finally:
        services.get_node = plain
