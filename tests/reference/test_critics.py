"""Algorithms with a critic beside PPO, run for three steps and replayed from their formulas (`critic_formulas.py`). Each
run takes about a second."""

from __future__ import annotations

from pathlib import Path

import critic_formulas
import pytest
from critic_formulas import PPO
from replay import ACTOR, JUDGE, Replay, groups_of, rows_of, source
from tiny import data_folder, shipped

CRITIC = {"critic": 'value_lm(base, dtype="float64")'}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data, and PPO, which others use."""
    path = data_folder(tmp_path_factory.mktemp("critics"))
    text = shipped("ppo", {"max_tokens=512": "max_tokens=6", "lr=1e-6": "lr=0.02", "lr=5e-6": "lr=0.03"})
    (path / "ppo.rlf").write_text(text)
    return path


def test_a_kl_weight_that_follows_a_target(folder: Path) -> None:
    changes = {**ACTOR, **JUDGE, **CRITIC, "prompts": source("prompts", 7), "target_kl": "0.02", "horizon": "20"}
    replay = Replay(shipped("ppo_adaptive_kl"), folder, changes, path=str(folder / "p.rlf"))
    known = PPO(1.0, 0.95, 0.2, 0.2, 0.05, 0.02, 0.03, 8, 2, target_kl=0.02, horizon=20)
    weights = [known.beta]
    for seen in replay.steps:
        models = (replay.models[name] for name in ("actor", "critic", "ref", "reward"))
        replay.same(seen, critic_formulas.ppo(known, *models, rows_of(seen.table("rollout"))))
        weights.append(known.beta)
    assert max(weights) > weights[0] > min(weights), "it falls and rises"


@pytest.mark.parametrize("most", [0.002, 0.02])
def test_updates_that_end_early(folder: Path, most: float) -> None:
    """Neither the policy's moments nor its number of updates go on where an update is left out."""
    changes = {**ACTOR, **JUDGE, **CRITIC, "prompts": source("prompts", 7), "most_kl": str(most)}
    replay = Replay(shipped("ppo_early_stop"), folder, changes, path=str(folder / "p.rlf"))
    known = PPO(1.0, 0.95, 0.2, 0.2, 0.05, 0.02, 0.03, 8, 2, most_kl=most)
    counts = []
    for seen in replay.steps:
        models = (replay.models[name] for name in ("actor", "critic", "ref", "reward"))
        replay.same(seen, critic_formulas.ppo(known, *models, rows_of(seen.table("rollout"))))
        counts.append(known.updates)
    assert 0 < min(counts) < 14


def test_vapo(folder: Path) -> None:
    changes = {**ACTOR, **CRITIC, "prompts": source("gsm8k", 6), "n": "3", "limit": "6", "alpha": "0.5"}
    text = shipped("vapo", {"steps=50": "steps=1", "parts=16": "parts=3"})
    replay = Replay(text, folder, {**changes, "rate": "0.02", "rate_v": "0.03"})
    first, *others = replay.steps
    models = replay.models["actor"], replay.models["critic"]
    rows = rows_of(first.table("rollout"), first.scores[0])
    replay.same(first, critic_formulas.critic_alone(*models, rows, lr_v=0.03))
    for seen in others:
        [table] = [table for table in seen.sampled if table.name.startswith("rollout")]
        groups = groups_of(table, seen.scores[0])
        step = critic_formulas.vapo(*models, groups, low=0.2, high=0.28, alpha=0.5, mu=0.1, lr=0.02, lr_v=0.03, parts=3)
        replay.same(seen, step)
