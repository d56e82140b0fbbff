"""What is measured of a step: who waits for whom, peaks of memory, ages of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import rlgraph
from rlgraph.runs.row_ages import KEPT_STEPS, RowAges, row_ages
from rlgraph.runs.step_measures import CONTROLLER, StepMeter
from tests.runs.written_runs import SCHEDULE


def test_a_pool_waits_for_the_work_that_ended_last() -> None:
    meter = StepMeter()
    meter.work_started("learn", 0.0)
    meter.work_started("play", 0.0)
    meter.work_done("train actor", 1.0, "learn", 1.0)
    meter.work_done("generate rollout", 4.0, "play", 4.0)
    meter.work_started("learn", 4.5)
    meter.work_done("train actor", 1.0, "learn", 5.5)
    # Nobody else has worked since then.
    meter.work_started("learn", 6.0)
    taken = meter.take()
    assert taken.waits == {"learn": {"generate rollout (play)": 3.5, CONTROLLER: 0.5}}
    assert taken.work_s == {"train actor": 2.0, "generate rollout": 4.0} and not meter.take().work_s


def test_a_pool_that_does_several_things_at_once_is_idle_after_the_last() -> None:
    meter = StepMeter()
    for _ in range(2):
        meter.work_started("play", 0.0)
    meter.work_done("a", 1.0, "play", 1.0)
    meter.work_started("play", 3.0)
    for end in (4.0, 5.0):
        meter.work_done("a", 1.0, "play", end)
    meter.work_started("play", 7.0)
    assert meter.take().waits == {"play": {CONTROLLER: 2.0}}


def test_a_peak_is_told_when_it_has_grown() -> None:
    meter = StepMeter()
    meter.memory_peaks("learn", {"learn 0": 1000})
    assert meter.take().memory == {"learn": {"learn 0": 1000}}
    meter.memory_peaks("learn", {"learn 0": 1005})
    assert meter.take().memory == {}
    meter.memory_peaks("learn", {"learn 0": 1200})
    assert meter.take().memory == {"learn": {"learn 0": 1200}}


LATE = """algorithm late
model actor  = causal_lm("Qwen/Qwen2.5-0.5B")
data prompts = jsonl("prompts.jsonl", batch=8)
func correct = python("rewards.py:exact_match")
step async(staleness=2):
    rollout = actor.generate(prompts, n=4, max_tokens=64)
    adv     = center(correct(rollout), prompts)
    train actor(lr=1e-6):
        minimize mean(-min(exp(actor.logprobs(rollout) - rollout.logprobs), 2.0) * adv)
    report reward = mean(adv)
"""


def _trace(step: int, versions: list[int], trained: list[int]) -> dict[str, Any]:
    rows = [("prompts", 0, 10 * step + at, 0) for at in range(len(versions))]
    return {
        "step": step,
        "phase": "step",
        "changed": {"actor": 8},
        "sampled": [{"node": "rollout", "rows": rows, "versions": [((version, 5),) for version in versions]}],
        "trained": [{"node": "actor", "table": "rollout", "rows": [rows[at] for at in trained] * 2}],
    }


def test_ages_are_versions_between_sampling_and_the_first_training(tmp_path: Path) -> None:
    (tmp_path / "late.rlf").write_text(LATE)
    program = rlgraph.compile(tmp_path / "late.rlf").program
    [keys] = RowAges(program)._samplers.values()
    [(weights, table)] = keys
    [(sampler, model)] = keys.values()
    assert model == "actor"

    def traced(*args: Any) -> dict[str, Any]:
        trace = _trace(*args)
        trace["sampled"][0]["node"] = sampler
        trace["trained"][0] |= {"node": weights, "table": table}
        return trace

    steps = [traced(1, [0, 0], [0, 1]), traced(2, [0, 1, 1], [0, 1, 2]), traced(3, [0, 2], [0, 1])]
    ages = RowAges(program)
    expected = [{"0": 2}, {"0": 2, "1": 1}, {"0": 1, "2": 1}]
    assert [ages.add_step(step) for step in steps] == expected
    # A run that goes on knows the versions of the steps before.
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps[:2]))
    resumed = RowAges(program)
    resumed.go_on_after(tmp_path / "trace.jsonl")
    assert resumed.add_step(steps[2]) == expected[2]
    # Rows that nobody trained on are forgotten in the end.
    ages.add_step(traced(KEPT_STEPS - 1, [0, 0], []))
    ages.add_step(traced(2 * KEPT_STEPS, [0], [0]))
    assert not any(ages._sampled.values())


def test_rows_of_a_program_whose_steps_do_not_overlap_have_no_ages() -> None:
    path = Path(rlgraph.__file__).parent / "algorithms" / "grpo.rlf"
    assert row_ages(rlgraph.compile(path, schedule=SCHEDULE).program) is None
