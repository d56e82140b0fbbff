"""Reads files with a line of JSON for each record while a run appends to them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class GrowingLines:
    """The lines of a file that a run appends to. One that is cut or replaced is read again from its beginning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = self._number = 0
        self.began_anew = 0
        """How often it was read again."""

    def new_lines(self) -> Iterator[bytes]:
        """Yield the whole lines that came since the last call; none where there is no file."""
        try:
            file = self.path.open("rb")
        except OSError:
            return
        with file:
            status = os.fstat(file.fileno())
            if self._offset and (status.st_size < self._offset or status.st_ino != self._number):
                self._offset, self.began_anew = 0, self.began_anew + 1
            self._number = status.st_ino
            file.seek(self._offset)
            for line in file:
                # The run may be amid the last line, or was killed while it wrote it.
                if not line.endswith(b"\n"):
                    return
                yield line
                # A line at which the reader stops comes again.
                self._offset += len(line)


class GrowingRecords:
    """The records of a file of JSON lines, of which each is read once, or again where the file begins anew."""

    def __init__(self, path: Path, began_anew: Callable[[], None]) -> None:
        """began_anew: called before lines come that were read already."""
        self._lines, self._began_anew = GrowingLines(path), began_anew
        self.damaged = 0
        """Lines that were no record, which are left out."""

    def new_records(self) -> list[dict[str, Any]]:
        """Return the records of whole lines that came since the last call; none where there is no file."""
        before, lines = self._lines.began_anew, list(self._lines.new_lines())
        if self._lines.began_anew != before:
            self.damaged = 0
            self._began_anew()
        return [record for line in lines if (record := self._record(line)) is not None]

    def _record(self, line: bytes) -> dict[str, Any] | None:
        try:
            record = json.loads(line)
            if isinstance(record, dict):
                return record
        except (ValueError, RecursionError):
            pass
        self.damaged += 1
        return None
