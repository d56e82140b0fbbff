"""Waits for what has to happen, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

NEVER = 600.0
"""Seconds after which what a test waits for does not happen any more, on any machine."""


def until(happened: Callable[[], object]) -> None:
    """Waits for it; fails where it never happens."""
    end = time.monotonic() + NEVER
    while not happened():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)
