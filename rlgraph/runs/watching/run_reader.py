"""Reads what a run has written so far, for its page; the run may be at work."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Mapping
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, quoted_list
from rlgraph.files import failure_reason
from rlgraph.runs.folder import EVENTS, HOW, METRICS
from rlgraph.runs.jsonlines import decode_nonfinite
from rlgraph.runs.samples import SAMPLES
from rlgraph.runs.watching.bins import bin_starts, binned_curve, round_numbers
from rlgraph.runs.watching.growing_file import GrowingFile

SHOWN_EVENTS = 500
"""How many events the page lists, the newest."""
_LISTED = frozenset({"run_started", "checkpoint_saved", "restarted", "note", "run_ended"})


class MetricColumns:
    """Numbers by step, a column for each name; NaN where a step has none."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.values: dict[str, array[float]] = {}

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add the numbers of a step. It takes the place of those from that step on, which were run again."""
        while self.steps and self.steps[-1] >= step:
            self.steps.pop()
            for column in self.values.values():
                column.pop()
        for name in numbers:
            if name not in self.values:
                self.values[name] = array("d", [nan]) * len(self.steps)
        self.steps.append(step)
        for name, column in self.values.items():
            column.append(numbers.get(name, nan))


class RunReader:
    """The reader of one run's folder. Threads may share it."""

    def __init__(self, path: Path) -> None:
        """Raise UsageMistake if it is no folder of a run."""
        check_run_folder(path)
        self.path = path
        self.name = path.resolve().name
        self._lock = threading.Lock()
        self._metrics_file = GrowingFile(path / METRICS, self._forget_metrics)
        self._events_file = GrowingFile(path / EVENTS, self._forget_events)
        self._forget_metrics()
        self._forget_events()

    def _forget_metrics(self) -> None:
        self.metrics = MetricColumns()
        self.not_finite: dict[str, int] = {}
        """The first step in which each metric was NaN or infinite."""

    def _forget_events(self) -> None:
        self.work, self.spreads = MetricColumns(), dict[str, MetricColumns]()
        self.events: list[dict[str, Any]] = []
        self.started: dict[str, Any] = {}
        self.ended: dict[str, Any] | None = None
        self.last_s = 0.0

    def stamp(self) -> list[int]:
        """Return numbers that change when the folder has more to show."""
        return [_size(self.path / name) for name in (METRICS, EVENTS, SAMPLES)]

    def page_data(self) -> dict[str, Any]:
        """Return all that the page shows of the run but its samples, as plain data of a bounded size."""
        with self._lock:
            self._read_on()
            return self._view()

    def _read_on(self) -> None:
        for record in self._metrics_file.new_records():
            self._add_metrics(decode_nonfinite(record))
        for event in self._events_file.new_records():
            try:
                self._add_event(event)
            except (LookupError, TypeError, ValueError):
                self._events_file.damaged += 1

    def _add_metrics(self, record: Mapping[str, Any]) -> None:
        step = record.get("step")
        if not isinstance(step, int):
            self._metrics_file.damaged += 1
            return
        numbers = {
            name: float(value)
            for name, value in record.items()
            if isinstance(value, (int, float)) and name != "step" and not isinstance(value, bool)
        }
        for name, value in numbers.items():
            if not isfinite(value):
                self.not_finite.setdefault(name, step)
        self.metrics.add(step, numbers)

    def _add_event(self, event: dict[str, Any]) -> None:
        kind, step = event["kind"], int(event["step"])
        self.last_s = max(self.last_s, float(event["time_s"]))
        if kind == "step_done":
            self.work.add(step, {name: float(seconds) for name, seconds in event["work_s"].items()})
            for name, spread in event["scores"].items():
                quantiles = {str(place): float(number) for place, number in enumerate(spread)}
                self.spreads.setdefault(name, MetricColumns()).add(step, quantiles)
        if kind == "run_started":
            self.started = event
        self.ended = event if kind == "run_ended" else None
        if kind in _LISTED:
            self.events.append(event)
            del self.events[:-SHOWN_EVENTS]

    def _view(self) -> dict[str, Any]:
        starts = bin_starts(len(self.metrics.steps))
        steps = self.metrics.steps
        predicted = self.started.get("predicted_s", {})
        return {
            "name": self.name,
            "path": str(self.path),
            "program": str(self.started.get("program", "")),
            "settings": _settings(self.path),
            "steps": steps[-1] if steps else 0,
            "planned": sum(self.started.get("phases", {}).values()),
            "last_s": self.last_s,
            "ended": self.ended and {name: str(self.ended.get(name, "")) for name in ("outcome", "text")},
            "damaged": self._metrics_file.damaged + self._events_file.damaged,
            "x": _steps_of(self.metrics, starts),
            "metrics": {name: binned_curve(values, starts) for name, values in self.metrics.values.items()}
            if len(starts)
            else {},
            "not_finite": self.not_finite,
            "spreads": {name: _spread(columns) for name, columns in self.spreads.items()},
            "work": self._work_view(),
            "predicted": {str(name): float(seconds) for name, seconds in predicted.items()},
            "events": self.events[::-1],
            "samples": _size(self.path / SAMPLES) > 0,
        }

    def _work_view(self) -> dict[str, Any]:
        starts = bin_starts(len(self.work.steps), 120)
        if not len(starts):
            return {"x": [], "seconds": {}, "last": {}}
        # The first steps warm up: what is compared with a prediction are the last ones.
        last = {name: _mean(values[-50:]) for name, values in self.work.values.items()}
        seconds = {name: binned_curve(values, starts)["mean"] for name, values in self.work.values.items()}
        return {"x": _steps_of(self.work, starts), "seconds": seconds, "last": last}


def check_run_folder(path: Path) -> None:
    """Raise UsageMistake if a path is no folder of a run."""
    if (path / METRICS).is_file():
        return
    hint = f"give the folder that a run wrote, which has `{METRICS}` in it"
    try:
        inside = sorted(entry.name for entry in path.iterdir() if (entry / METRICS).is_file())
        why = f"there is no `{METRICS}` in it"
        if inside:
            shown = quoted_list([str(path / name) for name in inside[-3:]], "and")
            hint = f"there are runs in it: give {shown}" if len(inside) < 4 else f"give runs in it, such as {shown}"
    except OSError as error:
        why = failure_reason(error)
    raise UsageMistake(Diagnostic("E0876", f"`{path}` is not the folder of a run: {why}", NO_SPAN, hint))


def _spread(columns: MetricColumns) -> dict[str, Any]:
    """Return the quantiles of a score by step: of each bin the least, the means of those between, and the greatest."""
    starts = bin_starts(len(columns.steps), 200)
    names = sorted(columns.values, key=int)
    parts = [binned_curve(columns.values[name], starts) for name in names]
    which = ["min", *["mean"] * (len(parts) - 2), "max"]
    quantiles = [part[key] for part, key in zip(parts, which, strict=True)]
    return {"x": _steps_of(columns, starts), "quantiles": quantiles}


def _steps_of(columns: MetricColumns, starts: np.ndarray) -> list[int]:
    """Return the step in the middle of each bin."""
    if not len(starts):
        return []
    ends = np.append(starts[1:], len(columns.steps)) - 1
    return [columns.steps[int(place)] for place in (starts + ends) // 2]


def _mean(values: array[float]) -> float | None:
    numbers = np.asarray(values)
    numbers = numbers[np.isfinite(numbers)]
    return round_numbers([numbers.mean()], [False])[0] if len(numbers) else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _settings(path: Path) -> dict[str, str]:
    """Return how the run was begun: what it was given, as texts."""
    try:
        how = json.loads((path / HOW).read_text("utf-8"))
        chosen = {name: how.get(name) for name in ("program", "seed", "backend", "save_every", "device")}
        given = {**chosen, **{f"set {name}": value for name, value in how.get("set", {}).items()}}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    return {name: str(value) for name, value in given.items() if value is not None}
