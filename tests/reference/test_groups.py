"""Policy gradients with the baseline of a group or of the batch, run for three steps and replayed from their formulas
(`group_formulas.py`). Each run takes about half a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import group_formulas
import pytest
from formulas import Group
from replay import ACTOR, JUDGE, Replay, groups_of, rows_of, source
from tiny import PROMPTS, data_folder, shipped

from tests.suites import few

EDGES: dict[str, dict[str, str]] = {
    "ragged": {},
    "a group of one": {"n": "1"},
    "all rewards equal": {"correct": 'python("rewards.py:ones")'},
    "no token at all": {"limit": "0"},
}
CASES = few(EDGES, "ragged")
RATE = {"rate": "0.02", "limit": "5", "n": "4"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data, and beside them the programs that others use: with the tests' `eps`, as all programs here."""
    path = data_folder(tmp_path_factory.mktemp("groups"))
    for name in ("dr_grpo", "tis"):
        (path / f"{name}.rlf").write_text(shipped(name))
    return path


def replayed(name: str, folder: Path, changes: dict[str, str], swaps: dict[str, str] | None = None) -> Replay:
    return Replay(shipped(name, swaps), folder, {**ACTOR, **RATE, **changes}, path=str(folder / "p.rlf"))


FAMILY: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "dr_grpo": ({"parts": "3"}, {"limit": 5, "parts": 3}),
    "gspo": ({"parts": "3", "low": "0.01", "high": "0.02"}, {"low": 0.01, "high": 0.02, "parts": 3}),
    "cispo": ({"parts": "3", "cap": "1.1"}, {"cap": 1.1, "parts": 3}),
    "sapo": ({"parts": "3", "harm": "2.0"}, {"gain": 1.0, "harm": 2.0, "parts": 3}),
    "opo": ({}, {}),
    "gpg": ({}, {}),
    "gfpo": ({"parts": "3", "kept": "2"}, {"kept": 2, "parts": 3}),
}
"""For each program what is set, and the constants of its formula."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FAMILY)
def test_a_group_policy(folder: Path, name: str, case: str) -> None:
    changes, constants = FAMILY[name]
    edge = EDGES[case]
    if edge.get("limit") == "0" and name == "dr_grpo":
        pytest.skip("it divides by the limit")
    replay = replayed(name, folder, {"prompts": source("gsm8k", 6), **changes, **edge})
    for seen in replay.steps:
        groups = groups_of(seen.table("rollout"), seen.values["score"])
        replay.same(seen, getattr(group_formulas, name)(replay.models["actor"], groups, lr=0.02, **constants))


def test_gdpo(folder: Path) -> None:
    changes = {"prompts": source("gsm8k", 6), "parts": "3", "form": '"a"'}
    replay = replayed("gdpo", folder, changes)
    for seen in replay.steps:
        table = seen.table("rollout")
        groups = groups_of(table, seen.values["score"])
        texts = [["a" in answer(row.tokens, row.written) for row in group] for group in groups]
        assert any(map(any, texts)) and not all(map(all, texts))
        step = group_formulas.gdpo(replay.models["actor"], groups, texts, weight=0.5, lr=0.02, parts=3)
        replay.same(seen, step)


def answer(tokens: list[int], written: list[bool]) -> str:
    """The text of an answer: below 3 are pad, end and unknown."""
    return "".join("abcd>"[token - 3] for token, ours in zip(tokens, written, strict=True) if ours and token >= 3)


@pytest.mark.parametrize("n", few([4, 1], 4))
def test_rloo(folder: Path, n: int) -> None:
    replay = replayed("rloo", folder, {**JUDGE, "prompts": source("prompts", 6), "n": str(n)})
    for seen in replay.steps:
        models = (replay.models[name] for name in ("actor", "ref", "reward"))
        groups: list[Group] = groups_of(seen.table("rollout"))
        replay.same(seen, group_formulas.rloo(*models, groups, beta=0.05, lr=0.02))


def test_reinforce_pp(folder: Path) -> None:
    changes = {**JUDGE, "prompts": source("prompts", len(PROMPTS)), "beta": "0.05"}
    changes |= {"rate": "0.02", "limit": "5"}
    replay = Replay(shipped("reinforce_pp"), folder, {**ACTOR, **changes})
    for seen in replay.steps:
        models = (replay.models[name] for name in ("actor", "ref", "reward"))
        rows = rows_of(seen.table("rollout"))
        replay.same(seen, group_formulas.reinforce_pp(*models, rows, beta=0.05, lr=0.02, parts=8))


def test_reinforce_pp_baseline(folder: Path) -> None:
    replay = replayed("reinforce_pp_baseline", folder, {"prompts": source("gsm8k", 6), "beta": "0.05"})
    for seen in replay.steps:
        groups = groups_of(seen.table("rollout"), seen.values["score"])
        models = (replay.models[name] for name in ("actor", "ref"))
        replay.same(seen, group_formulas.reinforce_pp_baseline(*models, groups, beta=0.05, lr=0.02, parts=4))


def test_raft(folder: Path) -> None:
    replay = replayed("raft", folder, {**JUDGE, "prompts": source("prompts", 6)})
    for seen in replay.steps:
        models = (replay.models[name] for name in ("actor", "reward"))
        replay.same(seen, group_formulas.raft(*models, groups_of(seen.table("rollout")), lr=0.02, parts=4))


@pytest.mark.parametrize("name", ["tis", "icepop"])
def test_the_sampler_is_corrected(folder: Path, name: str) -> None:
    replay = lagging(name, folder, {"tis": {"cap": "1.05"}, "icepop": {"least": "0.9", "most": "1.1"}}[name])
    weights: dict[str, Callable[[float], float]] = {
        "tis": lambda drift: min(drift, 1.05),
        "icepop": lambda drift: drift if 0.9 <= drift <= 1.1 else 0.0,
    }

    def weigh(drifts: list[float]) -> list[float]:
        return [*map(weights[name], drifts)]

    plain = changed = 0
    for seen in replay.steps:
        groups = groups_of(seen.table("rollout"), seen.values["score"])
        step = group_formulas.corrected(replay.models["actor"], groups, weigh, lag=1, lr=0.02, parts=4)
        replay.same(seen, step)
        bound = {"tis": 1.05, "icepop": 0.0}[name]
        changed += sum(weight == bound for weight in step.values["weight"])
        plain += sum(weight != bound for weight in step.values["weight"])
    assert changed > 3 and plain > 3, "both branches are in use"


@pytest.mark.parametrize("case", CASES)
def test_mis(folder: Path, case: str) -> None:
    replay = lagging("mis", folder, {"least": "0.8", "cap": "1.1", **EDGES[case]})
    weights: list[float] = []
    for seen in replay.steps:
        groups = groups_of(seen.table("rollout"), seen.values["score"])
        step = group_formulas.mis(replay.models["actor"], groups, least=0.8, most=1.1, lag=1, lr=0.02, parts=4)
        replay.same(seen, step)
        weights += step.values["weight"]
    if case == "ragged":
        assert weights.count(0) > 3 and sum(w not in (0, 1) for w in weights) > 3, "both branches are in use"


def lagging(name: str, folder: Path, changes: dict[str, str]) -> Replay:
    """`tis.rlf`, or one that uses it, whose sampler is a step behind, that there is something to correct."""
    base = folder / f"lagging_{name}"
    data_folder(base)
    (base / "tis.rlf").write_text(shipped("tis", {"step:": "step async(lag=1):"}))
    text = (base / "tis.rlf").read_text() if name == "tis" else shipped(name)
    changes = {**ACTOR, **RATE, "prompts": source("gsm8k", 6), **changes}
    return Replay(text, base, changes, path=str(base / "p.rlf"))


def test_spo(folder: Path) -> None:
    changes = {"prompts": 'jsonl("gsm8k.jsonl")', "asked": "6", "limit": "5", "rate": "0.02"}
    replay = Replay(
        shipped(
            "spo",
            {
                "parts=4": "parts=3",
                "prompts.id": "prompts.prompt",
                "won[id]": "won[prompt]",
                "lost[id]": "lost[prompt]",
            },
        ),
        folder,
        {**ACTOR, **changes},
    )
    tracker: dict[str, tuple[float, float]] = {}
    seen_again = 0
    for seen in replay.steps:
        table = seen.table("rollout")
        keys = [str(row["prompt"]) for row in table.data]
        assert len({*keys}) == 6 < len(PROMPTS)
        seen_again += sum(key in tracker for key in keys)
        step = group_formulas.spo(
            replay.models["actor"],
            rows_of(table, seen.values["score"]),
            keys,
            tracker,
            stays=0.9,
            low=0.2,
            high=0.28,
            lr=0.02,
            parts=3,
        )
        replay.same(seen, step)
    assert seen_again, "a tracker that is never read shows little"


def test_tba(folder: Path) -> None:
    replay = replayed("tba", folder, {"prompts": source("gsm8k", 6), "beta": "0.5"})
    for seen in replay.steps:
        groups = groups_of(seen.table("rollout"), seen.values["score"])
        models = (replay.models[name] for name in ("actor", "ref"))
        replay.same(seen, group_formulas.tba(*models, groups, lag=2, beta=0.5, lr=0.02, parts=4))


def test_prime(folder: Path) -> None:
    changes = {"prompts": source("gsm8k", 7), "beta": "0.5", "learn": "0.03", "prm": 'causal_lm(base, dtype="float64")'}
    replay = replayed("prime", folder, changes)
    for seen in replay.steps:
        groups = groups_of(seen.table("rollout"), seen.scores[0])
        models = (replay.models[name] for name in ("actor", "ref", "prm"))
        step = group_formulas.prime(*models, groups, eps=0.2, beta=0.5, lr=0.02, lr_prm=0.03, parts=4)
        replay.same(seen, step)
