"""In what order the batches of a `collect` ended that takes them so: kept in a recording, and read from one.

The one thing about a run that no row tells. A line of `ended.jsonl`, for each step and each such `collect`:

    {"step": 3, "data": "prompts", "begun": 4, "ended": [[2, 5], [3, 0], [3, 2]]}

Four batches of new rows were begun; the sixth batch of step 2 was the first that ended, and then two of step 3. Batches
of rows that are asked again are counted from -1 down.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from rlgraph.backends.step import Ended
from rlgraph.errors import NO_SPAN, Diagnostic, RunError

FILE = "ended.jsonl"

Told = tuple[int, tuple[Ended, ...]]
"""How many batches of new rows were begun, and which batches ended, in their order."""


class Endings:
    """Of one run. Without folders nothing is kept, and nothing known."""

    def __init__(self, record: Path | None = None, replay: Path | None = None) -> None:
        self._record, self._replay = record, replay
        self._told: dict[tuple[int, str], Told] | None = None
        self._lock = Lock()

    def tell(self, step: int, data: str, begun: int, ended: Sequence[Ended]) -> None:
        """Raises RunError where the disk is full."""
        if self._record is None:
            return
        line = json.dumps({"step": step, "data": data, "begun": begun, "ended": ended})
        try:
            with self._lock, (self._record / FILE).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            message = f"`{self._record}` cannot hold a recording: {(error.strerror or str(error)).lower()}"
            raise RunError(Diagnostic("E0814", message, NO_SPAN, "take another folder with `--record`")) from None

    def told(self, step: int, data: str) -> Told | None:
        """None: the recording says nothing of it, or there is none. Raises RunError where it is damaged."""
        with self._lock:
            if self._told is None:
                self._told = {} if self._replay is None else _read(self._replay / FILE)
        return self._told.get((step, data))


def _read(path: Path) -> dict[tuple[int, str], Told]:
    found: dict[tuple[int, str], Told] = {}
    lines = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            each = json.loads(line)
            ended = tuple((int(step), int(batch)) for step, batch in each["ended"])
            # A step that failed has begun again.
            found[int(each["step"]), str(each["data"])] = int(each["begun"]), ended
        except (ValueError, KeyError, TypeError):
            hint = "take the steps before it, or record again"
            raise RunError(Diagnostic("E0817", f"line {number} of `{path}` is damaged", NO_SPAN, hint)) from None
    return found
