"""The events of a run: what happens in it, as records, and the stream that hands them to whoever reads them.

Terminal, files of the run's folder, trackers and the page of `rlgraph watch` are readers, and so is a user's function.
A reader of the user that raises is told nothing more; readers of the run itself may end it, as a full disk does.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake
from rlgraph.ir.graph import Node
from rlgraph.runs.jsonlines import encode_nonfinite, encode_nonfinite_value
from rlgraph.runs.step_measures import StepMeasures

if TYPE_CHECKING:
    from rlgraph.backends.steps import StepResult

GROUP = "rlgraph.events"
"""The group of entry points by which other packages read the events of every run."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run."""

    kind: ClassVar[str] = ""
    """What happened, as a word that is the same in every version."""
    time_s: float = field(default_factory=time.time)
    """When, in seconds since 1970."""
    step: int = 0
    """The step in which it happened, counted from 1; 0 before the first one."""

    def to_json(self) -> dict[str, Any]:
        """Return the event as plain data, as `events.jsonl` has it."""
        plain = {entry.name: _plain(getattr(self, entry.name)) for entry in fields(self)}
        return {"kind": self.kind, **encode_nonfinite(plain)}


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """The run has opened its models, and begins with its first step or goes on."""

    kind = "run_started"
    program: str
    phases: Mapping[str, int]
    """The steps of each phase."""
    done: int = 0
    """The steps that a resumed run had before."""
    predicted_s: Mapping[str, float] = field(default_factory=dict)
    """The seconds of a step that each piece of work was predicted to take; empty without a prediction."""


@dataclass(frozen=True, kw_only=True)
class Opening(Event):
    """What the run opens now, or how far it is with that."""

    kind = "opening"
    what: str


@dataclass(frozen=True, kw_only=True)
class WorkStarted(Event):
    """A node of the graph begins to work on a block of rows."""

    kind = "work_started"
    node: Node
    pool: str = ""
    """The pool that works; empty where there is one process."""


@dataclass(frozen=True, kw_only=True)
class WorkProgress(Event):
    """A node has done a part of its block."""

    kind = "work_progress"
    node: Node
    done: int
    total: int
    unit: str
    """What is counted: "row", "micro-batch"."""
    tokens: int
    """Those that it has generated."""
    pool: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkDone(Event):
    """A node is done with its block."""

    kind = "work_done"
    node: Node
    seconds: float
    tokens: int
    """Those that it has generated."""
    pool: str = ""


@dataclass(frozen=True, kw_only=True)
class WeightsSent(Event):
    """A model's weights went from one group of processes to another."""

    kind = "weights_sent"
    model: str
    source: str
    destination: str
    seconds: float
    sent_bytes: int
    peak_bytes: int
    """The largest buffer that a process needed for it."""


@dataclass(frozen=True, kw_only=True)
class StepDone(Event):
    """A step is over."""

    kind = "step_done"
    phase: str
    seconds: float
    metrics: Mapping[str, Any]
    """The record of the step, as `metrics.jsonl` has it."""
    work_s: Mapping[str, float]
    """The seconds of each piece of work in it, of a loop without those of what runs in it. Pools work at the same time,
    so they may add up to more than the step's own."""
    result: StepResult
    """The step with its samples, its scores' spread and its trace."""
    measures: StepMeasures = field(default_factory=StepMeasures)
    """What came in for each piece of work, which weights travelled, who waited for whom, and peaks of memory."""
    ages: Mapping[str, int] = field(default_factory=dict)
    """How many rows the step trained on, by how many versions their weights were behind; empty where rows are never
    behind."""

    def to_json(self) -> dict[str, Any]:
        """Return the step without its samples, which have a file of their own."""
        return {
            "kind": self.kind,
            "time_s": round(self.time_s, 3),
            "step": self.step,
            "phase": self.phase,
            "seconds": self.seconds,
            "work_s": {name: round(seconds, 6) for name, seconds in self.work_s.items()},
            "scores": {name: [*map(encode_nonfinite_value, spread)] for name, spread in self.result.spreads.items()},
            **self._measured(),
        }

    def _measured(self) -> dict[str, Any]:
        """Return what else was measured; what there is nothing of is left out."""
        measures = self.measures
        waits = {
            pool: {whom: round(seconds, 4) for whom, seconds in waited.items()}
            for pool, waited in measures.waits.items()
        }
        sent = {way: [round(seconds, 6), size] for way, (seconds, size) in measures.weights_sent.items()}
        told = {
            "received_bytes": measures.received_bytes,
            "weights_sent": sent,
            "waits_s": waits,
            "memory_bytes": measures.memory,
            "ages": self.ages,
        }
        return {name: value for name, value in told.items() if value}


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is on the disk. `step` is the one after which it was taken."""

    kind = "checkpoint_saved"
    path: Path


@dataclass(frozen=True, kw_only=True)
class Restarted(Event):
    """The run has lost a process, and goes on by itself from its last checkpoint."""

    kind = "restarted"
    error: str
    text: str
    """From where, and how often it may do so again."""


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """A sentence for whoever looks after the run: a warning, or what it has done about something."""

    kind = "note"
    text: str


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """The run is over, well or not."""

    kind = "run_ended"
    outcome: str
    """One of "finished", "interrupted" and "failed"."""
    text: str = ""
    """Why it failed."""


EVENTS: Mapping[str, type[Event]] = {
    event.kind: event
    for event in (
        RunStarted,
        Opening,
        WorkStarted,
        WorkProgress,
        WorkDone,
        WeightsSent,
        StepDone,
        CheckpointSaved,
        Restarted,
        Note,
        RunEnded,
    )
}
"""Every event by its kind."""

LASTING = frozenset({"run_started", "step_done", "checkpoint_saved", "restarted", "note", "run_ended"})
"""The events that are kept in `events.jsonl`: a line a step, and what is rare."""

Read = Callable[[Event], None]
"""A function that reads events. One comes after the other, from any thread of the run, which waits for it."""


class EventReader:
    """A reader with a method for each kind of event, which by itself does nothing."""

    def __call__(self, event: Event) -> None:
        getattr(self, event.kind)(event)

    def run_started(self, event: RunStarted) -> None: ...
    def opening(self, event: Opening) -> None: ...
    def work_started(self, event: WorkStarted) -> None: ...
    def work_progress(self, event: WorkProgress) -> None: ...
    def work_done(self, event: WorkDone) -> None: ...
    def weights_sent(self, event: WeightsSent) -> None: ...
    def step_done(self, event: StepDone) -> None: ...
    def checkpoint_saved(self, event: CheckpointSaved) -> None: ...
    def restarted(self, event: Restarted) -> None: ...
    def note(self, event: Note) -> None: ...
    def run_ended(self, event: RunEnded) -> None: ...


class NoteKeeper(EventReader):
    """Keeps the sentences that a run tells."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, event: Note) -> None:
        self.notes.append(event.text)

    def restarted(self, event: Restarted) -> None:
        self.notes.append(f"{event.error}\n{event.text}")


class EventStream:
    """The stream of one run's events."""

    def __init__(self, readers: Sequence[Read], guests: Mapping[str, Read] | None = None) -> None:
        """readers: those of the run, which may end it. guests: the user's, by the name by which they are told of."""
        self.readers = list(readers)
        self._guests = dict(guests or {})
        self._lock = threading.RLock()

    def publish(self, event: Event) -> None:
        """Hand an event to all readers."""
        with self._lock:
            for read in self.readers:
                read(event)
            # A copy: one that raises is taken out.
            for name, read in [*self._guests.items()] if self._guests else ():
                try:
                    read(event)
                except Exception as error:
                    del self._guests[name]
                    text = f"{name} raised {_told(error)} on `{event.kind}`; the run goes on and tells it nothing more"
                    self.publish(Note(step=event.step, text=text))


def user_event_readers(on_event: Read | None) -> tuple[dict[str, Read], list[str]]:
    """Return the user's readers by what they are called in a message: a function, and those of installed packages; and
    sentences about packages whose reader cannot be loaded. Raise UsageMistake for what is no function."""
    from importlib.metadata import entry_points

    readers: dict[str, Read] = {}
    broken: list[str] = []
    if on_event is not None:
        if not callable(on_event):
            message = f"`on_event` is {on_event!r:.60}, which cannot be called"
            hint = "give a function of one event: `on_event=lambda event: print(event.kind)`"
            raise UsageMistake(Diagnostic("E0875", message, NO_SPAN, hint))
        readers["`on_event`"] = on_event
    for entry in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        name = f"the reader of events `{entry.name}`"
        try:
            loaded = entry.load()
        except Exception as error:
            broken.append(f"{name} cannot be loaded: `{entry.value}` raises {_told(error)}")
            continue
        if callable(loaded):
            readers[name] = loaded
        else:
            broken.append(f"{name} is no function: `{entry.value}`")
    return readers, broken


def _told(error: Exception) -> str:
    """Return an error with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _plain(value: Any) -> Any:
    if isinstance(value, Node):
        return {"name": value.name, "op": value.op}
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, Path) else value
