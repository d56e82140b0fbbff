"""The reader of a run's events that writes them into its folder."""

from __future__ import annotations

import json

from rlgraph.runs.events import LASTING, Event, StepDone
from rlgraph.runs.folder import RunFolder
from rlgraph.runs.samples import limit_samples, sample_lines


class Recorder:
    """A reader that writes metrics, samples, trace, and the events that last."""

    def __init__(self, folder: RunFolder, kept_samples: int) -> None:
        self.folder = folder
        """The folder; a run that begins again after it has lost a process opens it anew."""
        self.kept_samples = kept_samples

    def __call__(self, event: Event) -> None:
        """Write an event. Raise RunError if the disk is full when a step is over."""
        if event.kind not in LASTING:
            return
        line = json.dumps(event.to_json(), default=str)
        if isinstance(event, StepDone):
            samples = sample_lines(event.step, limit_samples(event.result.samples, self.kept_samples))
            self.folder.append_step(event.metrics, event.result.trace, samples, line)
        else:
            self.folder.append_event(line)
