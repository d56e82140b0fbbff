"""What a display shows of a step that goes on: how far the node at work is, and about how long the run takes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from programs_on_disk import write_tiny
from rich.console import Console

import rlgraph
from rlgraph.backends.engines.meter import WorkMeter
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.steps import SilentObserver, StepResult
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.graph import Node, Value
from rlgraph.ir.types import StateHandle
from rlgraph.runs.observer import InterruptHandler, RunObserver
from rlgraph.runs.progress import BETWEEN_LINES_S, LinesDisplay, format_duration
from rlgraph.runs.progress_bar import BarDisplay

SAMPLE = Node("generate", outputs=(Value("rollout", StateHandle("buffer", "rollout")),))
TRAIN = Node("train")


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_without_a_terminal_a_line_tells_every_so_often_what_a_step_does() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = LinesDisplay(stream, clock)
    watch = RunObserver(lines, InterruptHandler(lines))
    watch.run_started({"warm": 2, "step": 3}, 1)
    watch.node_started(SAMPLE)
    clock.seconds = BETWEEN_LINES_S - 1
    watch.node_progress(SAMPLE, 10, 512, "row", 200)
    assert stream.getvalue() == ""
    clock.seconds = 40
    watch.node_progress(SAMPLE, 212, 512, "row", 73_200)
    watch.node_progress(SAMPLE, 213, 512, "row", 73_300)
    clock.seconds = 60
    watch.step_done(StepResult(2, "warm", 60.0))
    clock.seconds = 75
    watch.node_started(TRAIN)
    clock.seconds = 95
    watch.node_progress(TRAIN, 3, 8, "micro-batch", 0)
    assert stream.getvalue().splitlines() == [
        "warm 2/2  generate rollout: 212 of 512 rows, 1,830 tok/s  40 s",
        "warm 2/2  60 s",
        # One step took a minute, and three are left, of which one has taken 35 s.
        "step 1/3  train: micro-batch 3 of 8  35 s, about 2 min left",
    ]


def test_a_line_names_no_work_that_is_done_at_once() -> None:
    """What a user waits for are models, functions and environments; a column or a sum has a name of ours."""
    clock, stream = Clock(), io.StringIO()
    lines = LinesDisplay(stream, clock)
    watch = RunObserver(lines, InterruptHandler(lines))
    watch.run_started({"step": 3}, 0)
    clock.seconds = 40
    for op in ("column", "size", "tensor"):
        watch.node_started(Node(op, outputs=SAMPLE.outputs))
    assert stream.getvalue() == ""
    watch.node_started(Node("call", outputs=(Value("score", StateHandle("buffer", "score")),)))
    assert stream.getvalue() == "step 1/3  call score  40 s\n"


def test_a_time_is_short() -> None:
    assert [format_duration(seconds) for seconds in (4.4, 99, 150, 5999, 9000)] == [
        "4 s",
        "99 s",
        "2 min",
        "100 min",
        "2.5 h",
    ]


def test_a_bar_shows_how_far_the_node_is() -> None:
    bar = BarDisplay()
    bar.live.stop()

    def drawn() -> str:
        console = Console(file=io.StringIO(), width=140)
        console.print(bar.live.get_renderable())
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    watch = RunObserver(bar, InterruptHandler(bar))
    watch.run_started({"step": 4}, 2)
    watch.node_started(SAMPLE)
    watch.node_progress(SAMPLE, 212, 1512, "row", 0)
    assert "generate rollout: 212 of 1,512 rows" in drawn() and "2/4" in drawn()
    watch.node_started(TRAIN, "learn")
    watch.node_progress(TRAIN, 3, 8, "micro-batch", 0, "learn")
    assert drawn().splitlines()[1].split() == ["learn", "train", "micro-batch", "3", "of", "8"]
    watch.node_done(TRAIN, 1.0, 0, "learn")
    assert drawn().splitlines()[1].split() == ["learn", "waits"]
    bar.close()


def test_a_meter_tells_no_more_often_than_it_is_looked_at() -> None:
    clock = Clock()
    meter, told = WorkMeter(clock), list[tuple[int, int, int]]()
    meter.add(1)
    meter.tell = lambda *counts: told.append(counts)
    meter.begin_call(9)
    for at in range(1, 9):
        clock.seconds = at * 0.06
        meter.add(1, 5)
    assert told == [(2, 9, 10), (4, 9, 20), (6, 9, 30), (8, 9, 40)]


class Told(SilentObserver):
    """Notes all progress."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, int, str, int]] = []

    def node_progress(self, node: Node, done: int, total: int, unit: str, tokens: int, pool: str = "") -> None:
        self.told.append((node.op, done, total, unit, tokens))


@pytest.mark.parametrize("threads", [1, 2])
def test_sampling_and_training_tell_how_far_they_are(threads: int, tmp_path: Path) -> None:
    compiled = rlgraph.compile(write_tiny(tmp_path))
    watch = Told()
    backend = LocalBackend(compiled.program, Settings(folder=tmp_path, threads=threads, token_budget=12), watch)
    ticks = iter(range(10**9))
    backend.session.models["actor"].engine.meter._now = lambda: float(next(ticks))  # type: ignore[attr-defined]
    try:
        [step] = backend.run_steps(1)
    finally:
        backend.close()
    sampled = [told for told in watch.told if told[0] == "generate"]
    rows = [told[1] for told in sampled]
    assert rows == sorted(rows) and rows[-1] == 8 and {told[2:4] for told in sampled} == {(8, "row")}
    # Each of eight rows has one to four tokens.
    assert 8 <= sampled[-1][4] <= 32
    trained = [told[1:4] for told in watch.told if told[0] == "train"]
    count = trained[0][1]
    assert count > 1 and sorted(trained) == [(at, count, "micro-batch") for at in range(1, count + 1)]
    assert step.metrics
