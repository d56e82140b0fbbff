"""What a run shows of pools and of weights on their way, and models that outlive the processes that trained them."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest
from programs_on_disk import write_tiny
from rich.console import Console

import rlgraph
from rlgraph.backends.steps import StepResult
from rlgraph.ir.graph import Node
from rlgraph.runs.events import EventStream, StepDone
from rlgraph.runs.observer import InterruptHandler, RunObserver
from rlgraph.runs.progress import LinesDisplay
from rlgraph.runs.progress_bar import BarDisplay
from rlgraph.runs.trained_models import RemoteWeights, TrainedModel
from rlgraph.user_code.files import SearchFolders

SAMPLE, TRAIN = Node("generate", (), ()), Node("train", (), ())


def test_a_line_tells_what_weights_cost() -> None:
    stream = io.StringIO()
    lines = LinesDisplay(stream)
    watch = RunObserver(lines, InterruptHandler(lines))
    watch.run_started({"step": 2})
    watch.node_done(SAMPLE, 0.5, 300, "roll")
    watch.weights_sent("actor", "train", "roll", 0.25, 3_000_000, 1_000)
    watch.weights_sent("actor", "train", "judge", 0.25, 500_000, 1_000)
    watch.step_done(StepResult(1, "step", 2.0, {"reward": 0.5}))
    watch.step_done(StepResult(2, "step", 2.0))
    assert stream.getvalue().splitlines() == [
        "step 1/2  reward 0.5  2 s  150 tok/s  sync 0.5 s, 3.5 MB",
        "step 2/2  2 s",
    ]


def test_a_bar_has_a_line_for_each_pool() -> None:
    bar = BarDisplay()
    watch = RunObserver(bar, InterruptHandler(bar))
    bar.live.stop()
    watch.run_started({"step": 2})

    def drawn() -> list[str]:
        console = Console(file=io.StringIO(), width=120)
        console.print(bar.live.get_renderable())
        return [line.strip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]

    assert len(drawn()) == 1
    watch.node_started(SAMPLE, "roll")
    watch.node_started(TRAIN, "train")
    assert [line.split() for line in drawn()[1:]] == [["roll", "generate"], ["train", "train"]]
    watch.node_done(SAMPLE, 2.0, 300, "roll")
    assert [line.split() for line in drawn()[1:]] == [["roll", "waits", "150", "tok/s"], ["train", "train"]]
    bar.close()


def test_ctrl_c_waits_for_all_updates_that_are_going_on() -> None:
    interrupts = InterruptHandler(LinesDisplay(io.StringIO()))
    watch = RunObserver(LinesDisplay(io.StringIO()), interrupts)
    watch.node_started(TRAIN, "actor")
    watch.node_started(TRAIN, "critic")
    watch.node_started(SAMPLE, "roll")
    interrupts._signal(2, None)
    watch.node_done(SAMPLE, 1.0, 5, "roll")
    watch.node_done(TRAIN, 1.0, 0, "actor")
    with pytest.raises(KeyboardInterrupt):
        watch.node_done(TRAIN, 1.0, 0, "critic")
    with pytest.raises(KeyboardInterrupt):
        interrupts._signal(2, None)


def test_a_ctrl_c_that_nobody_heard_ends_a_run_at_the_next_node_but_in_no_update() -> None:
    """It was raised where what is raised is lost, as in `__del__`."""
    interrupts = InterruptHandler(LinesDisplay(io.StringIO()))
    watch = RunObserver(LinesDisplay(io.StringIO()), interrupts)
    watch.node_started(SAMPLE, "roll")
    interrupts.seen = True
    for lost in (lambda: watch.node_done(SAMPLE, 1.0, 5, "roll"), lambda: watch.node_started(SAMPLE, "roll")):
        with pytest.raises(KeyboardInterrupt):
            lost()
    interrupts.seen = False
    watch.node_started(TRAIN, "actor")
    interrupts.seen = True
    watch.node_started(SAMPLE, "roll")
    watch.node_done(SAMPLE, 1.0, 5, "roll")
    # The second one ends the run at once, and may be lost as well.
    interrupts.again = True
    with pytest.raises(KeyboardInterrupt):
        watch.node_started(SAMPLE, "roll")


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("to", [None, "saved"])
def test_a_model_outlives_its_processes(tmp_path: Path, to: str | None, frozen: bool) -> None:
    from rlgraph.backends.local.backend import LocalBackend
    from rlgraph.backends.worker.model_sources import model_spec
    from rlgraph.backends.worker.session import Settings

    compiled = rlgraph.compile(write_tiny(tmp_path))
    backend = LocalBackend(compiled.program, Settings(folder=compiled.folder))
    if not frozen:
        list(backend.run_steps(2))
    expected = backend.session.models["actor"].engine.state()
    spec = model_spec(compiled.program, compiled.program.model("actor"), SearchFolders(tmp_path))
    weights = RemoteWeights(partial(backend.save, "actor"), spec, frozen)
    saved = tmp_path / to if to else None
    if saved:
        weights.save(saved)
    weights.prepare_exit(saved)
    backend.close()
    model = TrainedModel("actor", 2, weights)
    found = model.engine.state()
    assert found.keys() == expected.keys() and all(found[name].equal(expected[name]) for name in expected)
    assert len(model.answer(["a>"], max_tokens=3)) == 1
    model.save(tmp_path / "again")
    assert (tmp_path / "again/config.json").exists()


def test_seconds_of_work_in_a_loop_count_once() -> None:
    steps: list[StepDone] = []
    lines = LinesDisplay(io.StringIO())
    reads = [lines, lambda event: steps.append(event) if isinstance(event, StepDone) else None]
    watch = RunObserver(lines, InterruptHandler(lines), stream=EventStream(reads))
    watch.run_started({"step": 1})
    loop = Node("minibatch", (), ())
    watch.node_started(loop)
    for _ in range(2):
        watch.node_started(TRAIN)
        watch.node_done(TRAIN, 2.0, 0)
    watch.node_done(loop, 5.0, 0)
    watch.node_started(SAMPLE, "roll")
    watch.node_done(SAMPLE, 3.0, 9, "roll")
    watch.step_done(StepResult(1, "step", 8.0))
    assert steps[0].work_s == {"train": 4.0, "minibatch": 1.0, "generate": 3.0}
