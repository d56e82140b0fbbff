"""The events of a run: what readers get, on every backend, and readers that fail."""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from programs_on_disk import write_tiny

import rlgraph
from rlgraph.backends.samples import quantiles
from rlgraph.errors import RlgraphError
from rlgraph.passes.compilation.plan_times import predicted_seconds_by_work
from rlgraph.runs import events
from rlgraph.runs.events import EVENTS, LASTING, Event, EventReader, RunStarted, StepDone
from rlgraph.runs.folder import EVENTS as FILE


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


def ran(steps: int, out: str | None = "run", **more: Any) -> list[Event]:
    read: list[Event] = []
    rlgraph.compile(Path("tiny.rlf")).run(steps, out=out, threads=1, on_event=read.append, progress=False, **more)
    return read


def lines(run: str = "run") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, FILE).read_text().splitlines()]


@pytest.mark.parametrize("how", [{}, {"backend": "ray", "debug": True}], ids=["local", "ray"])
def test_a_function_reads_what_happens(how: dict[str, Any]) -> None:
    read = ran(2, save_every=1, **how)
    assert all(type(event) is EVENTS[event.kind] for event in read)
    # A checkpoint is written by another thread.
    kinds = [event.kind for event in read if event.kind not in ("opening", "checkpoint_saved", "work_progress")]
    started = kinds.index("run_started")
    assert kinds.count("step_done") == 2 and kinds[-1] == "run_ended" and kinds[started + 1] == "work_started"
    assert kinds.count("work_started") == kinds.count("work_done") > 4
    assert sorted(event.step for event in read if event.kind == "checkpoint_saved") == [1, 2]
    done = [event for event in read if isinstance(event, StepDone)]
    assert [event.metrics for event in done] == [
        json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()
    ]
    assert "generate rollout" in done[0].work_s and any(name.startswith("train") for name in done[0].work_s)
    assert done[0].result.samples and [event.step for event in done] == [1, 2]
    times = [event.time_s for event in read]
    assert times == sorted(times)


def test_the_folder_has_the_events_that_last() -> None:
    read = ran(2)
    assert lines() == [json.loads(json.dumps(event.to_json())) for event in read if event.kind in LASTING]
    start, first, *_, end = lines()
    assert (start["kind"], start["phases"], start["done"]) == ("run_started", {"step": 2}, 0)
    assert first["kind"] == "step_done" and first["step"] == 1 and end["outcome"] == "finished"
    [(name, spread)] = first["scores"].items()
    assert name == "reward" and spread == sorted(spread) and len(spread) == 7
    assert sum(first["work_s"].values()) <= first["seconds"]


def test_a_run_that_goes_on_appends_to_its_events() -> None:
    ran(2, save_every=1)
    path = Path("run", FILE)
    path.write_text(path.read_text() + '{"kind": "note", "te')
    ran(3, None, resume="run")
    kept = [line for line in path.read_text().splitlines() if not line.endswith('"te')]
    assert [json.loads(line)["done"] for line in kept if '"run_started"' in line] == [0, 2]
    assert [json.loads(line)["step"] for line in kept if '"step_done"' in line] == [1, 2, 3]


def test_a_reader_that_raises_is_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []

    def fails(event: Event) -> None:
        calls.append(event.kind)
        if event.kind == "work_started":
            raise ValueError("no such tracker")

    run = rlgraph.compile(Path("tiny.rlf")).run(2, out="run", threads=1, on_event=fails)
    assert len(run.metrics) == 2 and calls.count("work_started") == 1 and calls[-1] == "work_started"
    told = [line for line in capsys.readouterr().err.splitlines() if "on_event" in line]
    assert len(told) == 1
    place = rf"\({re.escape(__file__)}:\d+\)"
    pattern = rf"`on_event` raised ValueError: no such tracker {place} on `work_started`; the run goes on"
    assert re.match(pattern, told[0])
    assert [line["text"] for line in lines() if line["kind"] == "note"] == told
    quiet = rlgraph.compile(Path("tiny.rlf")).run(1, threads=1, on_event=fails, progress=False)
    assert capsys.readouterr().err == "" and "`on_event` raised ValueError" in quiet.notes[0]


def test_other_packages_read_events(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    points = [
        EntryPoint("good", f"{__name__}:OTHER", events.GROUP),
        EntryPoint("gone", "no_such_module:read", events.GROUP),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == events.GROUP else [])
    OTHER.kinds.clear()
    rlgraph.compile(Path("tiny.rlf")).run(1, out="run", threads=1)
    assert {"run_started", "step_done", "run_ended"} <= set(OTHER.kinds)
    assert "the reader of events `gone` cannot be loaded: `no_such_module:read` raises" in capsys.readouterr().err


class _Other(EventReader):
    """The reader of another package."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def __call__(self, event: Event) -> None:
        self.kinds.append(event.kind)


OTHER = _Other()


def test_what_is_no_function_is_refused_before_the_run() -> None:
    with pytest.raises(RlgraphError, match="E0875") as wrong:
        rlgraph.compile(Path("tiny.rlf")).run(1, out="run", on_event="events.jsonl")  # type: ignore[arg-type]
    assert "`on_event` is 'events.jsonl', which cannot be called" in str(wrong.value) and not Path("run").exists()


def test_a_run_that_fails_says_so_in_its_events() -> None:
    class Breaks(EventReader):
        def step_done(self, event: StepDone) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rlgraph.compile(Path("tiny.rlf")).run(3, out="run", threads=1, on_event=Breaks())
    assert lines()[-1]["outcome"] == "interrupted" and lines()[-1]["step"] == 1


def test_every_kind_of_event_has_a_method_and_plain_data() -> None:
    assert all(kind in vars(EventReader) for kind in EVENTS)
    event = RunStarted(program="grpo", phases={"step": 3}, predicted_s={"train actor": 1.5}, time_s=1.0)
    assert event.to_json() == {
        "kind": "run_started",
        "time_s": 1.0,
        "step": 0,
        "program": "grpo",
        "phases": {"step": 3},
        "done": 0,
        "predicted_s": {"train actor": 1.5},
    }


def test_a_spread_leaves_out_what_is_no_number() -> None:
    import numpy as np

    assert quantiles(np.array([np.nan, np.inf])) == []
    assert quantiles(np.array([0.0, np.nan, 10.0])) == [0, 1, 2.5, 5, 7.5, 9, 10]


def test_what_is_predicted_has_the_name_of_what_is_measured() -> None:
    compiled = rlgraph.compile(Path("tiny.rlf"), cluster="1x1:h100-80gb")
    predicted = predicted_seconds_by_work(compiled)
    assert set(predicted) == {"generate rollout", "train actor"} and min(predicted.values()) > 0
    measured = next(event for event in ran(1) if isinstance(event, StepDone)).work_s
    assert set(predicted) < set(measured)
    assert predicted_seconds_by_work(rlgraph.compile(Path("tiny.rlf"))) == {}
