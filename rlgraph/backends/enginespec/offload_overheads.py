"""Seconds of off-loading that do not follow from a model's bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffloadOverheads:
    """The seconds of an engine beside those of the bytes that go to the host's memory and back."""

    sleep: float = 0.0
    """Seconds to give its memory back: what is mapped is unmapped, page by page."""
    wake: float = 0.0
    """Seconds until it works again: its memory is mapped, and its cache is made anew."""

    @property
    def round_trip(self) -> float:
        """Return the seconds of going to sleep and of waking up."""
        return self.sleep + self.wake
