"""Reads files with a line of JSON for each record while a run appends to them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class GrowingFile:
    """A file of JSON lines, of which each is read once. One that was cut or replaced is read again from its start."""

    def __init__(self, path: Path, began_anew: Callable[[], None]) -> None:
        """began_anew: called before lines come that were read already."""
        self.path = path
        self._began_anew = began_anew
        self._offset = 0
        self._file_number = 0
        self.damaged = 0
        """Lines that were no record, which are left out."""

    def new_records(self) -> list[dict[str, Any]]:
        """Return the records of whole lines that came since the last call; none where there is no file."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size < self._offset or self._offset and status.st_ino != self._file_number:
                    self._offset, self.damaged = 0, 0
                    self._began_anew()
                self._file_number = status.st_ino
                file.seek(self._offset)
                text = file.read()
        except OSError:
            return []
        # The run may be amid the last line, or was killed while it wrote it.
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [record for line in whole.splitlines() if (record := self._record(line)) is not None]

    def _record(self, line: bytes) -> dict[str, Any] | None:
        try:
            record = json.loads(line)
            if isinstance(record, dict):
                return record
        except (ValueError, RecursionError):
            pass
        self.damaged += 1
        return None
