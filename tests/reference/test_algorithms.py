"""Every algorithm that ships, run for three steps and replayed from its formulas.

A run gives the tokens it sampled and what the user's functions said of them, nothing else. The replay (`formulas.py`)
has its own copy of the first weights, its own forward pass over one row at a time, its own gradient of the loss of the
whole mini-batch and its own AdamW. After each step both must agree in every metric, in the loss and the gradient's norm
of each update, in advantages and other values on the way, and in every weight.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import formulas
import pytest
from formulas import Row
from replay import ACTOR, DISTILLED, JUDGE, Replay, causal, groups_of, rows_of, source
from tiny import data_folder, shipped, weights

from tests.suites import few


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("reference"))


# The edge cases that every algorithm with a group has to survive.
GROUPS = {
    "ragged": {},
    "a group of one": {"n": "1"},
    "all rewards equal": {"correct": 'python("rewards.py:ones")'},
    "no token at all": {"max_tokens": "0"},
    "one token": {"max_tokens": "1"},
}


@pytest.mark.parametrize("case", few(GROUPS, "ragged", "a group of one", "no token at all"))
def test_grpo(folder: Path, case: str) -> None:
    edge = dict(GROUPS[case])
    text = shipped("grpo", {"max_tokens=1024": f"max_tokens={edge.pop('max_tokens', 5)}", "lr=1e-6": "lr=0.02"})
    changes = {**ACTOR, "prompts": source("gsm8k", 6), "n": "4", "beta": "0.05", **edge}
    replay = Replay(text, folder, changes)
    actor, ref = replay.models["actor"], replay.models["ref"]
    clips = 0
    for seen in replay.steps:
        groups = groups_of(seen.table("rollout"), seen.values["score"])
        step = formulas.grpo(actor, ref, groups, eps=0.2, beta=0.05, lr=0.02, clip_norm=1.0, parts=4)
        replay.same(seen, step)
        clips += step.clips
    if case == "ragged":
        lengths = [row.length for seen in replay.steps for row in rows_of(seen.table("rollout"))]
        assert 1 in lengths and 5 in lengths, "answers that end at once, and answers that are cut"
        assert clips > 3, "the clipped branch is in use"


@pytest.mark.parametrize(
    "case", few(["ragged", "no token at all", "one token", "one row"], "ragged", "no token at all", "one row")
)
def test_ppo(folder: Path, case: str) -> None:
    longest = {"no token at all": 0, "one token": 1}.get(case, 6)
    text = shipped("ppo", {"max_tokens=512": f"max_tokens={longest}", "lr=1e-6": "lr=0.02", "lr=5e-6": "lr=0.03"})
    batch = 1 if case == "one row" else 10
    changes = {
        **ACTOR,
        **JUDGE,
        "critic": 'value_lm(base, dtype="float64")',
        "prompts": source("prompts", batch),
        "gamma": "0.9",
        "eps_v": "0.1",
    }
    replay = Replay(text, folder, changes)
    clips = 0
    for seen in replay.steps:
        step = formulas.ppo(
            *(replay.models[name] for name in ("actor", "critic", "ref", "reward")),
            rows_of(seen.table("rollout")),
            gamma=0.9,
            lam=0.95,
            eps=0.2,
            eps_v=0.1,
            beta=0.05,
            lr=0.02,
            lr_v=0.03,
            parts=8,
            epochs=2,
        )
        replay.same(seen, step)
        clips += step.clips
    if case == "ragged":
        assert clips > 3


def test_dapo(folder: Path) -> None:
    text = shipped("dapo", {"prompts(512)": "prompts(4)", "parts=16": "parts=3", "lr=1e-6": "lr=0.02"})
    changes = {**ACTOR, "prompts": source("dapo-math-17k", 5), "n": "3", "limit": "6", "cushion": "4"}
    replay = Replay(text, folder, changes)
    carried: deque[list[Row]] = deque()
    rounds = surplus = 0
    for seen in replay.steps:
        # Several batches may have been read in a step: each has its own table, and each was scored.
        batches = iter([groups_of(table, hits) for table, hits in zip(seen.sampled, seen.scores, strict=True)])
        step = formulas.dapo(
            replay.models["actor"],
            lambda batches=batches: next(batches),
            carried,
            wanted=4,
            low=0.2,
            high=0.28,
            limit=6,
            cushion=4,
            lr=0.02,
            parts=3,
        )
        assert next(batches, None) is None, "as many batches as the run read"
        replay.same(seen, step)
        rounds, surplus = max(rounds, len(seen.sampled)), max(surplus, len(carried))
    assert rounds > 1 and surplus > 0


def test_remax(folder: Path) -> None:
    text = shipped("remax", {"max_tokens=512": "max_tokens=5", "lr=1e-6": "lr=0.02"})
    replay = Replay(text, folder, {**ACTOR, **JUDGE, "prompts": source("prompts", 7)})
    for seen in replay.steps:
        rows, greedy = (rows_of(seen.table(name)) for name in ("rollout", "greedy"))
        step = formulas.remax(*(replay.models[n] for n in ("actor", "ref", "reward")), rows, greedy, beta=0.05, lr=0.02)
        replay.same(seen, step)


@pytest.mark.parametrize("n", few([3, 1], 3))
def test_online_dpo(folder: Path, n: int) -> None:
    text = shipped("online_dpo", {"max_tokens=512": "max_tokens=5", "lr=5e-7": "lr=0.02", "every 200": "every 2"})
    replay = Replay(text, folder, {**ACTOR, **JUDGE, "prompts": source("prompts", 6), "n": str(n)})
    for number, seen in enumerate(replay.steps, 1):
        groups = groups_of(seen.table("rollout"))
        step = formulas.online_dpo(
            *(replay.models[name] for name in ("actor", "ref", "reward")),
            groups,
            beta=0.1,
            lr=0.02,
            parts=4,
            refresh=number % 2 == 0,
        )
        replay.same(seen, step)


def test_distill(folder: Path) -> None:
    text = shipped("distill", {"max_tokens=1024": "max_tokens=5", "n=4": "n=3", "lr=1e-5": "lr=0.02"})
    replay = Replay(text, folder, DISTILLED)
    for seen in replay.steps:
        groups = groups_of(seen.table("rollout"))
        replay.same(seen, formulas.distill(replay.models["actor"], replay.models["teacher"], groups, lr=0.02))


@pytest.mark.parametrize("case", few(["ragged", "no token at all", "one token", "one teacher"], "ragged"))
def test_mopd(folder: Path, case: str) -> None:
    """The sampler is a step behind, so that probabilities of both differ, and some by too much."""
    longest = {"no token at all": 0, "one token": 1}.get(case, 5)
    teachers = {"solver": weights(5, hidden=16, layers=2), "talker": weights(6)}
    if case == "one teacher":  # the student as it was at first: it has nothing to say in the first step
        teachers = dict.fromkeys(teachers, weights(0))
    changes = {"student": weights(0), "actor": causal("student"), **teachers, "limit": str(longest), "rate": "0.05"}
    changes |= {"of_sums": f"frozen({causal('solver')})", "of_talk": f"frozen({causal('talker')})"}
    changes |= {"sums": source("gsm8k", 4), "talk": source("prompts", 6), "least": "0.8", "most": "1.1"}
    replay = Replay(shipped("mopd", {"step:": "step async(lag=1):", "n=4": "n=3"}), folder, changes)
    outside = tokens = 0
    for number, seen in enumerate(replay.steps):
        domains = [
            (replay.models[teacher], rows_of(seen.table(name)))
            for teacher, name in (("of_sums", "solved"), ("of_talk", "said"))
        ]
        step = formulas.mopd(replay.models["actor"], domains, least=0.8, most=1.1, lag=1, lr=0.05)
        replay.same(seen, step)
        assert case != "one teacher" or number or step.losses["actor"][0][1] < 1e-12
        outside += step.clips
        tokens += len(step.values["right"]) + len(step.values["fluent"])
    assert case != "ragged" or 3 < outside < tokens / 2, "both branches are in use"


def test_sft(folder: Path) -> None:
    text = shipped("sft", {"lr=1e-5": "lr=0.02"})
    replay = Replay(text, folder, {**ACTOR, "pairs": source("sft", 7)})
    empty = 0
    for seen in replay.steps:
        rows = rows_of(seen.table("answer"))
        empty += sum(row.length == 1 for row in rows)
        replay.same(seen, formulas.sft(replay.models["actor"], rows, lr=0.02, weight_decay=0.01))
    assert empty, "an empty response is its end alone"


def test_reward_model(folder: Path) -> None:
    text = shipped("reward_model", {"lr=1e-5": "lr=0.02"})
    changes = {"base": weights(3), "reward": 'reward_lm(base, dtype="float64")', "pairs": source("preferences", 7)}
    replay = Replay(text, folder, changes)
    for seen in replay.steps:
        good, bad = (rows_of(seen.table(name)) for name in ("chosen", "rejected"))
        replay.same(seen, formulas.reward_model(replay.models["reward"], good, bad, lr=0.02))


def test_dpo(folder: Path) -> None:
    text = shipped("dpo", {"lr=5e-7": "lr=0.02"})
    replay = Replay(text, folder, {**ACTOR, "pairs": source("preferences", 7)})
    for seen in replay.steps:
        good, bad = (rows_of(seen.table(name)) for name in ("chosen", "rejected"))
        replay.same(seen, formulas.dpo(replay.models["actor"], replay.models["ref"], good, bad, beta=0.1, lr=0.02))


def test_safe_rlhf(folder: Path) -> None:
    text = shipped(
        "safe_rlhf",
        {"max_tokens=512": "max_tokens=5", "lr=1e-6": "lr=0.02", "lr=5e-6": "lr=0.03", "parts=8": "parts=3"},
    )
    changes = {
        **ACTOR,
        "helpful": weights(1),
        "harmful": weights(2),
        "reward": 'frozen(reward_lm(helpful, dtype="float64"))',
        "cost": 'frozen(reward_lm(harmful, dtype="float64"))',
        "v_gain": 'value_lm(base, dtype="float64")',
        "v_cost": 'value_lm(base, dtype="float64")',
        "prompts": source("prompts", 7),
        "budget": "0.3",
    }
    replay = Replay(text, folder, changes)
    lagrange = 1.0
    for seen in replay.steps:
        step, lagrange = formulas.safe_rlhf(
            *(replay.models[name] for name in ("actor", "ref", "reward", "cost", "v_gain", "v_cost")),
            rows_of(seen.table("rollout")),
            lagrange,
            budget=0.3,
            beta=0.05,
            eps=0.2,
            lr=0.02,
            lr_v=0.03,
            parts=3,
        )
        replay.same(seen, step)
    assert lagrange != 1.0


@pytest.mark.parametrize("case", few(["ragged", "a group of one"], "ragged"))
def test_async_grpo(folder: Path, case: str) -> None:
    text = shipped("async_grpo", {"max_tokens=8192": "max_tokens=5", "lr=1e-6": "lr=0.05"})
    n = 1 if case == "a group of one" else 3
    replay = Replay(text, folder, {**ACTOR, "prompts": source("gsm8k", 6), "n": str(n), "cap": "1.2"})
    for number, seen in enumerate(replay.steps):
        groups = groups_of(seen.table("rollout"), seen.values["score"])
        step = formulas.async_grpo(replay.models["actor"], groups, staleness=2, eps=0.2, cap=1.2, lr=0.05, parts=4)
        replay.same(seen, step)
        assert seen.metrics["age"] == min(number, 2)


def test_agent(folder: Path) -> None:
    text = shipped(
        "agent", {"max_tokens=4096": "max_tokens=9", "n=8": "n=3", "lr=1e-6": "lr=0.02", "every 20": "every 2"}
    )
    replay = Replay(text, folder, {**ACTOR, "tasks": source("tasks", 6), "unseen": source("tasks", 4)})
    lengths: set[int] = set()
    for number, seen in enumerate(replay.steps, 1):
        episodes, *trials = seen.sampled
        greedy = rows_of(trials[0]) if number % 2 == 0 else None
        groups = groups_of(episodes)
        lengths |= {row.length for group in groups for row in group}
        step = formulas.agent(replay.models["actor"], groups, greedy, eps=0.2, lr=0.02, parts=4)
        replay.same(seen, step)
    assert 0 in lengths, "an episode whose first observation leaves no room"
