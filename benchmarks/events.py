"""What a run's events and samples cost the controller of a run on Ray.

    python benchmarks/events.py
    python benchmarks/events.py --ranks 1025 --kept 256 --profile

The controller of `controller.py --ranks`: GRPO of a model of 70B, 16,384 rows a step in 8 mini-batches, and processes
that answer at once. Events go where those of a run go: into a folder, and to a display, whose lines go nowhere here.
Samples are read as on Ray: identities and scores of all rows, texts of those that are kept. The least of
several steps is shown, since a busy machine adds to the others; of samples it is CPU time, of events, which come from
many threads in pieces of microseconds, it is not.

    events    milliseconds of a step in which events are made, counted and written
    samples   milliseconds in which scores of all rows are read, rows are chosen and their texts are read
    step s    seconds that a step of the program is predicted to take with the plan that is chosen for as many H100
    share     what both are of it
    of cpu    what both are of the controller's CPU time
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pickle
import pstats
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np
import torch

from benchmarks.at_once import HEADS, NODE, PROMPTS, STAGES, Controlled, compiled_large, grpo
from rlgraph.backends.frame import Frame
from rlgraph.backends.ray.piece_store import Piece, to_wire
from rlgraph.backends.ray.shown_rows import ShownRowReader
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.samples import RowTexts, ShownSamples
from rlgraph.ir.types import Axis
from rlgraph.ir.types import Tensor as TensorType
from rlgraph.runs.events import EventStream
from rlgraph.runs.folder import RunFolder
from rlgraph.runs.observer import InterruptHandler, RunObserver
from rlgraph.runs.progress import LinesDisplay
from rlgraph.runs.recorder import Recorder
from rlgraph.runs.run import _record as step_record

ANSWER = "Let us add the numbers one after the other, and see what comes of it. " * 30
"""Some 2,000 characters: an answer of 500 tokens."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[257], help="processes, the host among them")
    parser.add_argument("--steps", type=int, default=9, help="that are measured")
    parser.add_argument("--kept", type=int, default=32, help="samples of a step, as `--keep-samples`")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each result")
    return parser.parse_args()


class TimedObserver(RunObserver):
    """The observer of a run, which counts the seconds that it takes, whatever thread tells it something."""

    seconds = 0.0

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in TOLD:
            return value

        def timed(*args: Any, **named: Any) -> Any:
            if getattr(_INSIDE, "timed", False):
                return value(*args, **named)
            _INSIDE.timed, began = True, time.perf_counter()
            try:
                return value(*args, **named)
            finally:
                self.seconds += time.perf_counter() - began
                _INSIDE.timed = False

        return timed


TOLD = {"node_started", "node_done", "node_progress", "processes_worked", "weights_sent", "add_span", "step_done"}
"""What backends call."""
_INSIDE = threading.local()
"""Whether this thread is counted already: these methods call one another."""


class ShownAtOnce(Controlled):
    """Reads samples of processes that answer at once."""

    sample_seconds = 0.0

    def remote_row_reader(self) -> ShownRowReader:
        return ShownRowReader(self.processes)

    def shown_samples(self, frame: Frame) -> ShownSamples:
        answers, pack = self.processes.answers, self.processes.pack_rows
        answers[Worker.row_texts] = _texts
        self.processes.pack_rows = _rows
        before, began = self.processes.seconds, time.thread_time()
        try:
            return super().shown_samples(frame)
        finally:
            self.sample_seconds += time.thread_time() - began - (self.processes.seconds - before)
            self.processes.pack_rows = pack


_SENT: dict[tuple[str, int], bytes] = {}
"""Pickled rows by name and number: they are made once."""


def _rows(who: Any, parcels: Sequence[Any]) -> list[Callable[[], Any]]:
    return [partial(_read, [_sent(key, places) for key, places, _ in asked]) for asked in parcels]


def _sent(key: Any, places: Any) -> tuple[Any, Any, bytes]:
    name, count = str(key[-1]), len(places)
    if (name, count) not in _SENT:
        numbers: Any = torch.rand(count)
        if name.startswith("ids:"):
            numbers = tuple(("prompts", 0, at // 16, at % 16) for at in range(count))
        piece = Piece(TensorType("any", Axis("rollout", "rollout")), numbers, (None,))
        _SENT[name, count] = pickle.dumps(to_wire(piece), pickle.HIGHEST_PROTOCOL)
    return key, places, _SENT[name, count]


def _read(parts: Sequence[tuple[Any, Any, bytes]]) -> list[Any]:
    return [(key, places, pickle.loads(sent)) for key, places, sent in parts]


def _texts(who: Any, wanted: Sequence[Any]) -> list[list[RowTexts]]:
    row = RowTexts("What is 1 + 1?", ANSWER, 500, 3)
    return [
        [row] * len(np.arange(places.start, places.stop) if isinstance(places, range) else places)
        for _, places, _ in wanted
    ]


def measured(ranks: int, steps: int, kept: int, profile: bool) -> dict[str, float]:
    half = ranks // 2
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.claim_folder(Path(folder) / "run")
        display = LinesDisplay(io.StringIO())
        observer = TimedObserver(display, InterruptHandler(display), stream=EventStream([Recorder(run, kept), display]))
        backend = grpo(half // (HEADS * STAGES), half // HEADS, observer=observer, kind=ShownAtOnce)
        backend.most_samples = kept
        observer.run_started({"step": steps + 2})
        events, samples, cpu = [], [], []
        profiler = cProfile.Profile()
        coming = backend.run_steps(2 + steps)
        for number in range(2 + steps):
            backend.processes.forget()
            observer.seconds = backend.sample_seconds = 0.0
            began = time.process_time()
            if profile and number > 1:
                profiler.enable()
            step = next(coming)
            observer.step_done(step, step_record(step, False))
            profiler.disable()
            cpu.append(time.process_time() - began - backend.processes.seconds)
            events.append(observer.seconds)
            samples.append(backend.sample_seconds)
        written = sum(path.stat().st_size for path in run.path.iterdir() if path.is_file()) / (2 + steps)
        run.close()
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    # The first steps plan the ways of the weights, and open files.
    event_s, sample_s, cpu_s = (min(numbers[2:]) for numbers in (events, samples, cpu))
    step_s = predicted_step_s(ranks)
    return {
        "ranks": ranks,
        "rows": PROMPTS * 16,
        "events_s": event_s,
        "samples_s": sample_s,
        "cpu_s": cpu_s,
        "step_s": step_s,
        "share": (event_s + sample_s) / step_s,
        "share_of_cpu": (event_s + sample_s) / cpu_s,
        "written_bytes": written,
    }


def predicted_step_s(ranks: int) -> float:
    """Return the seconds that a step of the program is predicted to take with the plan that is chosen for as many H100
    as there are processes with devices."""
    made = compiled_large(cluster=f"{max(1, (ranks - 1) // NODE)}x{NODE}:h100-80gb")
    return float(made.plan_file_sections["predicted"]["seconds"])


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    if not options.json:
        print(
            f"{'ranks':>8}{'rows':>8}{'events ms':>12}{'samples ms':>12}{'cpu ms':>10}{'step s':>10}"
            f"{'share':>10}{'of cpu':>10}{'kB a step':>12}"
        )
    for ranks in options.ranks:
        found = measured(ranks, options.steps, options.kept, options.profile)
        if options.json:
            print(json.dumps({**found, "what": "events"}), flush=True)
            continue
        print(
            f"{ranks:>8}{found['rows']:>8,.0f}{1e3 * found['events_s']:>12.1f}{1e3 * found['samples_s']:>12.1f}"
            f"{1e3 * found['cpu_s']:>10.0f}{found['step_s']:>10.1f}{found['share']:>10.3%}"
            f"{found['share_of_cpu']:>10.1%}{found['written_bytes'] / 1e3:>12.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
