"""Ctrl-C in the midst of a test."""

from __future__ import annotations

import signal


def ctrl_c(number: int = signal.SIGINT) -> None:
    """It comes to this thread, and at once. What is sent to the process another thread may take; Python then hears of it
    some lines later, where it may be lost."""
    signal.raise_signal(number)
