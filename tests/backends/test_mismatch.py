"""What is sampled with against what is trained, of the same tokens: a metric of every run, without another pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scheduled import apart, compiled
from test_exactness import PROGRAMS
from tiny import compile_text, data_folder, shipped, weights

from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.mismatch import KL, MAX, Mismatch, Mismatches
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.step import Step
from rlgraph.backends.steps import StepResult
from rlgraph.backends.worker.session import Settings
from rlgraph.runs.mismatch_warning import BOUND, MismatchWarning

PROGRAM = """
algorithm small
model actor  = causal_lm(WEIGHTS)
data prompts = jsonl("prompts.jsonl", batch=4)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=6)
    TRAIN
    report length = mean(rollout.length)
"""
TRAIN = "train actor(lr=1e-2):\n        minimize -mean(actor.logprobs(rollout))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("mismatch"))


def text(train: str = TRAIN, step: str = "step:", generate: str = "") -> str:
    swapped = PROGRAM.replace("WEIGHTS", weights()).replace("TRAIN", train).replace("step:", step)
    return swapped.replace("max_tokens=6", f"max_tokens=6{generate}")


def ran(program: str, folder: Path, steps: int = 2, wrong: float = 0.0) -> list[StepResult]:
    """The steps of a run in this process. wrong: what is added to the log-probabilities that the sampler tells."""
    backend = LocalBackend(compile_text(program), Settings(folder=folder))
    if wrong:
        backend.watch = lambda node, frame: _shift(node, frame, wrong)
    try:
        return list(backend.run_steps(steps))
    finally:
        backend.close()


def _shift(node: Any, frame: Any, by: float) -> None:
    if node.op == "generate":
        frame.values[node.name].columns["logprobs"] += by


def compared(steps: list[StepResult]) -> list[bool]:
    return [{KL, MAX} <= set(step.extra) for step in steps]


def test_one_engine_agrees_with_itself_to_rounding(folder: Path) -> None:
    steps = ran(text(), folder)
    assert compared(steps) == [True, True]
    assert all(0 <= step.extra[KL] < 1e-9 and 0 <= step.extra[MAX] < 1e-4 for step in steps)


def test_a_sampler_that_is_off_is_seen_by_how_much(folder: Path) -> None:
    [step] = ran(text(), folder, 1, wrong=0.25)
    assert step.extra[MAX] == pytest.approx(0.25, abs=1e-4)
    assert step.extra[KL] == pytest.approx(torch.tensor(-0.25).expm1().item() + 0.25, abs=1e-5)


@pytest.mark.parametrize(
    ("generate", "asked", "like"),
    [
        (", temperature=0.7", "", True),
        (", temperature=0.7", ", temperature=1.0", False),
        (", top_p=0.9", "", True),
        (", top_k=2", "", True),
        (", temperature=0", "", True),
    ],
)
def test_like_is_compared_with_like(generate: str, asked: str, like: bool, folder: Path) -> None:
    """Log-probabilities are of the whole distribution, whatever is cut off of it, and at one temperature."""
    steps = ran(text(TRAIN.replace("(rollout)", f"(rollout{asked})"), generate=generate), folder)
    assert compared(steps) == [like, like]
    assert all(step.extra.get(MAX, 0.0) < 1e-4 for step in steps)


def test_rows_that_are_trained_on_after_an_update_are_left_out(folder: Path) -> None:
    """The first update of a step has the weights that sampled; the second one would compare other weights."""
    halves = "minibatch prompts(parts=2):\n        " + TRAIN.replace("\n", "\n    ")
    assert all(step.extra[MAX] < 1e-4 for step in ran(text(halves), folder))
    after = TRAIN + "\n    late = actor.logprobs(rollout)\n    report late = mean(late)"
    assert all(step.extra[MAX] < 1e-4 for step in ran(text(after), folder))


def test_rows_of_older_weights_are_left_out(folder: Path) -> None:
    """With `lag=1` the first step alone samples with the weights that it trains."""
    assert compared(ran(text(step="step async(lag=1):"), folder, 3)) == [True, False, False]


@pytest.mark.parametrize("train", ["", "old = actor.logprobs(rollout)\n    report old = mean(old)"])
def test_nothing_is_computed_for_it(train: str, folder: Path) -> None:
    """Where the trainer reads no row, or the sampler's numbers are taken for its own, there is nothing to compare."""
    assert compared(ran(text(train), folder)) == [False, False]


@pytest.mark.parametrize("name", ["ppo", "agent"])
def test_processes_of_a_plan_report_what_one_process_does(name: str, folder: Path) -> None:
    swaps, changes = PROGRAMS[name]
    program = shipped(name, swaps)
    made = compiled(program, changes, apart(compile_text(program, changes)), folder)
    backend = RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)
    try:
        steps = list(backend.run_steps(2))
    finally:
        backend.close()
    assert compared(steps) == [True, True]
    assert all(step.extra[MAX] < 1e-4 for step in steps)


def test_parts_count_by_their_tokens() -> None:
    sums, step = Mismatches(), Step(3, "step", 0, 0)
    sums.add(step, [Mismatch("actor", 1, 0.4, 0.9), Mismatch("critic", 3, 0.0, 0.1)])
    sums.add(Step(4, "step", 0, 0), [Mismatch("actor", 1, 5.0, 5.0)])
    assert sums.pop_metrics(step) == {KL: 0.1, MAX: 0.9}
    assert sums.pop_metrics(step) == {}
    sums.clear()
    assert sums.pop_metrics(Step(4, "step", 0, 0)) == {}


def results(kls: list[float | None]) -> Iterator[StepResult]:
    for number, kl in enumerate(kls, start=1):
        yield StepResult(number, "step", 1.0, {}, {} if kl is None else {KL: kl, MAX: 2.5})


@pytest.mark.parametrize(
    ("kls", "said"),
    [([None, BOUND, BOUND / 2], []), ([None, 0.02, 0.03], [2]), ([float("nan")], [1])],
)
def test_the_warning_is_said_once(kls: list[float | None], said: list[int]) -> None:
    notes: list[str] = []
    warning = MismatchWarning(notes.append)
    for step in results(kls):
        warning.step_done(step)
    assert [f"in step {number} " in note for number, note in zip(said, notes, strict=True)] == [True] * len(said)
    assert all(note.startswith("warning[W0907]") and "nats" in note for note in notes)
