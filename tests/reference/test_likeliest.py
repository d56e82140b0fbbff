"""Log-probabilities of a truncated support, and sums with a teacher's likeliest tokens, run for three steps and replayed
from their formulas (`likeliest_formulas.py`), whatever rows are computed together. Each run takes about half a
second."""

from __future__ import annotations

from pathlib import Path

import likeliest_formulas
import pytest
from replay import DISTILLED, SPLITS, Replay, all_rows_of, close
from tiny import STUDENT_AND_TEACHER, data_folder

from rlgraph.dsl.check import check
from rlgraph.errors import ProgramError, Source
from tests.suites import few

TRUNCATED = f"""
algorithm truncated
{STUDENT_AND_TEACHER}step:
    rollout = actor.generate(prompts, n=3, max_tokens=5, temperature=0.7, top_k=6, top_p=0.8)
    seen    = actor.likeliest(rollout, top_k=6, top_p=0.8)
    p       = teacher.likeliest(rollout, top_k=4)
    old     = actor.logprobs(rollout, within=seen)
    train actor(lr=0.02, eps=1e-2):
        minimize mean(-actor.logprobs(rollout))
    train actor(lr=0.02, eps=1e-2):
        ratio = exp(actor.logprobs(rollout, within=seen) - old)
        q     = actor.distribution(rollout)
        minimize mean(-ratio) + mean(sum(p * log(p / q), vocab))
    report kept = mean(sum(seen, vocab)), old = mean(old)
"""


IN_SLICES = TRUNCATED.replace(
    "    train actor(lr=0.02, eps=1e-2):\n        ratio",
    "    minibatch rollout(parts=1):\n      train actor(lr=0.02, eps=1e-2):\n        ratio",
)
QUIET = """
algorithm quiet
model actor = causal_lm("m")
data prompts = jsonl("p.jsonl", batch=4)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=8, top_k=20, top_p=0.9)
    seen = actor.likeliest(rollout, top_k=20, top_p=0.9)
    old = actor.logprobs(rollout, within=seen)
    minibatch rollout(parts=2):
        train actor(lr=1e-6):
            now = actor.logprobs(rollout, within=seen)
            minimize mean(exp(now - old) + exp(now - (rollout.logprobs - log(sum(seen, vocab)))))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("likeliest"))


@pytest.mark.parametrize("top_k", [6, 0])
@pytest.mark.parametrize("split", few(SPLITS, "whole", "by row"))
def test_ratios_within_the_tokens_that_the_sampler_kept(folder: Path, split: str, top_k: int) -> None:
    """Also with as many as `top_p` keeps alone."""
    replay = Replay(TRUNCATED if top_k else TRUNCATED.replace("top_k=6, ", ""), folder, DISTILLED, **SPLITS[split])
    for seen in replay.steps:
        rows = all_rows_of(seen, "rollout")
        actor, teacher = replay.models["actor"], replay.models["teacher"]
        cut = {"temperature": 0.7, "top_k": top_k or 1000, "top_p": 0.8}
        step = likeliest_formulas.truncated(actor, teacher, rows, lr=0.02, **cut)
        assert 0.3 < step.metrics["kept"] < 0.95, "else little is left out"
        replay.same(seen, step)


def test_slices_have_the_tokens_of_their_rows(folder: Path) -> None:
    whole, sliced = (Replay(text, folder, DISTILLED) for text in (TRUNCATED, IN_SLICES))
    assert IN_SLICES != TRUNCATED
    for a, b in zip(whole.steps, sliced.steps, strict=True):
        close("metrics", a.metrics, b.metrics)
        close("losses", a.losses, b.losses)


@pytest.mark.parametrize("cut", ["top_k=20, top_p=0.9", "top_p=0.9", "min_p=0.1"])
def test_both_sides_among_the_tokens_of_the_sampler_are_no_alarm(cut: str) -> None:
    _, warnings = check(Source("p.rlf", QUIET.replace("top_k=20, top_p=0.9", cut)))
    assert not warnings


def test_all_tokens_are_not_kept() -> None:
    with pytest.raises(ProgramError, match="needs `top_k`, `top_p` or `min_p`"):
        check(Source("p.rlf", QUIET.replace("likeliest(rollout, top_k=20, top_p=0.9)", "likeliest(rollout)")))
