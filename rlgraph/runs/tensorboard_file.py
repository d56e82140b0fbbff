"""Writes the event files that TensorBoard reads."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


class TensorBoardFile:
    """A writer of TensorBoard event files. TensorBoard's own writer would hide a full disk in a thread."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    @classmethod
    def open(cls, folder: Path, first: int) -> TensorBoardFile:
        """Open the event file; nothing is written if tensorboard is not installed. first: the first step to be written;
        what earlier files have from there on no longer counts."""
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            return cls(None)
        import time

        folder.mkdir(exist_ok=True)
        # Files are read in the order of their names.
        file = (folder / f"events.out.tfevents.{int(time.time())}.{first:09d}.rlgraph").open("wb")
        board = cls(RecordWriter(file))
        board.write_event(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if first > 1:
            board.write_event(Event(wall_time=time.time(), step=first, session_log=SessionLog(status=SessionLog.START)))
        return board

    def write_step(self, record: Mapping[str, Any]) -> None:
        if self.writer is None:
            return
        import time

        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {key: value for key, value in record.items() if isinstance(value, (int, float)) and key != "step"}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self.write_event(Event(wall_time=time.time(), step=record["step"], summary=Summary(value=values)))

    def write_event(self, event: Any) -> None:
        self.writer.write(event.SerializeToString())
        self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            with suppress(OSError):
                self.writer.close()
