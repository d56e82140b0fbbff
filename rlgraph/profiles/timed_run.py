"""Observes some steps of a run, and how long each node of them took.

On a machine that others use, a process waits for a core now and then. Linux counts how long; that time is subtracted,
so that the rest is what the machine would take alone. For processes on Ray it is that of their main threads.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rlgraph.backends.steps import SilentObserver
from rlgraph.ir.graph import Node
from rlgraph.ir.types import StateHandle
from rlgraph.ops import NODES
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.runs.backends import open_backend
from rlgraph.runs.options import RunOptions

MOST_WAITED = 0.9
"""The largest share of a piece of work that can have been waiting for a core: Linux counts both in ticks of its own,
and the fit must not get work of no seconds."""


@dataclass(frozen=True, slots=True)
class TimedWork:
    """A node that was fired, or weights that were synchronized."""

    name: str
    """The name of what the node makes, or `train MODEL` or `sync MODEL`, as a simulation has it."""
    op: str
    start: float
    end: float
    inside: float
    """The seconds in the process that worked longest; the rest is the request and its answer."""
    waited: float = 0.0
    """The seconds in which this process had no core; the other figures leave them out."""

    @property
    def seconds(self) -> float:
        """Return the seconds without those in which the process had no core."""
        return self.end - self.start - self.waited


@dataclass(frozen=True)
class TimedStep:
    """A step whose work was timed."""

    unadjusted_seconds: float
    """The seconds of the step, with those in which processes had no core."""
    waited: float
    """The seconds of `unadjusted_seconds` in which processes had no core."""
    done: tuple[TimedWork, ...]
    """The works in the order in which they ended; loops are left out, but their nodes are included."""

    @property
    def seconds(self) -> float:
        """Return the seconds without those in which processes had no core."""
        return self.unadjusted_seconds - self.waited

    @property
    def idle_seconds(self) -> float:
        """Return the seconds in which nothing was done."""
        busy, until = 0.0, 0.0
        for work in sorted(self.done, key=lambda work: work.start):
            busy += max(0.0, work.end - max(work.start, until))
            until = max(until, work.end)
        return max(0.0, self.unadjusted_seconds - busy - (self.waited - sum(work.waited for work in self.done)))


class CoreWaitReader:
    """A reader of how long processes were ready to run and had no core, by Linux's `/proc/PID/schedstat`."""

    def __init__(self) -> None:
        self.others: Sequence[int] = ()
        """The ids of the other processes; if there are any, this one only sends requests."""

    def wait_seconds(self) -> list[float]:
        """Return the seconds that each process has waited since it began; empty if the system does not say."""
        if self.others:
            return [_waited(f"/proc/{pid}/schedstat") for pid in self.others]
        folder = Path("/proc/self/task")
        return (
            [_waited(f"{folder}/{thread}/schedstat") for thread in sorted(os.listdir(folder))]
            if folder.is_dir()
            else []
        )

    def longest_wait_since(self, before: list[float]) -> float:
        """Return the seconds of the process that waited longest since `before`."""
        return max((now - then for now, then in zip(self.wait_seconds(), before, strict=False)), default=0.0)


def _waited(path: str) -> float:
    """Return the seconds that a file of schedule statistics says its thread has waited."""
    try:
        with open(path) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Stopwatch(SilentObserver):
    """An observer that keeps the works that were done since it was last asked."""

    def __init__(self) -> None:
        self.cores = CoreWaitReader()
        self._begun: dict[int, list[float]] = {}
        self._done: list[TimedWork] = []
        self._inside: dict[int, float] = {}
        """The longest work in each thread since its last node was done, in seconds."""
        self._behind: set[int] = set()
        """The threads whose node waits for weights that were sent before its request."""

    def add_span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        """Record a piece of work in this thread."""
        thread = threading.get_ident()
        self._inside[thread] = max(self._inside.get(thread, 0.0), end - start)
        return 0

    def node_started(self, node: Node, pool: str = "") -> None:
        """Record that this thread begins with a node."""
        self._begun[threading.get_ident()] = self.cores.wait_seconds()
        self._behind.discard(threading.get_ident())

    def node_done(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        """Record that this thread has done a node."""
        inside = self._inside.pop(threading.get_ident(), seconds)
        if threading.get_ident() in self._behind:
            # The request arrived before its weights, so that its own time delayed nothing.
            seconds = inside
        if not NODES[node.op].loop:
            waited = self.cores.longest_wait_since(self._begun[threading.get_ident()])
            self.add_work(work_title(node), node.op, seconds, inside, waited)

    def weights_sent(
        self, model: str, source: str, destination: str, seconds: float, sent_bytes: int, peak_bytes: int
    ) -> None:
        """Record a synchronization of weights."""
        self._inside.pop(threading.get_ident(), None)
        self._behind.add(threading.get_ident())
        self.add_work(f"sync {model}", "sync", seconds, seconds)

    def add_work(self, name: str, op: str, seconds: float, inside: float, waited: float = 0.0) -> None:
        """Add a work that ends now."""
        now = time.perf_counter()
        inside = min(inside, seconds)
        waited = min(waited, MOST_WAITED * inside)
        self._done.append(TimedWork(name, op, now - seconds, now, inside - waited, waited))

    def take_works(self) -> tuple[TimedWork, ...]:
        """Return the works that were done since the last call."""
        works, self._done = tuple(self._done), []
        return works


@dataclass
class TimedRun:
    """A run that progresses step by step."""

    steps: Iterator[object]
    watch: Stopwatch
    timed_steps: list[TimedStep] = field(default_factory=list)

    def run_steps(self, count: int = 1) -> None:
        """Run some more steps."""
        cores = self.watch.cores
        for _ in range(count):
            before = cores.wait_seconds()
            step = next(self.steps)
            done, waited = self.watch.take_works(), 0.0 if cores.others else cores.longest_wait_since(before)
            waited = max(waited, sum(work.waited for work in done))
            self.timed_steps.append(TimedStep(step.seconds, waited, done))  # type: ignore[attr-defined]


@contextmanager
def observe_run(compiled: Compilation, options: RunOptions) -> Iterator[TimedRun]:
    """Yield a run whose nodes are timed. Raise ProgramError and RunError like any run."""
    watch = Stopwatch()
    with open_backend(compiled, options, watch) as (backend, _):
        watch.cores.others = _processes(backend)
        steps = backend.run_steps(None)
        watch.take_works()
        try:
            yield TimedRun(steps, watch)
        finally:
            # Steps in flight end before the processes do.
            steps.close()


def _processes(backend: object) -> list[int]:
    """Return the ids of the worker processes of a run on Ray; empty for other runs."""
    if not hasattr(backend, "processes"):
        return []
    import ray

    ids: list[int] = ray.get([handle.pid.remote() for handle in backend.processes.handles.values()])
    return ids


def works_by_occurrence_in_step(seen: Sequence[TimedStep]) -> dict[tuple[str, str, int], list[TimedWork]]:
    """Return the works of steps by name, by operation, and by their repetition in the step."""
    works: dict[tuple[str, str, int], list[TimedWork]] = {}
    for step in seen:
        turns: dict[tuple[str, str], int] = {}
        for work in step.done:
            turn = turns[work.name, work.op] = turns.get((work.name, work.op), -1) + 1
            works.setdefault((work.name, work.op, turn), []).append(work)
    return works


def work_title(node: Node) -> str:
    """Return the name that a simulation has for a node's work."""
    if not NODES[node.op].trains:
        return node.name
    trained = node.outputs[0].type
    assert isinstance(trained, StateHandle)
    return f"train {trained.name}"
