"""The reader of a run's events that has the run sent to its trackers while it goes on.

A process for each tracker reads the run's folder and sends what is new, so that the run waits for no server, what a
package prints stands nowhere amid the run's lines, and a run that is killed is closed all the same: the process sees
the end of its input.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rlgraph.errors import NO_SPAN, Diagnostic
from rlgraph.runs.events import Event, EventReader, Note, RunEnded, RunStarted, StepDone
from rlgraph.runs.folder import RunFolder
from rlgraph.runs.trackers.known import STATE

WAIT_S = 30.0
"""How long the end of a run waits for what is not sent yet."""
LONGEST = 300
"""The most characters that are told of why a tracker failed."""
ROOT = Path(__file__).parents[3]
"""The folder from which the process imports rlgraph."""


class TrackerProcess:
    """A process that sends a run to one tracker. Its lines on stdout are records with `note` or `failed`."""

    def __init__(self, run: Path, name: str, models: bool) -> None:
        """Start it. Raise OSError."""
        self.run, self.name = run, name
        (run / STATE).mkdir(exist_ok=True)
        self.log = run / STATE / f"{name}.log"
        words = [sys.executable, "-P", "-m", "rlgraph", "track", str(run), "--to", name, "--live"]
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*words, *["--model"] * models],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": paths},
                # Ctrl-C in a terminal is for the run, which then ends this.
                start_new_session=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        for stream in (self._input, self._output):
            os.set_blocking(stream.fileno(), False)
        self._rest = b""
        self._silent = False
        """Whether nothing more is told of it."""
        self.ended = False

    def wake(self) -> None:
        """Say that there is something new. A process that is slow has been told so already."""
        with suppress(OSError, ValueError):
            os.write(self._input.fileno(), b"\n")

    def news(self) -> list[str]:
        """Return what it has to say since the last call, as sentences."""
        with suppress(BlockingIOError):
            while part := os.read(self._output.fileno(), 1 << 16):
                self._rest += part
            self.ended = True
        *lines, self._rest = self._rest.split(b"\n")
        told: list[str] = []
        for line in lines:
            record = json.loads(line)
            if "note" in record:
                told.append(str(record["note"]))
            if "failed" in record:
                told.append(self._failed(str(record["failed"])))
            self._silent |= "end" in record
        if self.ended:
            # One that was killed, or that its package ended, has not said so.
            told.append(self._failed(f"its process ended with {self._process.wait()}, see `{self.log}`"))
        return [text for text in told if text]

    def end(self) -> None:
        """Say that the run is over."""
        with suppress(OSError):
            self._input.close()

    def wait(self, seconds: float) -> None:
        """Wait until it has something to say, or has ended."""
        select.select([self._output], [], [], max(0.0, seconds))

    def _failed(self, why: str) -> str:
        if self._silent:
            return ""
        self._silent = True
        # Packages tell of a connection in many lines.
        message = f"the run is not sent to `{self.name}` any more: {' '.join(why.split())[:LONGEST]}"
        hint = (
            f"it goes on, and everything is in its folder: `rlgraph track {self.run} --to {self.name}` sends it later"
        )
        warning = Diagnostic("W0851", message, NO_SPAN)
        return f"{warning.severity}[{warning.code}]: {warning.message}; {hint}"


class LiveTracking(EventReader):
    """The reader that starts the processes, tells them of new steps, and waits for them at the end."""

    def __init__(self, folder: RunFolder, names: Sequence[str], models: bool, publish: Callable[[Event], None]) -> None:
        self.folder = folder
        """The folder; a run that begins again after it has lost a process opens it anew."""
        self.names, self.models, self._publish = names, models, publish
        self._processes: list[TrackerProcess] = []
        self._path: Path | None = None
        self._over = False

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if not isinstance(event, Note):
            self._tell(event.step)

    def run_started(self, event: RunStarted) -> None:
        # Steps after a checkpoint to which the run went back are others now.
        self._end(event.step)
        self._start(event.step)

    def step_done(self, event: StepDone) -> None:
        if self._path is not None and self.folder.path != self._path:
            self._end(event.step)
            self._start(event.step)
        for process in self._processes:
            process.wake()

    def run_ended(self, event: RunEnded) -> None:
        # Ctrl-C while this waits is another end of the run.
        if not self._over:
            self._over = True
            self._end(event.step)

    def _start(self, step: int) -> None:
        self._path = self.folder.path
        for name in self.names:
            try:
                self._processes.append(TrackerProcess(self._path, name, self.models))
            except OSError as error:
                self._publish(Note(step=step, text=f"`{name}` gets nothing of this run: {error}"))

    def _end(self, step: int) -> None:
        """End all processes, and wait for them."""
        processes, self._processes = self._processes, []
        for process in processes:
            process.end()
        until_s = time.monotonic() + WAIT_S
        for process in processes:
            self._publish_all(step, process.news())
            while not process.ended and time.monotonic() < until_s:
                process.wait(until_s - time.monotonic())
                self._publish_all(step, process.news())
            if not process.ended:
                text = (
                    f"`{process.name}` still gets what is left, by a process that ends by itself: see `{process.log}`"
                )
                self._publish(Note(step=step, text=text))

    def _tell(self, step: int) -> None:
        for process in self._processes:
            self._publish_all(step, process.news())

    def _publish_all(self, step: int, texts: Sequence[str]) -> None:
        for text in texts:
            self._publish(Note(step=step, text=text))
