"""Schedules in chunks and in halves: lists beside the formulas that are published for them, and beside all lists."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from every_list import entries, shortest

from rlgraph.passes.pipelines.bounds import makespan_lower_bound
from rlgraph.passes.pipelines.fuse import search_schedule
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.published_schedules import (
    interleaved_lists,
    one_f_one_b_lists,
    published_lists,
    serial_lists,
    zero_bubble_lists,
)
from rlgraph.passes.pipelines.timetable import compute_timetable
from tests.suites import few


@pytest.mark.parametrize("chunks", [1, 2, 3, 5])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_interleaved_takes_what_its_formula_says(stages: int, chunks: int) -> None:
    """m (F + B) and a bubble of (p - 1) / v (F + B) (arXiv 2104.04473, section 2.2.2), with 1 + (p - 1) / (p v) times
    the memory of 1F1B. Where p does not divide m, which the paper asks for, it takes as long; no list is stuck."""
    for batches, (forward, backward) in product(range(1, 26), [(1, 1), (1, 2), (2, 3), (3, 1)]):
        model = PipelineModel("a", stages, batches, forward * chunks, backward * chunks, memory=chunks, chunks=chunks)
        problem = PipelineProblem((model,))
        table = compute_timetable(problem, interleaved_lists(model))
        bound = makespan_lower_bound(problem)
        assert table.makespan >= bound
        if batches >= stages:
            bubble = (stages - 1) / chunks * (model.forward + model.backward)
            assert table.makespan == bound == batches * (model.forward + model.backward) + bubble
        if batches % stages == 0:
            most = stages * chunks * (1 + (stages - 1) / (stages * chunks))
            assert max(table.peaks) == pytest.approx(min(batches * chunks, most))
        if chunks == 1:
            assert table.makespan == compute_timetable(problem, one_f_one_b_lists(model)).makespan


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_zero_bubble_takes_what_its_formula_says(stages: int) -> None:
    """m (F + B + W) and a bubble of (p - 1) (F + B - W), with the memory of 1F1B (arXiv 2401.10241, table 1)."""
    lengths = [(1, 1, 1), (1, 2, 1), (2, 3, 1), (3, 4, 2), (3, 2, 1), (5, 7, 5)]
    for batches, (forward, back, weight) in product(range(1, 26), lengths):
        model = PipelineModel("a", stages, batches, forward, back + weight, memory=1, weight=weight)
        problem = PipelineProblem((model,))
        table = compute_timetable(problem, zero_bubble_lists(model))
        assert table.makespan >= makespan_lower_bound(problem)
        if batches >= stages:
            every, bubble = forward + back + weight, (stages - 1) * (forward + back - weight)
            assert table.makespan == batches * every + bubble
        assert set(table.peaks) == {min(batches, stages)}
        assert table.makespan <= compute_timetable(problem, one_f_one_b_lists(model)).makespan


@pytest.mark.parametrize(
    ("stages", "batches", "chunks", "weight"),
    few(
        [(1, 2, 3, 0), (2, 2, 2, 0), (2, 2, 3, 0), (2, 2, 1, 1), (2, 3, 1, 1), (2, 3, 1, 2), (3, 3, 1, 2)],
        (1, 2, 3, 0),
        (2, 2, 2, 0),
        (2, 2, 1, 1),
        (2, 3, 1, 1),
        (2, 3, 1, 2),
    ),
)
def test_no_lists_with_as_much_memory_are_shorter_than_published_ones(
    stages: int, batches: int, chunks: int, weight: int
) -> None:
    model = PipelineModel("a", stages, batches, 2 * chunks, 4 * chunks, memory=chunks, chunks=chunks, weight=weight)
    table = compute_timetable(PipelineProblem((model,)), published_lists(model))
    assert shortest(PipelineProblem((model,), capacity=max(table.peaks))) == table.makespan


SMALL = [
    (2, 2, 2, 0, 0),
    (2, 3, 1, 1, 0),
    (2, 2, 1, 1, 1),
    (2, 1, 2, 1, 1),
    (1, 2, 3, 0, 1),
    (3, 2, 1, 1, 0),
    (2, 2, 3, 0, 0),
]
"""Enough for all their schedules to be looked at: stages, micro-batches, chunks, whether a backward is in halves, and
whether there is another model."""


@pytest.mark.parametrize("seed", few(range(2 * len(SMALL)), 0, 1, 2, 7, 10, 12))
def test_what_is_found_is_the_shortest_of_all(seed: int) -> None:
    draw = random.Random(seed)
    stages, batches, chunks, apart, others = SMALL[seed // 2]
    forward, back, weight, memory = (chunks * draw.randint(1, 4) for _ in range(4))
    late = apart * weight
    models = [PipelineModel("a", stages, batches, forward, back + late, memory=memory, chunks=chunks, weight=late)]
    models += [PipelineModel("b", stages, 1, draw.randint(1, 4), draw.randint(1, 4), reverse=True)] * others
    asked = PipelineProblem(tuple(models), capacity=(1 + 1 / chunks) * memory if seed % 2 else None)
    best = shortest(asked)
    assert makespan_lower_bound(asked) <= best
    found = search_schedule(asked, work=3.0, within=0.0)
    assert found and found.makespan == pytest.approx(best)
    table = compute_timetable(asked, found.lists)
    assert (table.makespan, max(table.peaks)) == (found.makespan, found.peak)
    assert asked.capacity is None or found.peak <= asked.capacity * (1 + 1e-9)


def test_one_after_the_other_in_chunks_and_halves() -> None:
    """Of copies, in either direction, with backwards in chunks and in halves at once."""
    both = PipelineModel("a", 4, 6, 2, 6, memory=2, chunks=2, weight=2)
    two = PipelineModel("b", 2, 3, 1, 3, copies=2, memory=1, reverse=True, weight=1)
    found = compute_timetable(PipelineProblem((both, two)), serial_lists(PipelineProblem((both, two))))
    whole = compute_timetable(
        PipelineProblem((replace(both, weight=0.0),)), interleaved_lists(replace(both, weight=0.0))
    )
    assert (
        found.makespan
        <= whole.makespan + compute_timetable(PipelineProblem((two,)), serial_lists(PipelineProblem((two,)))).makespan
    )
    assert max(found.peaks) == max(whole.peaks)


def test_interleaved_with_the_memory_of_1f1b() -> None:
    model = PipelineModel("a", 4, 8, 2, 4, memory=2, chunks=2)
    found = search_schedule(PipelineProblem((model,)), work=30.0)
    assert found and found.makespan == found.bound == found.published_seconds == 57
    assert found.peak == found.serial_peak == 8 < found.published_peak


def test_the_benchmark_takes_chunks_and_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import fused as benchmark

    file = tmp_path / "problem.json"
    monkeypatch.setattr(sys, "argv", ["fused.py", "--work", "2", "--lists", "--problem", str(file)])
    model = {"stages": 2, "micro_batches": 4, "forward": 2, "backward": 4, "memory": 2}
    for more, seconds in ({"chunks": 2}, 4 * 6 + 3), ({"weight": 2}, 4 * 6 + 2):
        file.write_text(json.dumps({"models": [{**model, **more}]}))
        benchmark.main()
        found = json.loads(capsys.readouterr().out)
        assert found["makespan"] == found["bound"] == found["in_turn"] == seconds < found["serial"] == 30
        own = PipelineModel("", **{**model, **more})  # type: ignore[arg-type]
        made = compute_timetable(PipelineProblem((own,)), [entries(" ".join(each)) for each in found["lists"]])
        assert (made.makespan, max(made.peaks)) == (seconds, found["peak"])
