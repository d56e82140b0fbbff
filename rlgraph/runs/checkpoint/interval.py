"""The interval at which a run is saved: a number of steps, or a span of time."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake

_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass
class SaveInterval:
    """A saving interval in steps or in seconds, which says after which steps to save."""

    steps: int | None = None
    seconds: float | None = None
    _last: float = field(default_factory=time.monotonic)

    def is_due(self, step: int) -> bool:
        """Return whether to save after this step."""
        if self.steps is not None:
            return step % self.steps == 0
        return self.seconds is not None and time.monotonic() - self._last >= self.seconds

    def note_saved(self) -> None:
        self._last = time.monotonic()


def parse_interval(text: str | int) -> SaveInterval:
    """Parse `20` (every 20 steps), or `90s`, `10m`, `2h` (after the first step that ends so much later). Raise
    UsageMistake for anything else."""
    # Python refuses to parse much longer numbers, and nobody means one.
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([smh]?)", str(text).strip())
    if match and float(match[1]) > 0:
        if match[2]:
            return SaveInterval(seconds=float(match[1]) * _SECONDS[match[2]])
        if match[1].isdecimal():
            return SaveInterval(steps=int(match[1]))
    hint = "write `20` for every 20 steps, `10m` for every 10 minutes, `2h` for every 2 hours"
    raise UsageMistake(Diagnostic("E0825", f"`{text}` does not say how often to save", NO_SPAN, hint))
