"""This module keeps in what order the batches of a `collect` ended that takes them so, in a recording, and reads it
from one.

No row of a recording tells this. `ended.jsonl` has a line for each step and each such `collect`:

    {"step": 3, "data": "prompts", "begun": 4, "ended": [[2, 5], [3, 0], [3, 2]]}

Four batches of new rows were begun; the sixth batch of step 2 was the first that ended, and then two of step 3. Batches
of rows that are asked again are counted from -1 down.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from rlgraph.backends.recording_errors import unwritable_recording_diagnostic
from rlgraph.backends.step import Ended
from rlgraph.errors import NO_SPAN, Diagnostic, RunError

FILE = "ended.jsonl"

Told = tuple[int, tuple[Ended, ...]]
"""How many batches of new rows were begun, and which batches ended, in their order."""


class FinishOrder:
    """The order in which the batches of one run ended. Without folders it keeps nothing and knows nothing."""

    def __init__(self, record: Path | None = None, replay: Path | None = None) -> None:
        self._record, self._replay = record, replay
        self._told: dict[tuple[int, str], Told] | None = None
        self._lock = Lock()

    def record_collect(self, step: int, data: str, begun: int, ended: Sequence[Ended]) -> None:
        """Record a `collect` of a step. Raises RunError where the disk is full."""
        if self._record is None:
            return
        line = json.dumps({"step": step, "data": data, "begun": begun, "ended": ended})
        try:
            with self._lock, (self._record / FILE).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise RunError(unwritable_recording_diagnostic(self._record, error)) from None

    def read_collect(self, step: int, data: str) -> Told | None:
        """Return what the recording says of a `collect`; None where it says nothing, or there is none. Raises RunError
        where it is damaged."""
        with self._lock:
            if self._told is None:
                self._told = {} if self._replay is None else _read(self._replay / FILE)
        return self._told.get((step, data))


def _read(path: Path) -> dict[tuple[int, str], Told]:
    endings: dict[tuple[int, str], Told] = {}
    lines = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            ended = tuple((int(step), int(batch)) for step, batch in record["ended"])
            # A step that failed has begun again.
            endings[int(record["step"]), str(record["data"])] = int(record["begun"]), ended
        except (ValueError, KeyError, TypeError):
            hint = "take the steps before it, or record again"
            raise RunError(Diagnostic("E0817", f"line {number} of `{path}` is damaged", NO_SPAN, hint)) from None
    return endings
