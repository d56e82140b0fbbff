"""Losses of whole distributions over the vocabulary, run for three steps and replayed from their formulas
(`vocabulary_formulas.py`), whatever rows are computed together. Each run takes about half a second."""

from __future__ import annotations

from pathlib import Path

import pytest
import vocabulary_formulas
from replay import ACTOR, DISTILLED, SPLITS, Replay, all_rows_of, groups_of
from tiny import STUDENT_AND_TEACHER, data_folder, shipped

from tests.suites import few


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("vocabulary"))


@pytest.mark.parametrize("split", few(SPLITS, "whole", "by row"))
@pytest.mark.parametrize("beta", few([0.1, 0.5, 0.9], 0.1))
def test_gkd(folder: Path, beta: float, split: str) -> None:
    text = shipped("gkd", {"max_tokens=512": "max_tokens=5", "lr=1e-5": "lr=0.02"})
    replay = Replay(text, folder, {**DISTILLED, "beta": str(beta)}, **SPLITS[split])
    for seen in replay.steps:
        rows = all_rows_of(seen, "rollout")
        step = vocabulary_formulas.gkd(replay.models["actor"], replay.models["teacher"], rows, beta=beta, lr=0.02)
        replay.same(seen, step)


MANY = f"""
algorithm many
{STUDENT_AND_TEACHER}def full_kl(p, q):
    return sum(p * log(p / q), vocab)
step:
    rollout = actor.generate(prompts, n=3, max_tokens=5, temperature=0.7)
    p = teacher.distribution(rollout)
    train actor(lr=0.02, eps=1e-2):
        q = actor.distribution(rollout)
        both = full_kl(p, q) + 0.5 * full_kl(q, p)
        other = 0.1 * sum(q * log(q), vocab) + 0.3 * sum(q**2, vocab) - 0.2 * sum(sqrt(p * q), vocab)
        entropy = -sum(q * log(q), vocab)
        minimize mean(both + other) + 0 * mean(actor.entropy(rollout))
    report entropy = mean(entropy)
"""


@pytest.mark.parametrize("split", few(SPLITS, "whole", "by row"))
def test_many_sums_at_a_temperature(folder: Path, split: str) -> None:
    replay = Replay(MANY, folder, DISTILLED, **SPLITS[split])
    for seen in replay.steps:
        rows = all_rows_of(seen, "rollout")
        actor, teacher = replay.models["actor"], replay.models["teacher"]
        replay.same(seen, vocabulary_formulas.many_sums(actor, teacher, rows, temperature=0.7, lr=0.02))


OTB = """
algorithm otb
param base = 0
model actor = causal_lm(base)
data prompts = jsonl("gsm8k.jsonl", batch=6)
func correct = python("rewards.py:exact_match")
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    score   = correct(rollout)
    q       = actor.distribution(rollout)
    energy  = cumsum(1 - 2 * exp(actor.logprobs(rollout)) + sum(q * q, vocab))
    place   = cumsum(where(rollout.tokens >= 0, 1, 0))
    adv     = score - sum(score * energy, by=key(prompts, place)) / sum(energy, by=key(prompts, place))
    train actor(lr=0.02, eps=1e-2):
        minimize mean(-actor.logprobs(rollout) * adv)
    report reward = mean(score)
"""


def test_the_optimal_token_baseline(folder: Path) -> None:
    replay = Replay(OTB, folder, ACTOR)
    for seen in replay.steps:
        groups = groups_of(seen.table("rollout"), seen.values["score"])
        replay.same(seen, vocabulary_formulas.otb(replay.models["actor"], groups, lr=0.02))


HINTED = f"""
algorithm hinted
{STUDENT_AND_TEACHER}step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    plain   = teacher.distribution(rollout)
    same    = teacher.distribution(row("{{prompts.prompt}}", rollout))
    hinted  = teacher.distribution(row("ab{{prompts.prompt}}", rollout))
    train actor(lr=0.02, eps=1e-2):
        q    = actor.distribution(rollout)
        pull = sum(hinted * log(hinted / q), vocab)
        minimize mean(pull)
    report gap = mean(sum(abs(plain - same), vocab)), told = mean(sum(abs(plain - hinted), vocab)), pull = mean(pull)
"""


AB = [3, 4]
"""`ab` in tokens: a built tokenizer has three others first."""


@pytest.mark.parametrize("split", few(SPLITS, "by row"))
def test_the_same_tokens_behind_another_prompt(folder: Path, split: str) -> None:
    replay = Replay(HINTED, folder, DISTILLED, **SPLITS[split])
    for seen in replay.steps:
        rows = all_rows_of(seen, "rollout")
        actor, teacher = replay.models["actor"], replay.models["teacher"]
        step = vocabulary_formulas.hinted(actor, teacher, rows, hint=AB, lr=0.02)
        replay.same(seen, step)
        assert seen.metrics["told"] > 1e-2


BESIDE = f"""
algorithm beside
{STUDENT_AND_TEACHER}state last = 0.5
step:
    rollout = actor.generate(prompts, n=3, max_tokens=5, temperature=0.7)
    told    = teacher.logprobs(rollout)
    adv     = mean(told, token) - mean(told, by=prompts)
    p       = teacher.distribution(rollout)
    train actor(lr=0.02, eps=1e-2):
        q      = actor.distribution(rollout)
        pull   = sum(clip(adv, -0.5, 0.5) * q * log(q / p) + told * q**2, vocab)
        corner = max(q - last * p, vocab) + min(adv * q * p, vocab)
        minimize mean(pull + corner + mean(exp(rollout.logprobs) * q * log(q), vocab))
    sure = max(p, vocab)
    last := mean(sure)
    report sure = mean(sure), pull = mean(pull), level = mean(sum(mean(adv, by=prompts) * p * log(p), vocab))
"""


@pytest.mark.parametrize("split", few(SPLITS, "by row"))
def test_numbers_of_rows_and_tokens_beside_probabilities(folder: Path, split: str) -> None:
    replay, last = Replay(BESIDE, folder, DISTILLED, **SPLITS[split]), 0.5
    for seen in replay.steps:
        groups = [group for table in seen.sampled for group in groups_of(table)]
        actor, teacher = replay.models["actor"], replay.models["teacher"]
        step = vocabulary_formulas.beside(actor, teacher, groups, last=last, temperature=0.7, lr=0.02)
        replay.same(seen, step)
        last = seen.metrics["sure"]
