"""Pairs of the rows of a group: those of two plain loops, the same in any block and plan, and a model that judges
them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from in_any_plan import JUDGES, SPLITS, assert_same, one_step, scored_ids, streamed_metrics
from tiny import Seen, compile_text, data_folder, weights

from rlgraph.ir.text.parse import parse_program
from rlgraph.ir.text.program_text import program_text

FIRST = 3
"""The tokens before it are pad, end and unknown, and no part of a text."""

TEXT = f"""algorithm pairs
model actor  = causal_lm({weights()}, dtype="float64")
model judge  = frozen(causal_lm({weights(3)}, dtype="float64"))
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
func halves  = python("pairs.py:halves", over=row)
func some    = python("pairs.py:some", over=row, none=skip)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=3)
    score   = halves(rollout)
    judged  = some(rollout)
    p       = pairs(rollout, by=prompts)
    wins    = mean(where(score > p.other(score), 1.0, where(score == p.other(score), 0.5, 0.0)), by=rollout)
    apart   = mean(abs(rollout.length - p.other(rollout.length)), by=rollout)
    same    = sum(rollout.text == p.other(rollout.text), by=rollout)
    task    = mean(p.other(rollout.task) == rollout.task)
    beats   = mean(judged > p.other(judged), by=rollout)
    better  = rank(p.other(score) + 0.1 * rollout.length, by=rollout)
    equal   = size(p.other(score), by=key(rollout, p.other(rollout.length)))
    other   = p.other(rollout.text)
    duel    = judge.generate("{{rollout.text}}>{{other}}", max_tokens=3)
    won     = mean(duel.length, by=rollout)
    report wins = sum(wins * rollout.length), apart = sum(apart * score), same = sum(same * rollout.length), task
    report beats = sum(beats * rollout.length), better = sum(better), equal = sum(equal), won = sum(won * rollout.length)
    minibatch prompts(parts=2):
        train actor(lr=0.01, eps=0.01):
            now = mean(actor.logprobs(rollout), token)
            minimize mean((now - p.other(now)) ** 2) - mean(now * wins)
    report then = mean(actor.logprobs(rollout))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = data_folder(tmp_path_factory.mktemp("pairs"))
    (folder / "pairs.py").write_text(JUDGES.format(most=5))
    return folder


@cache
def whole(folder: Path) -> Seen:
    """All rows at once."""
    return one_step(TEXT, folder)


def test_numbers_by_hand(folder: Path) -> None:
    seen = whole(folder)
    table, found = seen.table("rollout"), seen.metrics
    ids = scored_ids(table)
    length, score = [len(row) for row in ids], [float(sum(row) % 2) for row in ids]
    others = [[row for row in range(20) if row // 4 == own // 4 and row != own] for own in range(20)]
    wins = [
        sum(1.0 if score[own] > score[row] else 0.5 if score[own] == score[row] else 0.0 for row in rows) / 3
        for own, rows in enumerate(others)
    ]
    assert 0 < sum(score) < 20
    assert found["wins"] == pytest.approx(sum(a * b for a, b in zip(wins, length, strict=True)))
    apart = [sum(abs(length[own] - length[row]) for row in rows) / 3 for own, rows in enumerate(others)]
    assert found["apart"] == pytest.approx(sum(a * b for a, b in zip(apart, score, strict=True)))
    texts = [[token for token in row if token >= FIRST] for row in ids]
    same = [sum(texts[own] == texts[row] for row in rows) for own, rows in enumerate(others)]
    assert found["same"] == sum(a * b for a, b in zip(same, length, strict=True)) > 0
    assert found["task"] == 1
    judged = [float(sum(row) % 5) if sum(row) % 3 else None for row in ids]
    beats = 0.0
    for own, rows in enumerate(others):
        mine, theirs = judged[own], [value for row in rows if (value := judged[row]) is not None]
        if mine is not None and theirs:
            beats += length[own] * sum(mine > value for value in theirs) / len(theirs)
    assert found["beats"] == pytest.approx(beats)
    assert found["better"] == 20 * (0 + 1 + 2)
    assert found["equal"] == sum(sum(length[a] == length[b] for a in rows for b in rows) for rows in others)


@pytest.mark.parametrize("settings", SPLITS)
def test_blocks_and_micro_batches(folder: Path, settings: dict[str, int]) -> None:
    assert_same(one_step(TEXT, folder, **settings), whole(folder), 1e-10)


@pytest.mark.parametrize("block", [1, 6])
def test_rows_that_stream(folder: Path, block: int) -> None:
    assert streamed_metrics(TEXT, folder, block, "actor, judge") == pytest.approx(whole(folder).metrics, rel=1e-9)


def test_units(folder: Path) -> None:
    """Pairs wait for their group, and no longer."""
    program = compile_text(TEXT)
    assert parse_program(program_text(program)) == program
    units = {node.name: node.unit for node in program.phases[0].graph.walk() if node.unit}
    assert units["p"].axis == units["wins"].axis == "prompts"
    assert units["wins"].reason == "`other` is over each group of `prompts`"
