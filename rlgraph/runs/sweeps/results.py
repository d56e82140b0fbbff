"""What became of the points of a sweep, from their folders, and the table of it as a file."""

from __future__ import annotations

import csv
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from rlgraph.files import read_bytes
from rlgraph.runs.checkpoint.best import BestMetric
from rlgraph.runs.checkpoint.disk import write_text_atomically
from rlgraph.runs.folder import EVENTS, METRICS
from rlgraph.runs.jsonlines import decode_nonfinite
from rlgraph.runs.sweeps.points import Point

TABLE = "sweep.csv"
"""The file in the folder of a sweep that has a line for every point, as they are now."""

Outcome = Literal["finished", "interrupted", "failed", "not begun"]
_LONGEST = 1 << 32


@dataclass(frozen=True)
class PointResult:
    """What became of a point so far."""

    point: Point
    folder: Path
    outcome: Outcome
    steps: int = 0
    seconds: float = 0.0
    """The seconds of its steps, added up."""
    last: Mapping[str, float] = field(default_factory=dict)
    """What the last step reported."""
    best: Mapping[str, float] = field(default_factory=dict)
    """Of every metric the best value of all steps."""
    error: str = ""
    """Why it failed."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "values": dict(self.point.values),
            "outcome": self.outcome,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "last": dict(self.last),
            "best": dict(self.best),
            "folder": str(self.folder),
            "error": self.error,
        }


def read_result(point: Point, folder: Path, metrics: Sequence[BestMetric], error: str = "") -> PointResult:
    """Return what a point's folder says of it; a line that was half written does not count. error: why it failed just
    now."""
    last, best = dict[str, float](), dict[str, float]()
    steps, seconds = 0, 0.0
    for record in _records(folder / METRICS):
        record = decode_nonfinite(record)
        try:
            steps, seconds = int(record["step"]), seconds + float(record["seconds"])
        except (LookupError, TypeError, ValueError):
            break
        for metric in metrics:
            value = metric.reported_value(record)
            if value is None:
                continue
            last[metric.metric] = value
            choose = max if metric.highest else min
            best[metric.metric] = choose(best.get(metric.metric, value), value)
    outcome, reason = _end(folder)
    if error:
        outcome, reason = "failed", error
    return PointResult(point, folder, outcome, steps, seconds, last, best, reason)


def _end(folder: Path) -> tuple[Outcome, str]:
    """Return how a run ended, and why if it failed; one that was killed has not said how."""
    # A tracker says behind the end where it has sent the run.
    newest = deque((event for event in _records(folder / EVENTS) if event.get("kind") != "note"), maxlen=1)
    last = newest[0] if newest else {}
    if last.get("kind") == "run_ended":
        text = str(last.get("text", ""))
        outcomes: dict[object, tuple[Outcome, str]] = {"finished": ("finished", ""), "failed": ("failed", text)}
        return outcomes.get(last.get("outcome"), ("interrupted", ""))
    return ("interrupted" if (folder / METRICS).exists() else "not begun"), ""


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = read_bytes(path, _LONGEST).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def write_table(folder: Path, results: Sequence[PointResult], metrics: Sequence[str]) -> Path:
    """Write the table of a sweep as it is now, and return its path. Raise OSError."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = [name for name, _ in results[0].point.values]
    reported = [f"{metric}.{which}" for metric in metrics for which in ("last", "best")]
    table.writerow([*names, *reported, "steps", "seconds", "outcome", "folder", "error"])
    for result in results:
        values = [value for _, value in result.point.values]
        numbers = [side.get(metric, "") for metric in metrics for side in (result.last, result.best)]
        row = [*values, *numbers, result.steps, round(result.seconds, 3), result.outcome, result.folder, result.error]
        table.writerow(row)
    path = folder / TABLE
    write_text_atomically(path, text.getvalue())
    return path


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of some finite values and their standard deviation, 0 for a single one."""
    known = [value for value in values if isfinite(value)]
    mean = sum(known) / len(known)
    if len(known) < 2:
        return mean, 0.0
    return mean, (sum((value - mean) ** 2 for value in known) / (len(known) - 1)) ** 0.5
