"""This module counts how far an engine is with the rows of a call, for whoever shows that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_BETWEEN_S = 0.1
"""The least seconds between two times that somebody is told: decoding counts thousands of times a second."""


class WorkMeter:
    """Counts rows that are done and tokens that are made, in whatever threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.tell: Callable[[int, int, int], None] | None = None
        """Is given the rows that are done, all rows of the call, and the tokens that were made."""
        self._now = now
        self._lock = threading.Lock()
        self._done = self._total = self._tokens = 0
        self._told_s = 0.0

    def begin_call(self, rows: int) -> None:
        """Begin a call of so many rows."""
        with self._lock:
            self._done, self._total, self._tokens, self._told_s = 0, rows, 0, self._now()

    def add(self, rows: int, tokens: int = 0) -> None:
        """Count rows that are done, and tokens."""
        if self.tell is None:
            return
        with self._lock:
            self._done, self._tokens = self._done + rows, self._tokens + tokens
            now = self._now()
            if now - self._told_s >= _BETWEEN_S:
                self._told_s = now
                self.tell(self._done, self._total, self._tokens)
