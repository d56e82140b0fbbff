"""The checker's verdict on lists of pipelines is what happens on the transport of hard devices."""

from __future__ import annotations

import random

import pytest

from benchmarks import pipeline_lists
from benchmarks.pipeline_lists import compared, is_refused, random_lists, stands_still
from rlgraph.passes.pipelines.messages import StageTransfer, Step
from rlgraph.passes.pipelines.timetable import ScheduleEntry
from tests.suites import few


@pytest.mark.parametrize("seed", few(range(0, 2000, 100), 0, 100))
def test_a_hundred_random_lists(seed: int) -> None:
    """Some five seconds."""
    told, wrong = compared(100, seed)
    assert not wrong
    refused = sum(count for (_, refused, *_), count in told.items() if refused)
    assert 30 < refused < 70, "both happen"


def test_the_same_seed_draws_the_same_lists() -> None:
    drawn = [random_lists(random.Random(seed)) for seed in range(100)]
    assert drawn == [random_lists(random.Random(seed)) for seed in range(100)]
    assert len({kind for kind, _ in drawn}) == 6


def message(kind: str, peer: int) -> StageTransfer:
    return StageTransfer(0, kind, "F", kind == "receive", peer, 0)  # type: ignore[arg-type]


def test_a_ring_of_later_messages_stands_still_only_where_each_is_waited_for() -> None:
    """Three stages: once each pair has met, what is begun holds nobody up."""
    meet: list[list[Step]] = [
        [message("receive", 1), message("receive", 2)],
        [message("send", 0), message("receive", 2)],
        [message("send", 0), message("send", 1)],
    ]
    ring: list[list[Step]] = [
        [message("receive", 1), message("receive", 2)],
        [message("receive", 2), message("send", 0)],
        [message("send", 0), message("send", 1)],
    ]
    outputs = [ScheduleEntry(0, "F")] * 4
    computed = [[*outputs, *before, *after] for before, after in zip(meet, ring, strict=True)]
    assert stands_still(computed, "waits") and not stands_still(computed, "begins")


def test_a_checker_that_looks_away_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_lists, "check_rendezvous", lambda programs: None)
    _, wrong = compared(20, 0)
    assert wrong
    monkeypatch.undo()
    assert is_refused([[message("receive", 1)], [message("receive", 0)]])
