"""Fused pipelines: what follows from lists, what no lists can beat, and what is found."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from every_list import entries, shortest

from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.pipelines import exact, rule_scheduling
from rlgraph.passes.pipelines.bounds import makespan_lower_bound, serial_peak_memory, serial_seconds
from rlgraph.passes.pipelines.fuse import best_rule_schedule, search_schedule
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem, problem_from_json
from rlgraph.passes.pipelines.published_schedules import one_f_one_b_lists
from rlgraph.passes.pipelines.relative_costs import relative_pipeline_model
from rlgraph.passes.pipelines.rule_scheduling import schedule_by_rule
from rlgraph.passes.pipelines.timetable import ScheduleDeadlock, compute_timetable
from tests.suites import few
from tests.viz.charts import bars_of

ROOT = Path(__file__).parents[3]


def drawn(seed: int) -> PipelineProblem:
    """Small enough for all its schedules to be looked at."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2])
    first = PipelineModel(
        "a", stages, draw.choice([1, 2]), draw.randint(1, 4), draw.randint(1, 6), 1, draw.randint(0, 3)
    )
    own = draw.choice([1, stages])
    other = PipelineModel("b", own, 1, draw.randint(1, 4), draw.randint(1, 6), stages // own, draw.randint(0, 3), True)
    return PipelineProblem((first, other))


@pytest.mark.parametrize("seed", few(range(12), 1, 2, 3, 5))
def test_what_is_found_is_the_shortest_of_all(seed: int) -> None:
    asked = drawn(seed)
    best = shortest(asked)
    assert makespan_lower_bound(asked) <= best
    found = search_schedule(asked, work=3.0, within=0.0)
    assert found and found.makespan == best
    table = compute_timetable(asked, found.lists)
    assert (table.makespan, max(table.peaks)) == (found.makespan, found.peak)


def test_ctrl_c_interrupts_after_a_search_by_constraints() -> None:
    """The solver takes it unless it is told not to, and leaves the system's way with it: the process ends at once."""
    assert search_schedule(drawn(0), work=3.0, within=0.0)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("batches", [(1, 1), (2, 2), (3, 5), (8, 8)])
def test_what_every_stage_works_out_for_itself_is_one_schedule_and_a_short_one(batches: tuple[int, int]) -> None:
    asked = PipelineProblem(
        tuple(PipelineModel(str(at), 4, count, 3, 6, 1, 1.0, at == 1) for at, count in enumerate(batches))
    )
    lists = best_rule_schedule(asked)
    best_rule_schedule.cache_clear()
    assert best_rule_schedule(asked) == lists
    found = compute_timetable(asked, lists)
    # Each model alone fills the bubbles of the other's pipeline only where both have some.
    assert makespan_lower_bound(asked) <= found.makespan <= 1.1 * makespan_lower_bound(asked) < serial_seconds(asked)


@pytest.mark.parametrize("batches", [(2, 2), (2, 4), (2, 7), (4, 2), (4, 4), (4, 7), (7, 4), (7, 7)])
def test_few_micro_batches_of_two_models_on_the_same_rows(batches: tuple[int, int]) -> None:
    """Who has more of them has smaller ones. A few rules come near to what no lists can beat, and those of ranks to it."""
    shape = Shape("llama", vocab=32000, hidden=4096, ffn=11008, layers=32, heads=32, kv_heads=32, head_dim=128)
    kinds: tuple[ModelKind, ...] = ("causal_lm", "value_lm")
    models = [
        relative_pipeline_model(shape, kind, 2, each, turned=kind != kinds[0])
        for kind, each in zip(kinds, batches, strict=True)
    ]
    assert models[0].forward * batches[0] > models[1].forward * batches[1] > 0.8 * models[0].forward * batches[0]
    problem = PipelineProblem(tuple(models))
    rules = (
        *(rule for rule in rule_scheduling.deterministic_rules(problem, inf) if rule.memory == inf),
        *rule_scheduling.extra_deterministic_rules(problem),
    )
    made = [found.makespan for rule in rules if (found := schedule_by_rule(problem, rule, random.Random(0)))]
    assert min(made) <= 1.03 * makespan_lower_bound(problem)
    assert compute_timetable(problem, best_rule_schedule(problem)).makespan <= 1.01 * makespan_lower_bound(problem)


@pytest.mark.parametrize("seed", range(4))
def test_of_those_that_keep_to_the_capacity(seed: int) -> None:
    asked = drawn(seed)
    asked = replace(asked, capacity=max(1.0, *(model.memory for model in asked.models)))
    found = search_schedule(asked, work=3.0, within=0.0)
    assert found and found.peak <= asked.capacity and found.makespan == shortest(asked)


@pytest.mark.parametrize(("stages", "batches"), [(1, 1), (1, 5), (4, 2), (4, 4), (4, 9)])
def test_1f1b_takes_what_its_formula_says(stages: int, batches: int) -> None:
    """(M + N - 1) (f + b), with N micro-batches in flight on the first stage (arXiv 2006.09503)."""
    model = PipelineModel("a", stages, batches, 2.0, 4.0, memory=1.5)
    table = compute_timetable(PipelineProblem((model,)), one_f_one_b_lists(model))
    assert table.makespan == (batches + stages - 1) * 6 == makespan_lower_bound(PipelineProblem((model,)))
    assert table.peaks == tuple(1.5 * min(batches, stages - stage) for stage in range(stages))


PAIR = (PipelineModel("33B", 8, 8, 5, 10, 1, 1.95), PipelineModel("13B", 4, 4, 4, 8, 2, 2.0, True))


@pytest.mark.long
def test_published_configurations() -> None:
    """Two of FlexFusion's: what their authors found (225 and 15.6 for both), within 1%, and no more memory."""
    assert exact.solver_installed()
    for other in (PAIR[1], PipelineModel("13B", 8, 8, 2, 4, 1, 1.0, True)):
        asked = PipelineProblem((PAIR[0], other))
        assert makespan_lower_bound(asked) == 225 and serial_peak_memory(asked) == pytest.approx(15.6)
        # It ends where it is found.
        found = search_schedule(asked, work=120.0)
        assert found and found.makespan <= 227.25 and found.peak <= 15.6 * (1 + 1e-9)
    assert serial_seconds(PipelineProblem(PAIR)) == 309


def test_what_is_found_does_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As little as on how busy the machine is: work is counted, of rules and of constraints."""
    asked = PipelineProblem((replace(PAIR[0], stages=4, micro_batches=5), replace(PAIR[1], stages=2, micro_batches=3)))
    found = search_schedule(asked, 0.3)
    monkeypatch.setattr(time, "monotonic", itertools.count(0, 1000).__next__)
    assert found and found.peak > found.serial_peak
    assert search_schedule(asked, 0.3) == found


def test_rules_alone_beat_one_after_the_other() -> None:
    """Where OR-Tools is not installed."""
    asked = PipelineProblem((replace(PAIR[0], micro_batches=16), replace(PAIR[1], micro_batches=8)))
    found: list[rule_scheduling.RuleSchedule] = []
    tried = itertools.count()
    draw = random.Random(0)
    rule_scheduling.search_rules(
        asked, serial_peak_memory(asked), draw, lambda each: not found.append(each), lambda: next(tried) > 60
    )
    best = min(found, key=lambda each: each.makespan)
    assert makespan_lower_bound(asked) <= best.makespan < 0.9 * serial_seconds(asked)
    for each in found[:10]:
        table = compute_timetable(asked, each.lists)
        assert table.makespan <= each.makespan and max(table.peaks) == pytest.approx(each.peak)


def test_who_has_no_room_for_what_would_free_some_comes_to_a_stop() -> None:
    asked = PipelineProblem((PipelineModel("a", 2, 2, 1, 1, 1, 1.0), PipelineModel("b", 2, 2, 1, 1, 1, 1.0, True)))
    rule = rule_scheduling.DispatchRule(((0.0, 0.0), (0.0, 0.0)), 1.0, (0, 0), 0.0, 1.0)
    assert schedule_by_rule(asked, rule, random.Random(0)) is None


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ("0B 0F", "stage 0 waits for ever"),
        ("0F", "not every micro-batch"),
        ("0F 0I", "not every micro-batch"),
        ("0F 0W 0I", "stage 0 waits for ever"),
        ("0F 0B 0W", "stage 0 waits for ever"),
        ("0F 0B 0F", "stage 0 waits for ever"),
        ("0F 0.1F 0.1B 0B", "`a` has no chunk 1"),
    ],
)
def test_lists_that_cannot_be(lists: str, message: str) -> None:
    with pytest.raises(ScheduleDeadlock, match=message):
        compute_timetable(PipelineProblem((PipelineModel("a", 1, 1, 1, 1),)), [entries(lists)])


ONE = {"stages": 2, "micro_batches": 2, "forward": 1, "backward": 2}


def test_what_a_file_leaves_out() -> None:
    found = problem_from_json({"models": [{**ONE, "stages": 4}, ONE, {**ONE, "copies": 1}], "capacity": 3})
    assert [(each.copies, each.reverse) for each in found.models] == [(1, False), (2, True), (1, False)]
    assert [line.stages for line in found.replicas] == [(0, 1, 2, 3), (1, 0), (3, 2), (0, 1)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the problem is no object"),
        ({}, "a problem has `models`"),
        ({"models": []}, "there is no model"),
        ({"models": {}}, "`models` is no list"),
        ({"models": [1]}, "model 0 is no object"),
        ({"models": [ONE], "memory": 1}, "not `memory`"),
        ({"models": [{**ONE, "stage": 1}]}, "model 0 has `stage`: it can have name, stages"),
        ({"models": [{**ONE, "stages": 0}]}, "model 0 has 0 stages"),
        ({"models": [{**ONE, "stages": True}]}, "`stages` of model 0 is True: give a whole number"),
        ({"models": [{**ONE, "forward": "1"}]}, "`forward` of model 0 is '1': give a number"),
        ({"models": [{**ONE, "forward": float("nan")}]}, "give a number"),
        ({"models": [{**ONE, "backward": -1}]}, "`backward` of `model 0` is -1"),
        ({"models": [{"stages": 1}]}, "model 0 lacks `micro_batches`"),
        ({"models": [{**ONE, "memory": 2}], "capacity": 1}, "needs 2, and a stage has 1"),
        ({"models": [ONE], "capacity": "much"}, "`capacity` is 'much'"),
        ({"models": [{**ONE, "chunks": 0}]}, "`model 0` has 0 chunks"),
        ({"models": [{**ONE, "chunks": 1.5}]}, "`chunks` of model 0 is 1.5: give a whole number"),
        ({"models": [{**ONE, "chunks": 10**9}]}, "forwards and backwards: 500,000 at most"),
        ({"models": [{**ONE, "stages": 10**12}]}, "forwards and backwards: 500,000 at most"),
        ({"models": [{**ONE, "weight": -1}]}, "`weight` of `model 0` is -1"),
        ({"models": [{**ONE, "weight": 2}]}, "`weight` of `model 0` is 2: it is a part of `backward`, 2"),
    ],
)
def test_a_problem_that_is_none(data: object, message: str) -> None:
    with pytest.raises(ValueError) as found:
        problem_from_json(data)  # type: ignore[arg-type]
    assert message in str(found.value)


def test_the_benchmark_prints_json(tmp_path: Path) -> None:
    file, picture = tmp_path / "problem.json", tmp_path / "lists.svg"
    file.write_text(json.dumps({"models": [ONE, ONE]}))
    # It is over when it has found one as short as any.
    command = [sys.executable, str(ROOT / "benchmarks" / "fused.py"), "--work", "2", "--lists"]
    command += ["--problem", str(file), "--picture", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["makespan"] >= found["bound"] == 12 and found["serial"] == 18
    assert sorted(found["lists"][0]) == sorted(found["lists"][1]) == ["0B", "0B", "0F", "0F", "1B", "1B", "1F", "1F"]
    assert len(bars_of(picture.read_text())) == 16
    assert "makespan 12, and no lists can beat 12; one after the other by 1F1B 18" in picture.read_text()


def test_what_the_benchmark_writes_and_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import fused as benchmark

    file = tmp_path / "problem.json"
    file.write_text(json.dumps({"models": [ONE, ONE]}))

    def run(*more: str) -> None:
        monkeypatch.setattr(sys, "argv", ["fused.py", "--work", "2", "--problem", str(file), *more])
        benchmark.main()

    run("--picture", str(tmp_path / "lists.png"))
    assert (tmp_path / "lists.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    for picture in ("lists.gif", str(tmp_path / "missing" / "lists.svg")):
        with pytest.raises(SystemExit) as ended:
            run("--picture", picture)
        assert ended.value.code and picture in f"{ended.value.code}{capsys.readouterr().err}"
    file.write_text('{"models": [')
    with pytest.raises(SystemExit) as ended:
        run()
    assert str(ended.value.code).startswith(str(file))
