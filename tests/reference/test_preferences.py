"""Losses on pairs of answers, run for three steps and replayed from their formulas (`preference_formulas.py`). Each
run takes about half a second."""

from __future__ import annotations

from pathlib import Path

import preference_formulas
import pytest
from formulas import Row
from replay import ACTOR, JUDGE, Replay, groups_of, rows_of, source
from tiny import data_folder, shipped

from tests.suites import few

PAIRS = {**ACTOR, "pairs": source("preferences", 7), "rate": "0.02"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("preferences"))


def test_ipo(folder: Path) -> None:
    (folder / "dpo.rlf").write_text(shipped("dpo", {"lr=5e-7": "lr=0.02"}))
    changes = {**ACTOR, "pairs": source("preferences", 7)}
    replay = Replay(shipped("ipo"), folder, changes, path=str(folder / "p.rlf"))
    for seen in replay.steps:
        good, bad = (rows_of(seen.table(name)) for name in ("chosen", "rejected"))
        models = (replay.models[name] for name in ("actor", "ref"))
        replay.same(seen, preference_formulas.ipo(*models, good, bad, beta=0.1, lr=0.02))


@pytest.mark.parametrize(
    ("name", "constants"),
    [("simpo", {"beta": 2.0, "gamma": 1.0}), ("cpo", {"beta": 0.1}), ("orpo", {"beta": 0.1})],
)
def test_pairs_without_a_reference(folder: Path, name: str, constants: dict[str, float]) -> None:
    replay = Replay(shipped(name), folder, PAIRS)
    for seen in replay.steps:
        good, bad = (rows_of(seen.table(table)) for table in ("chosen", "rejected"))
        loss = getattr(preference_formulas, name)
        replay.same(seen, loss(replay.models["actor"], good, bad, lr=0.02, **constants))


def test_spin(folder: Path) -> None:
    changes = {**ACTOR, "pairs": source("sft", 7), "rate": "0.02", "limit": "5", "round": "2"}
    replay = Replay(shipped("spin"), folder, changes)
    for number, seen in enumerate(replay.steps, 1):
        real, own = (rows_of(seen.table(name)) for name in ("real", "own"))
        models = (replay.models[name] for name in ("actor", "opponent"))
        refresh = number % 2 == 0
        replay.same(seen, preference_formulas.spin(*models, real, own, beta=0.1, lr=0.02, refresh=refresh))


def test_xpo(folder: Path) -> None:
    changes = {**ACTOR, **JUDGE, "prompts": source("prompts", 7), "rate": "0.02", "limit": "5", "alpha": "0.05"}
    replay = Replay(shipped("xpo"), folder, changes)
    wins = []
    for seen in replay.steps:
        new, old = (rows_of(seen.table(name)) for name in ("new", "old"))
        models = (replay.models[name] for name in ("actor", "ref", "reward"))
        step = preference_formulas.xpo(*models, new, old, beta=0.1, alpha=0.05, lr=0.02)
        replay.same(seen, step)
        wins.append(step.metrics["wins"])
    assert 0 < sum(wins) < len(wins), "either one wins"


WORTH = {
    "ragged": {},
    "the shortest is best": {"penalty": "50.0"},
    "equal answers": {"limit": "1", "n": "2"},
    "a group of one": {"n": "1"},
    "no token at all": {"limit": "0"},
}


@pytest.mark.parametrize("case", few(WORTH, "ragged", "equal answers"))
def test_iterative_dpo(folder: Path, case: str) -> None:
    changes = {"rate": "0.02", "limit": "5", "n": "4", "penalty": "0.05", **WORTH[case]}
    text = shipped("iterative_dpo", {"parts=160": "parts=3"})
    replay = Replay(text, folder, {**ACTOR, **JUDGE, "prompts": source("prompts", 7), **changes})
    pairs = list[float]()
    for seen in replay.steps:
        models = (replay.models[name] for name in ("actor", "ref", "reward"))
        step = preference_formulas.iterative_dpo(
            *models,
            groups_of(seen.table("rollout")),
            beta=0.1,
            penalty=float(changes["penalty"]),
            apart=1e-6,
            lr=0.02,
            parts=3,
            epochs=2,
        )
        replay.same(seen, step)
        pairs.append(step.metrics["pairs"])
    wanted = {"ragged": max(pairs) > 3, "equal answers": 0 < min(pairs) <= max(pairs) < 7}
    assert wanted.get(case, max(pairs) == 0 or case == "the shortest is best"), pairs


def written(row: Row) -> list[int]:
    return [token for token, mine in zip(row.tokens, row.written, strict=True) if mine]


def test_kto(folder: Path) -> None:
    changes = {**ACTOR, "rows": source("kto", 7), "rate": "0.02", "bad": "1.5"}
    replay = Replay(shipped("kto"), folder, changes)
    drifts, liked = [], []
    for seen in replay.steps:
        answers, others = (rows_of(seen.table(name)) for name in ("answer", "other"))
        ends, others_ends = ([written(row) for row in rows] for rows in (answers, others))
        assert others_ends == [ends[-1], *ends[:-1]], "each prompt has the completion of the row before"
        labels = [bool(row["label"]) for row in seen.table("answer").data]
        models = (replay.models[name] for name in ("actor", "ref"))
        step = preference_formulas.kto(*models, answers, others, labels, beta=0.1, bad=1.5, lr=0.02)
        replay.same(seen, step)
        drifts.append(step.metrics["drift"])
        liked += labels
    assert any(liked) and not all(liked) and max(drifts) > 0 == min(drifts), "the estimate is used, and cut"


def test_nash_md(folder: Path) -> None:
    changes = {**ACTOR, **JUDGE, "prompts": source("prompts", 7), "rate": "0.02", "limit": "5", "b": "0.3"}
    replay = Replay(shipped("nash_md"), folder, changes)
    for seen in replay.steps:
        mine, other = (rows_of(seen.table(name)) for name in ("mine", "other"))
        rival = seen.table("other").columns["logprobs"].tolist()
        models = (replay.models[name] for name in ("actor", "ref", "reward"))
        replay.same(seen, preference_formulas.nash_md(*models, mine, other, rival, b=0.3, tau=0.1, lr=0.02))
