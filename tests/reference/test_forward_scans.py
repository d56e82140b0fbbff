"""Scans that run forward along the tokens: eligibility traces (GRPO-lambda), and segments that begin anew. Each run takes
about half a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from formulas import Group, Model, Step, begin, mean, sample, token_mean
from replay import ACTOR, Replay, close, groups_of
from tiny import data_folder
from torch import Tensor

TRACES = """
algorithm traces
param base = 0
param limit = 5
model actor = causal_lm(base)
data prompts = jsonl("gsm8k.jsonl", batch=6)
func correct = python("rewards.py:exact_match")
step:
    rollout = actor.generate(prompts, n=4, max_tokens=limit)
    score   = correct(rollout)
    adv     = center(score, prompts)
    begins  = rollout.tokens % 2 == 0
    train actor(lr=0.02, eps=1e-2):
        trace   = accumulate(actor.logprobs(rollout), 0.8)
        segment = accumulate(actor.logprobs(rollout), where(begins, 0, 1))
        by_row  = accumulate(actor.logprobs(rollout), 1 / (1 + rollout.length))
        minimize mean(-adv * (trace + 0.5 * segment + 0.25 * by_row))
    report reward = mean(score), place = mean(accumulate(rollout.end, 1.0))
"""


def forward(values: list[Tensor], decays: list[float]) -> list[Tensor]:
    """e_t = decay_t e_(t-1) + x_t"""
    traces: list[Tensor] = []
    for x, decay in zip(values, decays, strict=True):
        traces.append(x + decay * traces[-1] if traces else x)
    return traces


def step_of(actor: Model, groups: list[Group]) -> Step:
    begin(actor)
    sample(actor, groups)
    terms: list[list[Tensor]] = []
    for group in groups:
        average = mean([row.score for row in group])
        for row in group:
            values = list(actor.logprobs(row))
            written = [token for token, is_written in zip(row.tokens, row.written, strict=True) if is_written]
            trace = forward(values, [0.8] * len(values))
            segment = forward(values, [0.0 if token % 2 == 0 else 1.0 for token in written])
            by_row = forward(values, [1 / (1 + row.length)] * len(values))
            terms.append(
                [
                    -(row.score - average) * (a + 0.5 * b + 0.25 * c)
                    for a, b, c in zip(trace, segment, by_row, strict=True)
                ]
            )
    step = Step()
    step.trained("actor", actor.train(token_mean(terms), 0.02))
    rows = [row for group in groups for row in group]
    ends = sum(1 for row in rows if row.length)
    step.metrics = {"reward": mean([row.score for row in rows]), "place": ends / max(sum(map(len, terms)), 1)}
    return step


@pytest.mark.parametrize("limit", ["5", "1", "0"])
def test_traces(tmp_path: Path, limit: str) -> None:
    replay = Replay(TRACES, data_folder(tmp_path), {**ACTOR, "limit": limit})
    for seen in replay.steps:
        replay.same(seen, step_of(replay.models["actor"], groups_of(seen.table("rollout"), seen.values["score"])))


@pytest.mark.parametrize("split", [{"block": 1}, {"block": 3, "micro_rows": 2}])
def test_traces_do_not_depend_on_how_rows_are_split(tmp_path: Path, split: dict[str, Any]) -> None:
    folder = data_folder(tmp_path)
    whole = Replay(TRACES, folder, ACTOR)
    parts = Replay(TRACES, folder, ACTOR, **split)
    for one, other in zip(whole.steps, parts.steps, strict=True):
        close("metrics", other.metrics, one.metrics)
        close("losses", other.losses["actor"], one.losses["actor"])
