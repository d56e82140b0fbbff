"""Ranks and the largest of a group: exactly so many, and the same rows in any block and plan."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from in_any_plan import JUDGES, SPLITS, assert_same, one_step, scored_ids, streamed_metrics
from tiny import Seen, compile_text, data_folder, weights

TEXT = f"""algorithm ranks
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
func halves  = python("ranks.py:halves", over=row)
func some    = python("ranks.py:some", over=row, none=skip)
param most   = 2
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    score   = halves(rollout)
    judged  = some(rollout)
    order   = rank(score, by=prompts)
    over    = rank(score)
    first   = top(judged, most, by=prompts)
    report places = sum(order * rollout.length), over = sum(over * rollout.length), judged = mean(rank(judged, by=prompts))
    report first = sum(first * rollout.length), firsts = count(first), seven = sum(top(score, 7) * rollout.length)
    report tokens = sum(rank(rollout.logprobs, by=rollout) * rollout.logprobs)
    report part = sum(top(score, 1 + min(rollout.length, by=prompts), by=prompts) * rollout.length)
    report run = sum(running(rollout.length, score, by=prompts) * (1 + order)), run_all = sum(running(order, score) * over)
    report run_key = sum(running(order, score, by=rollout.length) * over), run_some = mean(running(judged, score))
    keep rollout where top(score, most, by=prompts)
    train actor(lr=0.01, eps=0.01):
        now = actor.logprobs(rollout)
        minimize mean(-now * (1 + rank(detach(now)) + rank(detach(now), by=prompts)))
    report kept = size(order), gain = sum(order), then = mean(actor.logprobs(rollout))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = data_folder(tmp_path_factory.mktemp("ranks"))
    (folder / "ranks.py").write_text(JUDGES.format(most=2))
    return folder


@cache
def whole(folder: Path) -> Seen:
    """All rows at once."""
    return one_step(TEXT, folder)


def places(values: list[float]) -> list[int]:
    """How many come before each, from the largest."""
    return [sum(y > x or (y == x and at < own) for at, y in enumerate(values)) for own, x in enumerate(values)]


def test_numbers_by_hand(folder: Path) -> None:
    seen = whole(folder)
    table, found = seen.table("rollout"), seen.metrics
    ids = scored_ids(table)
    sums, lengths = [sum(row) for row in ids], [len(row) for row in ids]
    score = [float(total % 2) for total in sums]
    there = [total % 3 > 0 for total in sums]
    assert 0 < sum(there) < 20 and 0 < sum(score) < 20
    groups = [range(start, start + 4) for start in range(0, 20, 4)]
    place = [at for group in groups for at in places([score[row] for row in group])]
    assert found["places"] == sum(a * b for a, b in zip(place, lengths, strict=True))
    assert found["over"] == sum(a * b for a, b in zip(places(score), lengths, strict=True))
    assert found["seven"] == sum(b for a, b in zip(places(score), lengths, strict=True) if a < 7)
    ranked: dict[int, int] = {}
    for group in groups:
        rows = [row for row in group if there[row]]
        ranked.update(zip(rows, places([score[row] for row in rows]), strict=True))
    assert found["judged"] == pytest.approx(sum(ranked.values()) / len(ranked))
    assert found["first"] == sum(lengths[row] for row, at in ranked.items() if at < 2)
    assert found["firsts"] == sum(at < 2 for at in ranked.values())
    assert found["kept"] == 10 and found["gain"] == 5
    shortest = [min(lengths[row] for row in group) for group in groups]
    assert found["part"] == sum(lengths[row] for row in range(20) if place[row] < 1 + shortest[row // 4])


def test_sums_along_an_order_by_hand(folder: Path) -> None:
    seen = whole(folder)
    ids = scored_ids(seen.table("rollout"))
    score, lengths = [float(sum(row) % 2) for row in ids], [len(row) for row in ids]
    there = [sum(row) % 3 > 0 for row in ids]
    order = [at for start in range(0, 20, 4) for at in places(score[start : start + 4])]
    over = places(score)

    def upto(x: list[float], key: list[int]) -> list[float]:
        return [sum(x[at] for at in range(20) if key[at] == key[own] and over[at] <= over[own]) for own in range(20)]

    by_prompt, by_length = (
        upto([*map(float, lengths)], [row // 4 for row in range(20)]),
        upto([*map(float, order)], lengths),
    )
    assert seen.metrics["run"] == sum(a * (1 + b) for a, b in zip(by_prompt, order, strict=True))
    everything = upto([*map(float, order)], [0] * 20)
    assert seen.metrics["run_all"] == sum(a * b for a, b in zip(everything, over, strict=True))
    assert seen.metrics["run_key"] == sum(a * b for a, b in zip(by_length, over, strict=True))
    judged = upto([value * given for value, given in zip(score, there, strict=True)], [0] * 20)
    assert seen.metrics["run_some"] == pytest.approx(
        sum(v for v, given in zip(judged, there, strict=True) if given) / sum(there)
    )


@pytest.mark.parametrize("settings", SPLITS)
def test_blocks_and_micro_batches(folder: Path, settings: dict[str, int]) -> None:
    assert_same(one_step(TEXT, folder, **settings), whole(folder), 1e-9)


@pytest.mark.parametrize("block", [1, 6])
def test_rows_that_stream_to_cpus(folder: Path, block: int) -> None:
    assert streamed_metrics(TEXT, folder, block) == pytest.approx(whole(folder).metrics, rel=1e-9)


def test_units(folder: Path) -> None:
    """A rank waits for its group, or for all rows."""
    reasons = [node.unit.reason for node in compile_text(TEXT).phases[0].graph.walk() if node.unit]
    assert "`rank` is over each group of `prompts`" in reasons
    assert "`rank` is over the whole batch" in reasons
