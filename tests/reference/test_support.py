"""The tokens that a sampler chose from, kept with the rows while the weights move on: each run takes about half a
second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import support_formulas
from replay import DISTILLED, SPLITS, Replay, all_rows_of
from tiny import STUDENT_AND_TEACHER, data_folder, run_text

from rlgraph.dsl.check import check
from rlgraph.errors import Source
from tests.suites import few

LAGGED = f"""
algorithm lagged
{STUDENT_AND_TEACHER}step async(lag=1):
    rollout = actor.generate(prompts, n=3, max_tokens=5, temperature=0.7, CUT, support=keep)
    was     = rollout.logprobs - log(sum(rollout.support, vocab))
    ratio   = exp(actor.logprobs(rollout, within=rollout.support) - was)
    train actor(lr=0.05, eps=1e-2):
        minimize mean(-exp(actor.logprobs(rollout, within=rollout.support) - was))
    report kept = mean(sum(rollout.support, vocab)), ratio = mean(ratio)
"""
CUTS: dict[str, dict[str, Any]] = {
    "top_k=6, top_p=0.8": {"top_k": 6, "top_p": 0.8},
    "top_p=0.7": {"top_k": 1000, "top_p": 0.7},
}
GAP = "abs(actor.logprobs({t}, within={t}.support) - ({t}.logprobs - log(sum({t}.support, vocab))))"
SURVIVES = f"""
algorithm survives
{STUDENT_AND_TEACHER}func spread = python("rewards.py:spread")
buffer past = fifo(capacity=24)
step:
    rollout = actor.generate(prompts, n=3, max_tokens=6, top_p=0.8, min_tokens=2, support=keep)
    score = spread(rollout)
    again = past.sample(7)
    push past(rollout)
    best = pick(rollout, argmax(score, by=prompts))
    stem = prefix(rollout, tokens=3)
    made = row(prompts.prompt, rollout)
    some = actor.generate(prompts, n=4, first=2, max_tokens=6, top_p=0.8, support=keep)
    a = {GAP.format(t="again")}
    b = {GAP.format(t="best")}
    c = {GAP.format(t="stem")}
    d = {GAP.format(t="made")}
    e = {GAP.format(t="some")}
    minibatch rollout(parts=2, shuffle=true):
        f = {GAP.format(t="rollout")}
        train teacher2(lr=0.1):
            minimize mean(-teacher2.logprobs(rollout, within=rollout.support))
    keep rollout where score > mean(score)
    g = {GAP.format(t="rollout")}
    report a = max(a), b = max(b), c = max(c), d = max(d), e = max(e), f = max(f), g = max(g), left = mean(score)
    report kept = mean(sum(rollout.support, vocab))
""".replace("model teacher = frozen(causal_lm(master))", "model teacher2 = causal_lm(master)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("support"))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("split", few(SPLITS, "whole", "by row"))
def test_ratios_of_moved_weights_are_among_the_tokens_of_the_old_ones(folder: Path, split: str, cut: str) -> None:
    replay = Replay(LAGGED.replace("CUT", cut), folder, DISTILLED, **SPLITS[split])
    actor = replay.models["actor"]
    past, moved = [support_formulas.as_it_is(actor)] * 2, 0
    for seen in replay.steps:
        past.append(support_formulas.as_it_is(actor))
        rows = all_rows_of(seen, "rollout")
        step, others = support_formulas.lagged(actor, past[-2], rows, temperature=0.7, **CUTS[cut], lr=0.05)
        assert 0.3 < step.metrics["kept"] < 0.95, "else little is left out"
        replay.same(seen, step)
        moved += others
    assert moved > 3, "else the present weights would be sampled from the same tokens"


@pytest.mark.parametrize("split", few(SPLITS, "whole", "blocks of three"))
def test_they_stay_with_their_tokens(folder: Path, split: str) -> None:
    """Where rows are pushed, picked, cut, put together, chosen and shuffled; the weights are those that sampled."""
    changes = {**DISTILLED, "teacher2": DISTILLED["actor"].replace("student", "master")}
    del changes["teacher"]
    for number, seen in enumerate(run_text(SURVIVES, folder, 3, changes, **SPLITS[split])):
        for name in "bcdefg" if number == 0 else "abcdefg":
            assert seen.metrics[name] < 1e-9, name
        assert 0.5 < seen.metrics["kept"] < 0.99


def test_both_sides_among_them_are_no_alarm() -> None:
    text = LAGGED.replace("CUT", "top_p=0.9, min_tokens=2").replace("param student = 0", 'param student = "m"')
    text = text.replace("param master = 0\n", "").replace("model teacher = frozen(causal_lm(master))\n", "")
    _, warnings = check(Source("p.rlf", text))
    assert [warning.code for warning in warnings] == ["W0507"], "that it has no cap, as every ratio of older weights"
