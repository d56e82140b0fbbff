"""Gives Ray longer than its 30 seconds to start its own processes, which take longer on a busy machine."""

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
def longer_start_timeout(seconds: float = PATIENCE) -> Iterator[None]:
    """Give a Ray that is started in this block so many seconds.

    Its control process has a variable for that. For the daemon, Ray asks in a loop of hard-coded 30 seconds whether it
    is known yet; here the question itself waits for the answer.
    """
    from ray._private import services

    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(round(seconds)))
    get_node: Callable[..., Any] = services.get_node
    end = time.monotonic() + seconds

    def wait(*arguments: Any) -> Any:
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(_POLL)

    services.get_node = wait
    try:
        yield
    finally:
        services.get_node = get_node
