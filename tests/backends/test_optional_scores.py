"""Functions that abstain or fail on some rows: what is computed of the others, in any block, loop and plan."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from scheduled import compiled
from tiny import Run, Seen, compile_text, data_folder, weights

from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.steps import StepResult
from rlgraph.backends.worker.session import Settings

USER = """
def maybe(completions, completion_ids, **columns):
    return [None if "a" in text else float(3 * sum(ids) % 7) for text, ids in zip(completions, completion_ids)]

def two(completions, **columns):
    if any("b" in text for text in completions):
        raise ValueError("no b")
    return [{"score": len(text), "format": text.count("c"), "why": f"{len(text)} long"} for text in completions]

def strict(solution_str, ground_truth, task):
    assert "d" not in solution_str
    return {"score": len(solution_str) + len(ground_truth), "more": 1}
"""
DECLARED = f"""algorithm optional
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
func maybe   = python("user.py:maybe", over=row, none=skip)
func two     = python("user.py:two", over=row, failed=skip, returns=["score", "format"], texts="why")
func strict  = python("user.py:strict", over=row, failed=-1)
"""
TEXT = f"""{DECLARED}
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    score   = maybe(rollout)
    pair    = two(rollout)
    other   = strict(rollout, ground_truth=rollout.prompt)
    both    = score + pair
    report reward = mean(score), size = size(score), form = mean(pair.format), long = mean(pair)
    report spread = mean(std(score, by=prompts)), best = mean(max(otherwise(score, -1), by=prompts))
    report both = sum(both), adv = sum(abs(center(both, prompts))), other = mean(other), why = mean(pair.why == "2 long")
    report first = sum(otherwise(score, pair)), high = count(score > 2), tokens = mean(score * rollout.logprobs)
    keep rollout where valid(score) and valid(pair)
    adv = normalize(both, prompts, 1e-6) + score
    minibatch rollout(parts=2):
        half = mean(adv)
        train actor(lr=0.01, eps=0.01):
            minimize mean(-actor.logprobs(rollout) * adv)
    report left = size(adv), gain = sum(adv), half = half, then = mean(actor.logprobs(rollout))
"""
SCHEDULE = """pool play   = 1 devices
pool judges = 2 cpus
place actor on play(engine=transformers)
place maybe, two, strict on judges
stream rollout(block={})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = data_folder(tmp_path_factory.mktemp("optional"))
    (folder / "user.py").write_text(USER)
    return folder


@cache
def whole(folder: Path) -> list[Seen]:
    """All rows at once."""
    return Run(compile_text(TEXT), folder).steps(2)


def test_numbers_by_hand(folder: Path) -> None:
    seen = whole(folder)[0]
    [rollout] = [table for table in seen.sampled if table.name == "rollout"]
    ids = [
        [token for token, mine in zip(row, scored, strict=True) if mine]
        for row, scored in zip(rollout.tokens, rollout.scored, strict=True)
    ]
    letters = ["".join("???abcd>"[token] for token in row if token > 2) for row in ids]
    score = [None if "a" in text else float(3 * sum(row) % 7) for text, row in zip(letters, ids, strict=True)]
    pair = [None if "b" in text else float(len(text)) for text in letters]
    there = [value for value in score if value is not None]
    assert 0 < len(there) < len(score), "some rows have a score, and some have none"
    found = seen.step.metrics
    assert (found["size"], found["score.abstained"]) == (len(there), len(score) - len(there))
    assert found["pair.failed"] == pair.count(None) and found["other.failed"] == sum("d" in text for text in letters)
    assert found["reward"] == pytest.approx(statistics.fmean(there))
    groups = [[s for s, g in zip(score, rollout.group, strict=True) if g == at and s is not None] for at in range(5)]
    assert found["spread"] == pytest.approx(sum(statistics.stdev(g) if len(g) > 1 else 0 for g in groups) / 5)
    best = [[-1 if s is None else s for s, g in zip(score, rollout.group, strict=True) if g == at] for at in range(5)]
    assert found["best"] == pytest.approx(statistics.fmean(map(max, best)))
    both = [a + b for a, b in zip(score, pair, strict=True) if a is not None and b is not None]
    assert found["both"] == pytest.approx(sum(both)) and found["left"] == len(both)
    assert found["form"] == pytest.approx(statistics.fmean(text.count("c") for text in letters if "b" not in text))
    assert found["why"] == sum(len(text) == 2 and "b" not in text for text in letters) / len(letters)
    first = [p if s is None else s for s, p in zip(score, pair, strict=True)]
    assert found["first"] == pytest.approx(sum(value for value in first if value is not None))
    assert found["high"] == sum(value > 2 for value in there)


def metrics(steps: Sequence[Seen | StepResult]) -> list[dict[str, float]]:
    return [dict(step.metrics) for step in steps]


@pytest.mark.parametrize("block", [1, 3])
def test_blocks(folder: Path, block: int) -> None:
    found = metrics(Run(compile_text(TEXT), folder, block=block).steps(2))
    expected = metrics(whole(folder))
    assert found == [pytest.approx(step, rel=1e-9, abs=1e-9) for step in expected]


@pytest.mark.parametrize("block", [1, 6])
def test_rows_that_stream_to_cpus(folder: Path, block: int) -> None:
    made = compiled(TEXT, {}, SCHEDULE.format(block), folder)
    with closing(RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)) as backend:
        found = metrics(list(backend.run_steps(2)))
    expected = metrics(whole(folder))
    assert found == [pytest.approx(step, rel=1e-9, abs=1e-9) for step in expected]


@pytest.mark.parametrize("judges", [True, False])
def test_the_first_failure_of_a_function_is_said_once_in_a_run(
    folder: Path, judges: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its text, by the process that runs the steps: nobody reads what the others print."""
    Run(compile_text(TEXT), folder).steps(2)
    alone = [line for line in capsys.readouterr().err.splitlines() if "failed" in line]
    assert [line.partition("; ")[2] for line in alone] == ["metrics count how often it does"] * 2
    assert [line[:12] for line in alone] == ["`two` failed", "`strict` fai"] and "no b" in alone[0]
    schedule = SCHEDULE.format(1)
    if not judges:
        schedule = "".join(line for line in schedule.splitlines(keepends=True) if "judges" not in line)
    made = compiled(TEXT, {}, schedule, folder)
    with closing(RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)) as backend:
        list(backend.run_steps(1))
        workers = [worker.session.failures for worker in backend.processes.workers.values()]  # type: ignore[attr-defined]
        assert not any(failures.prints for failures in workers)
        list(backend.run_steps(1))
    there = [line for line in capsys.readouterr().err.splitlines() if "failed" in line]
    # Which row is the first depends on how rows are shared.
    assert sorted(line[:12] for line in there) == ["`strict` fai", "`two` failed"]


COLLECTED = f"""{DECLARED}
step:
    collect prompts(4):
        rollout = actor.generate(prompts, n=4, max_tokens=5)
        score   = maybe(rollout)
        keep prompts where std(score, by=prompts) > 0
    report reward = mean(score), size = size(score), groups = mean(size(score, by=prompts))
    keep rollout where valid(score)
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(rollout) * score)
    report then = mean(actor.logprobs(rollout))
"""


def test_rows_that_a_collect_carries_over_lack_what_they_lacked(folder: Path) -> None:
    expected = metrics(Run(compile_text(COLLECTED), folder).steps(3))
    assert any(step["size"] < 16 for step in expected)
    assert all(step["size"] + step["score.abstained"] == 16 for step in expected)
    found = metrics(Run(compile_text(COLLECTED), folder, block=1).steps(3))
    assert found == [pytest.approx(step, rel=1e-9, abs=1e-9) for step in expected]
