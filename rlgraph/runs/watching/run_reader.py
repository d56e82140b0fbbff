"""Reads what a run has written so far, for its page; the run may be at work."""

from __future__ import annotations

import json
import threading
from array import array
from collections import deque
from collections.abc import Mapping
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, quoted_list
from rlgraph.files import failure_reason
from rlgraph.runs.folder import EVENTS, METRICS, REPEATS
from rlgraph.runs.folder_lock import HOW
from rlgraph.runs.growing_lines import GrowingRecords
from rlgraph.runs.jsonlines import decode_nonfinite
from rlgraph.runs.plan_picture import PICTURE
from rlgraph.runs.samples import SAMPLES
from rlgraph.runs.watching.bins import bin_starts, binned_curve, round_numbers
from rlgraph.runs.watching.plan_view import RECENT, StepNumbers, memory_view, plan_svg, recent_means, step_numbers

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
        self._metrics_file = GrowingRecords(path / METRICS, self._forget_metrics)
        self._events_file = GrowingRecords(path / EVENTS, self._forget_events)
        self._forget_metrics()
        self._forget_events()

    def _forget_metrics(self) -> None:
        self.metrics = MetricColumns()
        self.not_finite: dict[str, int] = {}
        """The first step in which each metric was NaN or infinite."""

    def _forget_events(self) -> None:
        self.work, self.ages, self.spreads = MetricColumns(), MetricColumns(), dict[str, MetricColumns]()
        self.recent: deque[StepNumbers] = deque(maxlen=RECENT)
        """Of the last steps."""
        self.memory: dict[str, dict[str, int]] = {}
        """The peak bytes of processes, by pool."""
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
            except (LookupError, TypeError, ValueError, AttributeError):
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
            numbers = step_numbers(event)
            self.work.add(step, {name: float(seconds) for name, seconds in event["work_s"].items()})
            for name, spread in event["scores"].items():
                quantiles = {str(place): float(number) for place, number in enumerate(spread)}
                self.spreads.setdefault(name, MetricColumns()).add(step, quantiles)
            if event.get("ages"):
                self.ages.add(step, {str(int(age)): float(rows) for age, rows in event["ages"].items()})
            for pool, peaks in event.get("memory_bytes", {}).items():
                self.memory.setdefault(pool, {}).update({name: int(size) for name, size in peaks.items()})
            self.recent.append(numbers)
        if kind == "run_started":
            self.started, self.memory = event, {}
        if kind != "note":
            # A tracker says behind the end where it has sent the run.
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
            "ages": self._ages_view(),
            **self._plan_view(),
            "predicted": {str(name): float(seconds) for name, seconds in predicted.items()},
            "events": self.events[::-1],
            "samples": _size(self.path / SAMPLES) > 0,
        }

    def _plan_view(self) -> dict[str, Any]:
        """Return the picture of the plan, what pools waited for, and the memory of processes."""
        means = recent_means(self.recent)
        text = _text(self.path / PICTURE)
        svg, predicted = plan_svg(text, means, self.memory) if text else ("", {})
        return {
            "step_s": means.measured.step_s,
            "plan": svg,
            "waits": means.waits,
            "memory": memory_view(self.memory, predicted),
        }

    def _ages_view(self) -> dict[str, Any]:
        """Return how many rows of each age were trained on, by step and in all."""
        starts, names = bin_starts(len(self.ages.steps), 200), sorted(self.ages.values, key=int)
        if not len(starts):
            return {"x": [], "rows": {}, "total": {}}
        values = {name: np.nan_to_num(np.asarray(self.ages.values[name])) for name in names}
        rows = {name: binned_curve(numbers, starts)["mean"] for name, numbers in values.items()}
        total = {name: int(numbers.sum()) for name, numbers in values.items()}
        return {"x": _steps_of(self.ages, starts), "rows": rows, "total": total}

    def _work_view(self) -> dict[str, Any]:
        starts = bin_starts(len(self.work.steps), 120)
        if not len(starts):
            return {"x": [], "seconds": {}, "last": {}}
        # The first steps warm up: what is compared with a prediction are the last ones.
        last = {name: _mean(values[-50:]) for name, values in self.work.values.items()}
        seconds = {name: binned_curve(values, starts)["mean"] for name, values in self.work.values.items()}
        return {"x": _steps_of(self.work, starts), "seconds": seconds, "last": last}


def runs_of(path: Path) -> list[Path]:
    """Return the folders of the runs that a path stands for: those of a sweep that have begun, or the path itself."""
    if (path / METRICS).exists() or not (path / REPEATS).is_file():
        return [path]
    begun = sorted((folder for folder in path.iterdir() if (folder / METRICS).is_file()), key=_begun_s)
    return begun or [path]


def _begun_s(run: Path) -> float:
    """Return when a run began, so that the runs of a sweep are in its order."""
    how = run / HOW
    return how.stat().st_mtime if how.exists() else float("inf")


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


def _text(path: Path) -> str:
    """Return what a file has; empty where there is none."""
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""
