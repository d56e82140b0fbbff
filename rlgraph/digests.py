"""Digests of files, stretch by stretch: whoever reads a part of a file looks at the stretches that it lies in, and at
no more.

A digest is the first half of a SHA-256, which finds every accident; it is no signature: who can write the file can
write its digests, too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

STRETCH = 1 << 20
"""Bytes that have a digest together. Of 100 GB all digests are 3 MB."""
_WIDTH = 32
"""Characters of a digest."""


class Damaged(ValueError):
    """A file is not as it was written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"`{self.path}` {self.why}"


@dataclass(frozen=True)
class Digests:
    """What a file has to be."""

    bytes: int
    stretches: str
    """The digest of each stretch, one behind the other."""

    def plain(self) -> dict[str, Any]:
        """As data that JSON can hold."""
        return {"bytes": self.bytes, "stretches": self.stretches}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Digests:
        """Raises LookupError, ValueError or TypeError for what no file has."""
        found = cls(plain["bytes"], plain["stretches"])
        if len(found.stretches) != _WIDTH * -(-found.bytes // STRETCH):
            raise ValueError("there are not as many digests as the file has stretches")
        return found

    def of(self, stretch: int) -> str:
        return self.stretches[stretch * _WIDTH : (stretch + 1) * _WIDTH]


def digest(content: bytes) -> str:
    """Of a text or a stretch."""
    return hashlib.sha256(content).hexdigest()[:_WIDTH]


class Digesting:
    """A file that is being written, and its digests."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._done: list[str] = []
        self._now, self._size = hashlib.sha256(), 0

    def write(self, content: Any) -> None:
        """Bytes, or what lends its bytes. Raises OSError."""
        view = memoryview(content)
        at = 0
        while at < len(view):
            end = min(len(view), at + STRETCH - self._size % STRETCH)
            self._now.update(view[at:end])
            self._size += end - at
            at = end
            if self._size % STRETCH == 0:
                self._end()
        self._file.write(view)

    def digests(self) -> Digests:
        """Of what was written until now. Nothing may be written after it."""
        if self._size % STRETCH:
            self._end()
        return Digests(self._size, "".join(self._done))

    def _end(self) -> None:
        self._done.append(self._now.hexdigest()[:_WIDTH])
        self._now = hashlib.sha256()


def digests_of(path: Path) -> Digests:
    """Of a file that is there. Raises OSError."""
    with path.open("rb") as file:
        stretches = iter(lambda: file.read(STRETCH), b"")
        found = [(len(each), digest(each)) for each in stretches]
    return Digests(sum(size for size, _ in found), "".join(each for _, each in found))


class Looked:
    """A file whose stretches are looked at before they are read, each once."""

    def __init__(self, path: Path, told: Digests) -> None:
        """Raises OSError, and Damaged for another size."""
        self.path, self.told = path, told
        self._seen: set[int] = set()
        if (size := path.stat().st_size) != told.bytes:
            raise Damaged(path, f"has {size:,} bytes in place of {told.bytes:,}")

    def need(self, start: int, end: int) -> None:
        """The bytes from `start` to `end` are to be those that were written. Raises OSError, Damaged."""
        wanted = range(start // STRETCH, -(-end // STRETCH))
        if end > self.told.bytes:
            raise Damaged(self.path, f"has no byte {end:,}")
        if all(stretch in self._seen for stretch in wanted):
            return
        with self.path.open("rb", buffering=0) as file:
            for stretch in (each for each in wanted if each not in self._seen):
                if digest(os.pread(file.fileno(), STRETCH, stretch * STRETCH)) != self.told.of(stretch):
                    last = min((stretch + 1) * STRETCH, self.told.bytes)
                    where = f"between byte {stretch * STRETCH:,} and byte {last:,}"
                    raise Damaged(self.path, f"is not as it was written: it differs {where}")
                self._seen.add(stretch)

    def content(self) -> bytes:
        """All of it. Raises OSError, Damaged."""
        self.need(0, self.told.bytes)
        return self.path.read_bytes()


WHOLE = 1 << 30
"""Bytes of a file of others that is read whole for its digest."""
_LOOKS = 256
"""Stretches of a larger one that are read."""


def fingerprint(path: Path) -> str:
    """One digest of a file that others have written: of all of it, or of a file with more than `WHOLE` bytes of its
    size and 256 MiB of it, spread evenly, the first and the last among them. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        last = max(0, -(-size // STRETCH) - 1)
        wanted = range(last + 1)
        if size > WHOLE:
            wanted = [last * at // (_LOOKS - 1) for at in range(_LOOKS)]  # type: ignore[assignment]
        now = hashlib.sha256(str(size).encode())
        for stretch in wanted:
            now.update(os.pread(file.fileno(), STRETCH, stretch * STRETCH))
    return now.hexdigest()[:_WIDTH]
