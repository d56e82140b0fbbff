"""Digests of files in fixed-size chunks, called stretches, so that reading a part of a file verifies only the stretches
that the part lies in.

A digest is the first half of a SHA-256. It detects accidental damage and is not a signature: whoever can write the file
can write its digests, too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

STRETCH = 1 << 20
"""Bytes of a stretch, which has one digest. The digests of 100 GB take 3 MB."""
_WIDTH = 32
"""The number of hexadecimal characters of a digest."""


class DamagedFile(ValueError):
    """Raised when a file differs from what was written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"`{self.path}` {self.why}"


@dataclass(frozen=True)
class FileDigests:
    """The size and digests that a file must have."""

    bytes: int
    stretches: str
    """The digests of all stretches, concatenated."""

    def to_plain(self) -> dict[str, Any]:
        """Return it as data that JSON can hold."""
        return {"bytes": self.bytes, "stretches": self.stretches}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> FileDigests:
        """Read what `plain` returned. Raises LookupError, ValueError or TypeError for values that no file has."""
        digests = cls(plain["bytes"], plain["stretches"])
        if len(digests.stretches) != _WIDTH * -(-digests.bytes // STRETCH):
            raise ValueError("there are not as many digests as the file has stretches")
        return digests

    def stretch_digest(self, stretch: int) -> str:
        """Return the digest of the stretch with this index."""
        return self.stretches[stretch * _WIDTH : (stretch + 1) * _WIDTH]


def digest_bytes(content: bytes) -> str:
    """Return the digest of a text or a stretch."""
    return hashlib.sha256(content).hexdigest()[:_WIDTH]


class DigestWriter:
    """A writer that computes a file's digests as it writes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._ended: list[str] = []
        self._hash, self._size = hashlib.sha256(), 0

    def write(self, content: Any) -> None:
        """Write bytes, or an object with the buffer protocol. Raises OSError."""
        view = memoryview(content)
        start = 0
        while start < len(view):
            end = min(len(view), start + STRETCH - self._size % STRETCH)
            self._hash.update(view[start:end])
            self._size += end - start
            start = end
            if self._size % STRETCH == 0:
                self._end()
        self._file.write(view)

    def written_digests(self) -> FileDigests:
        """Return the digests of all that was written. Nothing may be written afterwards."""
        if self._size % STRETCH:
            self._end()
        return FileDigests(self._size, "".join(self._ended))

    def _end(self) -> None:
        self._ended.append(self._hash.hexdigest()[:_WIDTH])
        self._hash = hashlib.sha256()


def digests_of(path: Path) -> FileDigests:
    """Return the digests of an existing file. Raises OSError."""
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(STRETCH), b"")
        stretches = [(len(chunk), digest_bytes(chunk)) for chunk in chunks]
    return FileDigests(sum(size for size, _ in stretches), "".join(hexadecimal for _, hexadecimal in stretches))


class VerifiedFile:
    """A file whose stretches are verified before they are read, each of them once."""

    def __init__(self, path: Path, told: FileDigests) -> None:
        """Raises OSError, and Damaged if the size is not that of `told`."""
        self.path, self.told = path, told
        self._verified: set[int] = set()
        if (size := path.stat().st_size) != told.bytes:
            raise DamagedFile(path, f"has {size:,} bytes in place of {told.bytes:,}")

    def verify_range(self, start: int, end: int) -> None:
        """Verify the bytes from `start` to `end`. Raises OSError, and Damaged where they differ."""
        wanted = range(start // STRETCH, -(-end // STRETCH))
        if end > self.told.bytes:
            raise DamagedFile(self.path, f"has no byte {end:,}")
        if all(stretch in self._verified for stretch in wanted):
            return
        with self.path.open("rb", buffering=0) as file:
            for stretch in (index for index in wanted if index not in self._verified):
                if digest_bytes(os.pread(file.fileno(), STRETCH, stretch * STRETCH)) != self.told.stretch_digest(
                    stretch
                ):
                    last = min((stretch + 1) * STRETCH, self.told.bytes)
                    where = f"between byte {stretch * STRETCH:,} and byte {last:,}"
                    raise DamagedFile(self.path, f"is not as it was written: it differs {where}")
                self._verified.add(stretch)

    def read_verified(self) -> bytes:
        """Return the whole verified content. Raises OSError, DamagedFile."""
        self.verify_range(0, self.told.bytes)
        return self.path.read_bytes()


WHOLE = 1 << 30
"""Files of up to this many bytes are read completely by `file_fingerprint`."""
_SAMPLES = 256
"""How many stretches it reads of a larger file."""


def file_fingerprint(path: Path) -> str:
    """Return one digest of a file that others have written. It covers all of the file; of a file with more than `WHOLE`
    bytes it covers the size and 256 MiB, spread evenly and including the first and the last MiB. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        last = max(0, -(-size // STRETCH) - 1)
        wanted = range(last + 1)
        if size > WHOLE:
            wanted = [last * index // (_SAMPLES - 1) for index in range(_SAMPLES)]  # type: ignore[assignment]
        hasher = hashlib.sha256(str(size).encode())
        for stretch in wanted:
            hasher.update(os.pread(file.fileno(), STRETCH, stretch * STRETCH))
    return hasher.hexdigest()[:_WIDTH]
