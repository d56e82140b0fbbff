"""What all processes of a run hold on their devices, in a file that they share: each writes what it has, and reads what
the others have."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SEAT = struct.Struct("<qqqq96s")
"""The number of the device plus one, bytes on it, the most that all its processes had when this one wrote, bytes pinned
in its host's memory, and who has the seat."""


@dataclass(frozen=True)
class SeatUse:
    """What one process holds."""

    who: str
    device: int
    """The number of its device among all; -1 before it has one."""
    device_bytes: int
    peak_bytes: int
    """The most that all processes of the device had when this one wrote."""
    host_bytes: int


class DeviceLedger:
    """The file, as one process sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(self._file, 0)
        self._lock = threading.Lock()

    @staticmethod
    def create(path: Path, seats: int) -> None:
        """Make a file with so many seats, all of them free."""
        path.write_bytes(bytes(_SEAT.size * seats))

    @property
    def seats(self) -> int:
        """How many processes have a seat."""
        return len(self._map) // _SEAT.size

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process and thread out while the block reads and writes."""
        with self._lock:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def write(self, seat: int, use: SeatUse) -> None:
        """Write what a process holds."""
        fields = use.device + 1, use.device_bytes, use.peak_bytes, use.host_bytes, use.who.encode()[:96]
        _SEAT.pack_into(self._map, seat * _SEAT.size, *fields)

    def read(self) -> list[SeatUse]:
        """Return what every process holds, by its seat."""
        return [self._read(seat) for seat in range(self.seats)]

    def on_device(self, device: int) -> list[SeatUse]:
        """Return what the processes of a device hold."""
        return [use for use in self.read() if use.device == device]

    def close(self) -> None:
        """Give the file back."""
        self._map.close()
        os.close(self._file)

    def _read(self, seat: int) -> SeatUse:
        device, size, peak, host, who = _SEAT.unpack_from(self._map, seat * _SEAT.size)
        return SeatUse(who.rstrip(b"\0").decode(errors="replace"), device - 1, size, peak, host)
