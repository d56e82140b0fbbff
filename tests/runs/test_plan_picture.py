"""The picture of a plan in a run's folder, and what is measured beside what was predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlgraph
from rlgraph.runs.plan_picture import Measured, PlanPicture, picture_text
from rlgraph.runs.watching.plan_view import SHOWN_PROCESSES, memory_view, plan_svg, recent_means, step_numbers

PPO = Path(rlgraph.__file__).parent / "algorithms" / "ppo.rlf"


def test_a_picture_is_read_as_it_was_written() -> None:
    compiled = rlgraph.compile(PPO, schedule=PPO.with_suffix(".rls"))
    assert PlanPicture.from_json(picture_text(compiled, "ray")).lanes == compiled.lanes()


def test_a_run_in_one_process_without_a_plan_is_drawn_as_one() -> None:
    lanes = PlanPicture.from_json(picture_text(rlgraph.compile(PPO), "local")).lanes
    assert [lane.name for lane in lanes.lanes] == ["local"] and not lanes.lanes[0].deployed
    assert "train actor" in {work.key for work in lanes.all_works()}
    assert "weights of actor" not in {work.title for work in lanes.all_works()}


def test_seconds_and_bytes_stand_beside_those_predicted() -> None:
    compiled = rlgraph.compile(PPO, schedule=PPO.with_suffix(".rls"))
    picture = PlanPicture.from_json(picture_text(compiled, "ray"))
    weights = next(work.key for work in picture.lanes.all_works() if work.kind == "next")
    pool = picture.lanes.lanes[-1].name
    shown = picture.with_measured(
        Measured(
            4.0, {"train actor": 2.0}, {"train actor": 3e6}, {weights: (0.5, 2e9)}, {pool: {"a 0": 1, "a 1": 10**9}}
        )
    )
    boxes = {work.key: work for work in shown.all_works()}
    assert (boxes["train actor"].measured, boxes["train actor"].measured_share) == ("2 s", 0.5)
    assert boxes["train actor"].measured_note == "received 3MB"
    assert boxes[weights].note == "measured 2GB, 500 ms"
    assert shown.lanes[-1].measured_memory == ("measured at most 1GB, of a 1",)
    assert boxes["train critic"].measured == ""
    assert ">2 s<" in picture.to_svg(Measured(4.0, {"train actor": 2.0}), "")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "lanes": {}}', "[" * 100_000])
def test_a_damaged_picture_is_none(text: str) -> None:
    assert plan_svg(text, recent_means([]), {}) == ("", {})


def test_means_are_of_all_the_last_steps() -> None:
    events = [
        {"seconds": 2.0, "work_s": {"a": 1.0}, "waits_s": {"p": {"b (q)": 1.0}}, "weights_sent": {"m -> q": [1.0, 8]}},
        {"seconds": 4.0, "work_s": {"a": 3.0, "b": 1.0}},
    ]
    means = recent_means([step_numbers(event) for event in events])
    assert (means.measured.step_s, means.measured.work_s) == (3.0, {"a": 2.0, "b": 0.5})
    assert means.waits == {"p": {"b (q)": 0.5}} and means.measured.weights_sent == {"m -> q": (0.5, 4.0)}
    with pytest.raises((TypeError, ValueError)):
        step_numbers({"seconds": 1.0, "work_s": {"a": [1]}})


def test_of_many_processes_the_fullest_are_listed() -> None:
    [pool] = memory_view({"p": {f"p {rank}": rank for rank in range(100)}}, {"p": {"bytes": 5.0, "capacity": 9.0}})
    assert pool["processes"][0] == ("p 99", 99) and len(pool["processes"]) == SHOWN_PROCESSES
    assert (pool["others"], pool["least"], pool["predicted"]) == (100 - SHOWN_PROCESSES, 0, 5.0)
    assert json.loads(json.dumps(pool))["capacity"] == 9.0
