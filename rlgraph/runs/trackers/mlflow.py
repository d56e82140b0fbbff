"""MLflow. Where it logs to is said by its own variables (`MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME`)."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlgraph.runs.trackers.base import FAILED, FINISHED, TrackedRun, Tracker, TrackerSpec

_LONGEST = 5000
"""The most characters of a parameter's value that every version takes."""
_AT_ONCE = 100
"""The most parameters of one request."""
_STATUS = {FINISHED: "FINISHED", FAILED: "FAILED"}


class MlflowRun:
    """A run of MLflow."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
        if run.id is None:
            experiment = self._client.get_experiment_by_name(name)
            number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
            opened = self._client.create_run(number, run_name=run.name)
        else:
            self._client.set_terminated(run.id, "RUNNING")
            opened = self._client.get_run(run.id)
        self.id = str(opened.info.run_id)
        self.where = f"{self._client.tracking_uri}, run {self.id} of the experiment `{name}`"
        # A parameter keeps its first value: one that a resumed run has changed stays as it was.
        known = opened.data.params
        new = [Param(key, _cut(value)) for key, value in run.configuration.items() if key not in known]
        for start in range(0, len(new), _AT_ONCE):
            self._client.log_batch(self.id, params=new[start : start + _AT_ONCE])
        if run.program and run.id is None:
            self._client.log_text(self.id, run.program, "program.rlf")

    def metrics(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        at_ms = int(1000 * time_s)
        self._client.log_batch(self.id, metrics=[self._metric(key, n, at_ms, step) for key, n in numbers.items()])

    def samples(self, step: int, time_s: float, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        # A file for each step: MLflow would read and write a common one anew for each.
        table = {"columns": list(columns), "data": [[_plain(value) for value in row] for row in rows]}
        self._client.log_dict(self.id, table, f"samples/step-{step:06d}.json")

    def picture(self, name: str, png: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.png"
            path.write_bytes(png)
            self._client.log_artifact(self.id, str(path), "pictures")

    def model(self, name: str, folder: Path) -> None:
        self._client.log_artifacts(self.id, str(folder), f"models/{name}")

    def close(self, outcome: str) -> None:
        self._client.set_terminated(self.id, _STATUS.get(outcome, "KILLED"), int(1000 * time.time()))


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _plain(value: object) -> object:
    """Return a value that JSON has."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def open_run(run: TrackedRun) -> Tracker:
    """Open a run of MLflow."""
    return MlflowRun(run)


SPEC = TrackerSpec("mlflow", "MLflow", "mlflow", open_run)
