"""`if`, `stop` and `keep` in loops: what is left out changes nothing, the same on every backend and in any blocks."""

from __future__ import annotations

from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scheduled import apart, compiled, debug_metrics, together, traced
from tiny import Run, Seen, compile_text, data_folder, weights

from rlgraph.backends.frame import Frame
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.graph import Node
from tests.suites import few

HEAD = f"""algorithm conditions
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
func spread  = python("rewards.py:spread", over=row)
"""
TRAIN = "train actor(lr=linear(0.05, warmup=2, steps=9), eps=0.01, weight_decay=0.5, clip_norm=1.0)"
STOPPED = (
    HEAD
    + f"""state updates = 0
state far     = 0
step:
    rollout  = actor.generate(prompts, n=2, max_tokens=5)
    old      = actor.logprobs(rollout)
    score    = spread(rollout)
    updates := 0
    minibatch prompts(parts=3, epochs=2):
        far     := mean(k2(old, actor.logprobs(rollout)))
        stop where LIMIT
        updates := updates + 1
        {TRAIN}:
            minimize mean(-actor.logprobs(rollout) * score)
    report far, updates, now = mean(actor.logprobs(rollout)), score = mean(score)
"""
)
"""The policy goes its way for a few updates, and then the loop ends."""


def stopped(limit: str) -> str:
    return STOPPED.replace("LIMIT", limit)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("conditions"))


def weights_after_updates(text: str, folder: Path) -> list[dict[str, torch.Tensor]]:
    """The weights after each update of the first step."""
    run, found = Run(compile_text(text), folder), []

    def note(node: Node, frame: Frame) -> None:
        if node.op == "train":
            found.append({name: tensor.clone() for name, tensor in run.models["actor"].state_dict().items()})

    run.also = note
    run.steps(1)
    return found


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_loop_ends_between_two_updates(folder: Path, count: int) -> None:
    """After so many updates the weights are those of the loop that goes on, there: nothing else has moved them."""
    every = weights_after_updates(stopped("false"), folder)
    run = Run(compile_text(stopped(f"updates >= {count}")), folder)
    [seen] = run.steps(1)
    assert len(every) == 6 and seen.metrics["updates"] == count
    assert equal(seen.weights["actor"], every[count - 1] if count else run.initial["actor"])
    assert run.backend.optimizer_step_counts() == {"actor": count}


@cache
def stopped_by_distance(folder: Path) -> list[Seen]:
    return Run(compile_text(stopped("far > 0.01")), folder).steps(3)


def test_the_distance_ends_the_loop(folder: Path) -> None:
    counts = [seen.metrics["updates"] for seen in stopped_by_distance(folder)]
    assert all(0 < count < 6 for count in counts) and all(
        seen.metrics["far"] > 0.01 for seen in stopped_by_distance(folder)
    )


@pytest.mark.parametrize("settings", [{"micro_rows": 1}, {"micro_rows": 3, "block": 1}, {"block": 2}])
def test_any_split_stops_at_the_same_place(folder: Path, settings: dict[str, int]) -> None:
    found = Run(compile_text(stopped("far > 0.01")), folder, **settings).steps(3)
    for mine, theirs in zip(found, stopped_by_distance(folder), strict=True):
        assert mine.metrics == pytest.approx(theirs.metrics, abs=1e-11)


@pytest.mark.parametrize("schedule", [together, apart])
def test_groups_of_processes_stop_at_the_same_place(folder: Path, schedule: Any) -> None:
    text = stopped("far > 0.01")
    made = compiled(text, {}, schedule(compile_text(text)), folder)
    for mine, theirs in zip(debug_metrics(made, folder, 3), stopped_by_distance(folder), strict=True):
        assert mine == pytest.approx(theirs.metrics, abs=1e-11)


SKIPPED = (
    HEAD
    + f"""model ref    = frozen(actor)
state seen   = 0
buffer past  = fifo(capacity=20)
step ASYNC:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    early   = max(prompts.place) < 5
    BRANCH
        {TRAIN}:
            minimize mean(-actor.logprobs(rollout))
    report version = max(rollout.version), tokens = sum(rollout.length * (1 + prompts.place)), sampled = sum(rollout.logprobs)
"""
)
"""Of two batches it trains on the first."""


def skipped(by_rows: bool, asynchronous: str = "", more: str = "") -> str:
    branch = "keep rollout where prompts.place < 5\n    every 1:" if by_rows else "if early:"
    text = SKIPPED.replace(" ASYNC", asynchronous).replace("BRANCH", branch + more)
    return text if by_rows else text.replace("buffer past  = fifo(capacity=20)\n", "") if "past" not in more else text


@pytest.mark.parametrize("asynchronous", ["", " async(lag=1)", " async(lag=2)"])
def test_what_is_skipped_is_as_a_training_without_rows(folder: Path, asynchronous: str) -> None:
    """Neither moments nor decay nor the schedule of the rate: the training after it shows that."""
    mine, theirs = (Run(compile_text(skipped(by_rows, asynchronous)), folder) for by_rows in (False, True))
    for one, other in zip(mine.steps(5), theirs.steps(5), strict=True):
        assert equal(one.weights["actor"], other.weights["actor"])
        if other.metrics["tokens"]:
            assert one.metrics["version"] == other.metrics["version"]
    assert mine.backend.optimizer_step_counts() == theirs.backend.optimizer_step_counts() == {"actor": 3, "ref": 0}


@pytest.mark.parametrize(
    ("asynchronous", "schedule"),
    few(
        [(lag, schedule) for lag in ("", " async(lag=1)", " async(lag=2)") for schedule in (together, apart)],
        ("", apart),
        (" async(lag=1)", together),
        (" async(lag=2)", apart),
    ),
)
def test_versions_go_on_where_nothing_is_trained(
    folder: Path, asynchronous: str, schedule: Any, tmp_path: Path
) -> None:
    """Rows of later steps are of the weights that `lag` says, wherever these are."""
    text = skipped(False, asynchronous)
    local = [seen.metrics for seen in Run(compile_text(text), folder).steps(6)]
    made = compiled(text, {}, schedule(compile_text(text)), folder)
    with closing(RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)) as backend:
        steps = list(backend.run_steps(6))
    for one, other in zip(local, steps, strict=True):
        assert one == pytest.approx(other.metrics, abs=1e-11)
    if asynchronous:
        assert traced(made, steps, tmp_path / "run").diagnostics == []


def test_states_buffers_and_copies_stay_as_they_are(folder: Path) -> None:
    more = """
        seen := seen + 1
        push past(rollout)
        update ref from actor(ema=0.5)
        old   = past.sample(20)
        report held = size(old.length)"""
    text = skipped(False, more=more).replace("report version", "report seen, version")
    steps = Run(compile_text(text), folder).steps(4)
    assert [seen.metrics["seen"] for seen in steps] == [1, 1, 2, 2]
    assert [seen.metrics.get("held") for seen in steps] == [10, None, 20, None], (
        "a metric of the steps on which it runs"
    )
    same = [equal(one.weights["ref"], two.weights["ref"]) for one, two in zip(steps, steps[1:], strict=False)]
    assert same == [True, False, True]


KEPT = (
    HEAD
    + """step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    score   = spread(rollout)
    minibatch prompts(parts=PARTS, epochs=2):
        LINE
        train actor(lr=0.05, eps=0.01, weight_decay=0.5):
            minimize LOSS
    report all = size(rollout.length), score = sum(score), now = sum(actor.logprobs(rollout))
"""
)


@pytest.mark.parametrize(("parts", "micro"), [(1, 1), (2, 3)])
def test_rows_that_are_kept_of_a_slice(folder: Path, parts: int, micro: int) -> None:
    """The loss is that of these rows, and after the loop all rows are there."""
    kept, masked = (
        KEPT.replace("PARTS", str(parts)).replace("LINE", line).replace("LOSS", loss)
        for line, loss in (
            ("keep rollout where score > 0.4", "mean(-actor.logprobs(rollout) * score)"),
            (
                "good = where(score > 0.4, 1, 0) + 0 * rollout.logprobs",
                "sum(-actor.logprobs(rollout) * score * good) / sum(good)",
            ),
        )
    )
    one, other = (Run(compile_text(text), folder, micro_rows=micro).steps(2) for text in (kept, masked))
    for mine, theirs in zip(one, other, strict=True):
        assert mine.metrics == pytest.approx(theirs.metrics, abs=1e-11) and mine.metrics["all"] == 10
    made = compiled(kept, {}, apart(compile_text(kept)), folder)
    for metrics, theirs in zip(debug_metrics(made, folder, 2), other, strict=True):
        assert metrics == pytest.approx(theirs.metrics, abs=1e-11)


def test_a_slice_of_which_no_row_is_kept_changes_nothing(folder: Path) -> None:
    text = KEPT.replace("PARTS", "5").replace("LINE", "keep prompts where prompts.place == 3")
    run = Run(compile_text(text.replace("LOSS", "mean(-actor.logprobs(rollout))")), folder)
    [seen] = run.steps(1)
    assert run.backend.optimizer_step_counts() == {"actor": 2} and seen.metrics["actor.skipped_empty"] == 8
