"""Weights & Biases. Where it logs to is said by its own variables (`WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE`)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlgraph.runs.trackers.base import FINISHED, TrackedRun, Tracker, TrackerSpec


class WandbRun:
    """A run of wandb, whose files are in the folder of the run."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        # What it prints would stand amid the run's lines, and what the run prints is kept by whoever wants it.
        settings = wandb.Settings(silent=True, console="off", save_code=False)
        self._wandb: Any = wandb
        self._last = run.first - 1
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or run.project,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.folder),
            config={**run.configuration, "program_text": run.program},
            settings=settings,
        )
        self.id = str(self._run.id)
        offline = bool(self._run.settings._offline)
        folder = Path(self._run.dir).parent
        self.where = f"`{folder}`, offline; `wandb sync {folder}` sends it" if offline else str(self._run.url)

    def metrics(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        # A step is complete when the next one begins: what follows it, as samples do, belongs to it.
        self._last = step
        self._run.log(dict(numbers), step=step)

    def samples(self, step: int, time_s: float, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self._run.log({"samples": self._wandb.Table(list(columns), [list(row) for row in rows])}, step=step)

    def picture(self, name: str, png: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.png"
            path.write_bytes(png)
            self._run.log({name: self._wandb.Image(str(path))}, step=self._last)

    def model(self, name: str, folder: Path) -> None:
        artifact = self._wandb.Artifact(f"{self.id}-{name}", "model")
        artifact.add_dir(str(folder))
        self._run.log_artifact(artifact)

    def close(self, outcome: str) -> None:
        self._run.finish(exit_code=0 if outcome == FINISHED else 1)


def open_run(run: TrackedRun) -> Tracker:
    """Open a run of wandb."""
    return WandbRun(run)


SPEC = TrackerSpec("wandb", "Weights & Biases", "wandb", open_run, folder="wandb")
