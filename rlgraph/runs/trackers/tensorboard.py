"""TensorBoard: event files in the folder of the run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlgraph.runs.trackers.base import TrackedRun, Tracker, TrackerSpec

FOLDER = "tensorboard"


class EventFile:
    """A writer of an event file. TensorBoard's own writer would hide a full disk in a thread."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = Event
        self._summary: Any = Summary
        self._metadata: Any = SummaryMetadata
        self._tensor: Any = TensorProto
        folder = run.folder / FOLDER
        folder.mkdir(exist_ok=True)
        self.id, self.where = FOLDER, f"`tensorboard --logdir {folder}`"
        self._last = run.first - 1
        # Files are read in the order of their names.
        began_s = time.time()
        name = f"events.out.tfevents.{int(began_s)}.{time.time_ns() % 10**9:09d}.{run.first:09d}.rlgraph"
        self._writer: Any = RecordWriter((folder / name).open("wb"))
        self._write(Event(wall_time=began_s, file_version="brain.Event:2"))
        if run.first > 1:
            # What earlier files have from there on no longer counts.
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=began_s, step=run.first, session_log=start))
        if run.first == 1:
            text = f"```\n{run.program}\n```" if run.program else ""
            settings = _markdown(("name", "value"), [*run.configuration.items()])
            for tag, content in (("program", text), ("configuration", settings)):
                if content:
                    self._write(Event(wall_time=began_s, step=run.first, summary=self._text(tag, content)))

    def metrics(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        self._last = step
        values = [self._summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
        self._write(self._event(wall_time=time_s, step=step, summary=self._summary(value=values)))

    def samples(self, step: int, time_s: float, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        table = self._text("samples", _markdown(columns, rows))
        self._write(self._event(wall_time=time_s, step=step, summary=table))

    def picture(self, name: str, png: bytes) -> None:
        image = self._summary.Image(encoded_image_string=png)
        values = [self._summary.Value(tag=name, image=image)]
        self._write(self._event(wall_time=time.time(), step=self._last, summary=self._summary(value=values)))

    def model(self, name: str, folder: Path) -> None:
        raise NotImplementedError

    def close(self, outcome: str) -> None:
        self._writer.close()

    def _text(self, tag: str, content: str) -> Any:
        """Return a text for the plugin that shows Markdown."""
        metadata = self._metadata(plugin_data=self._metadata.PluginData(plugin_name="text"))
        tensor = self._tensor(dtype="DT_STRING", string_val=[content.encode()])
        return self._summary(value=[self._summary.Value(tag=tag, metadata=metadata, tensor=tensor)])

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table of Markdown."""
    lines = [columns, ["---"] * len(columns), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("`", "&#96;"), ("\n", "<br>")):
        text = text.replace(sign, written)
    return text


def open_run(run: TrackedRun) -> Tracker:
    """Open an event file in the folder of a run."""
    return EventFile(run)


SPEC = TrackerSpec(
    "tensorboard",
    "files that TensorBoard shows",
    "tensorboard",
    open_run,
    folder=FOLDER,
    keeps_models=False,
    replaces_steps=True,
)
