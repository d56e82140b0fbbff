"""What an engine that reserves a cache wants of a GPU when it starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartDemand:
    """What one process of the engine asks for."""

    share: float
    """The share of the device's memory that has to be free."""
    weight_bytes: int
    """Bytes of its weights."""
    cache_bytes: int | None
    """Bytes of its cache; None: what the share leaves."""
    row_tokens: int
    """The longest row."""
    row_bytes: int
    """Bytes of a cache with room for one such row."""
    ranks: int
    """The ranks over which layers are split: each has a device of its own."""


@dataclass(frozen=True, slots=True)
class StartDevice:
    """The device that it finds."""

    memory: int
    """All of its bytes."""
    free: int
    """Those that nobody has."""
    visible: int
    """The devices that the process sees."""
