"""Sends what a run's folder has to a tracker, once or while the run goes on.

`trackers/NAME.json` in the folder says what was sent, so that whoever goes on, a resumed run or `rlgraph track`, goes
on with the same run of the tracker, and sends nothing twice.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake
from rlgraph.runs.checkpoint.disk import write_text_atomically
from rlgraph.runs.folder import EVENTS, METRICS, MODELS, PLAN, PROGRAM
from rlgraph.runs.folder_lock import HOW
from rlgraph.runs.growing_lines import GrowingLines
from rlgraph.runs.jsonlines import decode_nonfinite
from rlgraph.runs.samples import SAMPLES, from_json, limit_samples
from rlgraph.runs.shown_samples import prompt_text
from rlgraph.runs.trackers.base import FINISHED, KILLED, TrackedRun, Tracker, TrackerSpec
from rlgraph.runs.trackers.known import STATE

COLUMNS = ("step", "table", "prompt", "answer", "reward", "length", "version", "scores")
"""The columns of a table of samples."""
ROWS = 16
"""The most samples of a step that are sent: the best and the worst among them."""
TABLES = 100
"""About how many steps have a table of samples, however many steps there are."""
LONGEST = 4000
"""The most characters of a prompt or an answer that are sent."""
SAVE_EVERY = 100
"""The steps after which it is written down what was sent, where many are sent at once."""

Pictures = Callable[[], Mapping[str, bytes]]
"""Draws a run's pictures, as PNG by name."""


@dataclass
class Sent:
    """What of a run a tracker has."""

    id: str = ""
    where: str = ""
    step: int = 0
    """The last step that was sent."""
    pictures: bool = False
    models: bool = False


class Sender:
    """The sender of one run to one tracker."""

    def __init__(self, run: Path, spec: TrackerSpec, pictures: Pictures, wait: bool = False) -> None:
        """Lock the run for this tracker. Raise UsageMistake if somebody else sends it. wait: wait for them instead."""
        self.run, self.spec, self._pictures = run, spec, pictures
        self._state = run / STATE / f"{spec.name}.json"
        self._state.parent.mkdir(exist_ok=True)
        self._lock = _locked(self._state.with_suffix(".lock"), run, spec.name, wait)
        self.sent = _read_state(self._state)
        self._metrics, self._samples = GrowingLines(run / METRICS), GrowingLines(run / SAMPLES)
        self._events = GrowingLines(run / EVENTS)
        self._times: dict[int, float] = {}
        """When each step was over."""
        self.outcome, self.planned = KILLED, 0
        self._opened: Tracker | None = None
        self._anew = 0

    def open(self) -> None:
        """Open the tracker; send what describes the run if it has not got that. Raise whatever the tracker raises."""
        self._read_events()
        self._open()

    def _open(self) -> None:
        steps = [_step(line) for line in GrowingLines(self.run / METRICS).new_lines()]
        last = max(steps, default=0)
        if self.spec.replaces_steps:
            self.sent.step = min(self.sent.step, last)
        self._opened = self.spec.open(_described(self.run, self.sent))
        self.sent.id, self.sent.where = self._opened.id, self._opened.where
        self._save()
        if not self.sent.pictures:
            for name, png in self._pictures().items():
                self._opened.picture(name, png)
            self.sent.pictures = True
            self._save()

    def send_new(self) -> int:
        """Send the steps that came since the last call, and return how many. Raise whatever the tracker raises."""
        assert self._opened is not None
        self._read_events()
        records = [_record(line) for line in self._metrics.new_lines()]
        if self._metrics.began_anew != self._anew and self.spec.replaces_steps:
            self._begin_again()
        self._anew = self._metrics.began_anew
        steps = [step for record in records if isinstance(step := record.get("step"), int)]
        tables = self._new_tables(max(steps, default=0))
        count = 0
        for record in records:
            step = record.get("step")
            if not isinstance(step, int) or step <= self.sent.step:
                continue
            time_s = self._times.get(step, time.time())
            numbers = {name: float(value) for name, value in record.items() if _is_number(name, value)}
            self._opened.metrics(step, time_s, numbers)
            if step in tables:
                self._opened.samples(step, time_s, COLUMNS, tables[step])
            self.sent.step = step
            count += 1
            if count % SAVE_EVERY == 0:
                self._save()
        if count:
            self._save()
        return count

    def _begin_again(self) -> None:
        """Open the tracker anew: what it had in the run's folder is gone, or is of steps that are run again."""
        assert self._opened is not None
        self._opened.close(KILLED)
        self.sent.step, self.sent.pictures = 0, False
        self._open()

    @property
    def is_over(self) -> bool:
        """Whether the run has said that it is over."""
        return self.outcome != KILLED

    def finish(self, models: bool = False) -> None:
        """Send the trained models if these are wanted, and close the tracker. Raise whatever the tracker raises."""
        assert self._opened is not None
        if models and self.spec.keeps_models and not self.sent.models:
            for folder in saved_models(self.run):
                self._opened.model(folder.name, folder)
                self.sent.models = True
        self._opened.close(self.outcome)
        self._save()

    def close(self) -> None:
        """Let others send the run."""
        os.close(self._lock)

    def _new_tables(self, last: int) -> dict[int, list[list[object]]]:
        """Return the tables of samples of steps that have one, which came since the last call, up to this step."""
        lines: dict[int, list[bytes]] = {}
        for line in self._samples.new_lines():
            step = _step(line)
            if step > last:
                break
            if self._has_table(step):
                lines.setdefault(step, []).append(line)
        return {step: _rows(step, written) for step, written in lines.items()}

    def _has_table(self, step: int) -> bool:
        """Return whether the samples of a step are sent: of long runs those of some steps are."""
        every = max(1, math.ceil(self.planned / TABLES))
        return step > self.sent.step and (step in (1, self.planned) or step % every == 0)

    def _read_events(self) -> None:
        for line in self._events.new_lines():
            event = _record(line)
            kind, step, time_s = (event.get(name) for name in ("kind", "step", "time_s"))
            if kind == "run_started":
                phases = event.get("phases")
                self.outcome = KILLED
                with suppress(TypeError, AttributeError):
                    self.planned = sum(phases.values())  # type: ignore[union-attr]
            elif kind == "run_ended":
                self.outcome = str(event.get("outcome", FINISHED))
            elif kind == "step_done" and isinstance(step, int):
                self._times[step] = float(time_s) if isinstance(time_s, (int, float)) else time.time()

    def _save(self) -> None:
        # The folder may have been removed while the run went on.
        self._state.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(self._state, json.dumps(asdict(self.sent), indent=1) + "\n")


def saved_models(run: Path) -> list[Path]:
    """Return the folders of a run's trained models."""
    folders = (run / MODELS).iterdir() if (run / MODELS).is_dir() else ()
    return sorted(folder for folder in folders if folder.is_dir() and not folder.name.startswith("."))


def _described(run: Path, sent: Sent) -> TrackedRun:
    program = ""
    for name in (PROGRAM, PLAN):
        with suppress(OSError, ValueError):
            program = (run / name).read_text("utf-8")
            break
    return TrackedRun(
        run.resolve().name,
        _project(program, run),
        run,
        configuration_of(run),
        program,
        sent.id or None,
        sent.step + 1,
    )


def _project(program: str, run: Path) -> str:
    """Return the name of a run's program."""
    for line in program.splitlines():
        word, _, name = line.partition(" ")
        if word == "algorithm" and name.strip():
            return name.strip()
    for event in map(_record, GrowingLines(run / EVENTS).new_lines()):
        if isinstance(told := event.get("program"), str) and told:
            return told
    return "rlgraph"


def configuration_of(run: Path) -> dict[str, object]:
    """Return how a run was begun, by names with dots such as `set.n` and `versions.torch`."""
    try:
        how = json.loads((run / HOW).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return dict(_flat(how)) if isinstance(how, dict) else {}


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None and value != []:
            yield f"{before}{name}", json.dumps(value) if isinstance(value, list) else value


def _rows(step: int, lines: list[bytes]) -> list[list[object]]:
    samples = []
    for line in lines:
        with suppress(LookupError, TypeError, ValueError, AttributeError):
            samples.append(from_json(_record(line)))
    return [
        [
            step,
            sample.table,
            prompt_text(sample.prompt)[:LONGEST],
            sample.answer[:LONGEST],
            sample.reward,
            sample.length,
            sample.version,
            json.dumps(dict(sample.scores)),
        ]
        for sample in limit_samples(samples, ROWS)
    ]


def _record(line: bytes) -> dict[str, Any]:
    """Return the record of a line; an empty one if it is none."""
    try:
        record = json.loads(line)
        return decode_nonfinite(record) if isinstance(record, dict) else {}
    except (ValueError, RecursionError):
        return {}


def _step(line: bytes) -> int:
    """Return the step of a line that begins with it, as those of metrics and samples do; 0 for any other."""
    head = line[:40].partition(b'{"step": ')[2].partition(b",")[0].strip(b" }\n")
    return int(head) if head.isdigit() else 0


def _is_number(name: str, value: object) -> bool:
    return name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)


def _read_state(path: Path) -> Sent:
    try:
        record = json.loads(path.read_text("utf-8"))
        return Sent(
            str(record["id"]),
            str(record["where"]),
            int(record["step"]),
            bool(record["pictures"]),
            bool(record["models"]),
        )
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return Sent()


def _locked(path: Path, run: Path, name: str, wait: bool) -> int:
    """Lock a file as long as this process has it open. Raise UsageMistake if another one has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        message = f"another process sends `{run}` to `{name}` now"
        hint = "wait for its end: a run that is tracked sends itself"
        raise UsageMistake(Diagnostic("E0851", message, NO_SPAN, hint)) from None
    except (ImportError, OSError):
        # Some network file systems have no locks.
        pass
    return handle
