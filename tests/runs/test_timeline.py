"""Timelines: what is written is what the trace-event format asks for, and says what happened."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from programs_on_disk import FAILS_AT_THIRD, PROGRAM, write_tiny

import rlgraph
from rlgraph.errors import UsageMistake
from rlgraph.runs.timeline import Timeline, check_writable
from tests.counting import grows_with_its_size

Event = dict[str, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


def read(path: Path) -> list[Event]:
    """The events of a file, all of which are legal."""
    document = json.loads(path.read_text())
    events: list[Event] = document["traceEvents"]
    names = [event for event in events if event["ph"] == "M"]
    timed = [event for event in events if event["ph"] != "M"]
    assert events == names + timed
    assert {event["ph"] for event in timed} <= {"X", "C", "s", "f"}
    times = [event["ts"] for event in timed]
    assert times == sorted(times) and (not times or times[0] == 0)
    pools = {event["pid"] for event in names if event["name"] == "process_name"}
    tracks = {(event["pid"], event["tid"]) for event in names if event["name"] == "thread_name"}
    assert {event["pid"] for event in timed} <= pools and {(event["pid"], event["tid"]) for event in timed} <= tracks
    nested(timed)
    bound(timed)
    return events


def nested(events: list[Event]) -> None:
    """Slices of a track lie in one another or beside one another."""
    open_: dict[int, list[float]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            ends = open_[event["tid"]]
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or end <= ends[-1] + 1e-6, event
            ends.append(end)


def bound(events: list[Event]) -> None:
    """Every arrow leaves a slice, and lands in a later one."""
    flows: dict[int, dict[str, Event]] = defaultdict(dict)
    slices = [event for event in events if event["ph"] == "X"]
    for event in events:
        if event["ph"] in "sf":
            assert event["ph"] not in flows[event["id"]]
            flows[event["id"]][event["ph"]] = event
            around = [s for s in slices if s["tid"] == event["tid"] and s["ts"] <= event["ts"] < s["ts"] + s["dur"]]
            assert around, event
    for flow in flows.values():
        start, finish = flow["s"], flow["f"]
        assert finish["bp"] == "e" and start["ts"] <= finish["ts"]
        assert (start["name"], start["cat"]) == (finish["name"], finish["cat"])


def slices(events: list[Event], category: str = "") -> list[Event]:
    return [event for event in events if event["ph"] == "X" and category in ("", event["cat"])]


def test_ranks_and_transfers(folder: Path) -> None:
    trace = Timeline()
    began = time.time()
    trained = [trace.add_span("train", rank, "train", "train", began, began + 1, step=1, rows=4) for rank in range(2)]
    synced = [
        trace.add_span("roll", rank, "actor", "sync", began + 1, began + 1.5, bytes=10, peak=7) for rank in range(2)
    ]
    drawn = trace.add_span("roll", 0, "rollout", "generate", began + 1.5, began + 3.5, step=2, tokens=600)
    for source, target in zip(trained, synced, strict=True):
        trace.add_flow(source, target, "actor", 10)
    # The clock of the other machine is behind: its slice seems to begin before the rows were made.
    behind = trace.add_span("train", 1, "logprobs", "logprobs", began + 3, began + 4)
    trace.add_flow(drawn, behind, "rollout", 99)
    # So far behind that no arrow can be drawn.
    trace.add_flow(drawn, trained[0], "never", 1)
    trace.write_file(folder / "t.json")
    events = read(folder / "t.json")
    named = {
        (event["name"], event["pid"]): event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    assert sorted(named.values()) == ["roll", "train"]
    assert sorted(event["args"]["name"] for event in events if event["name"] == "thread_name") == [
        "rank 0",
        "rank 0",
        "rank 1",
        "rank 1",
    ]
    sync = slices(events, "sync")
    assert [event["args"] for event in sync] == [{"bytes": 10, "peak": 7}] * 2
    assert all(event["dur"] == pytest.approx(5e5, abs=1) and event["ts"] == pytest.approx(1e6, abs=1) for event in sync)
    assert [(e["name"], e["args"]["bytes"]) for e in events if e["ph"] == "s"] == [
        ("actor", 10),
        ("actor", 10),
        ("rollout", 99),
    ]
    assert [e["args"]["tokens/s"] for e in events if e["ph"] == "C"] == [pytest.approx(300, rel=1e-3), 0]


def test_slices_that_begin_together(folder: Path) -> None:
    trace = Timeline()
    trace.add_span("pool", 0, "inner", "train", 5.0, 6.0)
    trace.add_span("pool", 0, "outer", "minibatch", 5.0, 7.0)
    trace.write_file(folder / "t.json")
    assert [event["name"] for event in slices(read(folder / "t.json"))] == ["outer", "inner"]


def test_work_that_is_done_together(folder: Path) -> None:
    """What does not nest is on tracks beside each other, which are used again."""
    trace = Timeline()
    works = [(0.0, 4.0), (1.0, 5.0), (2.0, 6.0), (5.0, 7.0), (5.5, 6.5), (6.5, 8.0)]
    ids = [trace.add_span("play", 0, str(number), "generate", *work) for number, work in enumerate(works)]
    trace.add_flow(ids[1], ids[5], "rows", 1)
    trace.write_file(folder / "t.json")
    events = read(folder / "t.json")
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found = {event["name"]: names[event["tid"]] for event in slices(events)}
    assert found == {
        "0": "rank 0",
        "1": "rank 0, beside 1",
        "2": "rank 0, beside 2",
        "3": "rank 0",
        "4": "rank 0",
        "5": "rank 0, beside 1",
    }


def test_a_run(folder: Path) -> None:
    rlgraph.compile("tiny.rlf").run(2, threads=1, progress=False, trace="t.json")
    events = read(folder / "t.json")
    assert [event["name"] for event in slices(events, "step")] == ["step 1", "step 2"]
    generated = slices(events, "generate")
    assert [event["args"]["step"] for event in generated] == [1, 2]
    assert all(event["args"]["tokens"] > 0 and event["args"]["seconds"] * 1e6 <= event["dur"] for event in generated)
    assert len(slices(events, "train")) == 2
    ends = [event["ts"] + event["dur"] for event in slices(events, "step")]
    assert all(
        event["ts"] + event["dur"] <= ends[event["args"]["step"] - 1]
        for event in slices(events)
        if event["cat"] != "step"
    )
    assert sum(event["ph"] == "C" for event in events) == 4
    assert list(folder.glob(".t.json*")) == []


def test_work_with_a_body_is_around_its_parts(folder: Path) -> None:
    body = """    minibatch rollout(parts=2):
        train actor(lr=lr):
            minimize -mean(actor.logprobs(rollout) * adv)
"""
    program = PROGRAM.replace(PROGRAM[PROGRAM.index("    train") : PROGRAM.index("    report")], body)
    write_tiny(folder, program)
    rlgraph.compile("tiny.rlf").run(1, threads=1, progress=False, trace="t.json")
    events = read(folder / "t.json")
    (around,) = slices(events, "minibatch")
    inside = slices(events, "train")
    assert len(inside) == 2
    assert all(around["ts"] <= e["ts"] and e["ts"] + e["dur"] <= around["ts"] + around["dur"] for e in inside)


def test_a_run_that_fails_leaves_its_trace(folder: Path) -> None:
    write_tiny(folder, rewards=FAILS_AT_THIRD)
    with pytest.raises(rlgraph.RunError, match="asleep"):
        rlgraph.compile("tiny.rlf").run(5, progress=False, trace="t.json")
    events = read(folder / "t.json")
    assert len(slices(events, "step")) == 2
    assert [event["cat"] for event in slices(events) if event["args"].get("cut") == "off"] == ["call"]


@pytest.mark.parametrize("path", ["none/t.json", "folder"])
def test_a_path_that_cannot_be_written(folder: Path, path: str) -> None:
    (folder / "folder").mkdir()
    with pytest.raises(UsageMistake, match="E0818"):
        rlgraph.compile("tiny.rlf").run(1, out="here", progress=False, trace=path)
    assert not (folder / "here").exists()


def test_a_run_that_is_refused_leaves_an_older_trace(folder: Path) -> None:
    (folder / "t.json").write_text("old")
    (folder / "prompts.jsonl").unlink()
    with pytest.raises(rlgraph.ProgramError, match="E0703"):
        rlgraph.compile("tiny.rlf").run(1, progress=False, trace="t.json")
    assert (folder / "t.json").read_text() == "old"
    check_writable(folder / "t.json")
    assert (folder / "t.json").read_text() == "old"


def test_many_events(folder: Path) -> None:
    def work(spans: int) -> None:
        trace = Timeline()
        for at in range(spans):
            trace.add_span("pool", at % 8, "work", "logprobs", at / 1e3, (at + 7) / 1e3, step=at, rows=3)
            if at:
                trace.add_flow(at - 1, at, "rows", 8)
        trace.write_file(folder / "t.json")
        assert len(json.loads((folder / "t.json").read_text())["traceEvents"]) == 9 + spans + 2 * (spans - 1)

    assert grows_with_its_size(work, 500)
