"""Trackio. Where it logs to is said by its own variables (`TRACKIO_PROJECT`, `TRACKIO_SPACE_ID`, `TRACKIO_DIR`)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlgraph.runs.trackers.base import TrackedRun, Tracker, TrackerSpec


class TrackioRun:
    """A run of Trackio."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._trackio: Any = trackio
        self._last = run.first - 1
        project = os.environ.get("TRACKIO_PROJECT") or run.project
        # Trackio finds a run again by its name, and other folders may have that name, too.
        self.id = run.id or f"{run.name}-{os.urandom(3).hex()}"
        configuration = {**run.configuration, "program_text": run.program}
        # Names that begin with an underscore are its own.
        configuration = {name.lstrip("_"): value for name, value in configuration.items()}
        self._run: Any = trackio.init(
            project=project, name=self.id, config=configuration, resume="allow", embed=False, auto_log_cpu=False
        )
        self.where = f"`trackio show --project {project}`, run {self.id}"

    def metrics(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        self._last = step
        self._run.log(dict(numbers), step=step)

    def samples(self, step: int, time_s: float, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        table = [dict(zip(columns, row, strict=True)) for row in rows]
        self._run.log({"samples": self._trackio.Table(data=table)}, step=step)

    def picture(self, name: str, png: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.png"
            path.write_bytes(png)
            self._run.log({name: self._trackio.Image(str(path))}, step=self._last)

    def model(self, name: str, folder: Path) -> None:
        self._run.log_artifact(str(folder), name=f"{self.id}-{name}", type="model")

    def close(self, outcome: str) -> None:
        self._run.finish()


def open_run(run: TrackedRun) -> Tracker:
    """Open a run of Trackio."""
    return TrackioRun(run)


SPEC = TrackerSpec("trackio", "Trackio", "trackio", open_run)
