"""Groups by equal keys: the groups of a plain loop, and the same numbers in any block, micro-batch and plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import pytest
from in_any_plan import JUDGES, SPLITS, assert_same, one_step, scored_ids, streamed_metrics
from tiny import Seen, compile_text, data_folder, weights

from rlgraph.ir.text.parse import parse_program
from rlgraph.ir.text.program_text import program_text

FIRST = 3
"""The tokens before it are pad, end and unknown, and no part of a text."""

TEXT = f"""algorithm keys
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
func halves  = python("keys.py:halves", over=row)
func some    = python("keys.py:some", over=row, none=skip)
state known[task] = 0.0
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    score   = halves(rollout)
    judged  = some(rollout)
    place   = cumsum(where(rollout.tokens >= 0, 1, 0))
    by_task = mean(score, by=rollout.task)
    inside  = std(rollout.length, by=key(prompts, score))
    several = sum(rollout.length, by=key(rollout.length, score))
    outer   = max(rollout.length, by=prompts.task)
    given   = mean(judged, by=rollout.length)
    half    = quantile(rollout.length, 0.5, by=score)
    written = size(score, by=rollout.text)
    known[prompts.task] := mean(score, by=prompts)
    report by_task = sum(by_task * rollout.length), inside = sum(inside * rollout.length)
    report several = sum(several * score), outer = sum(outer * mean(score, by=prompts)), given = sum(given * score)
    report half = sum(half * rollout.length), written = sum(written * rollout.length)
    report order = sum(rank(rollout.length, by=score) * rollout.length)
    report most = sum(top(rollout.length, 2, by=key(prompts, score)) * rollout.length)
    report judged = sum(rank(judged, by=rollout.length))
    report at = sum(mean(rollout.logprobs, by=key(prompts, place)) * place)
    report known = mean(known[rollout.task]), seen = sum(size(score, by=known[rollout.task]))
    keep rollout where rank(rollout.length, by=key(prompts, score)) < 2
    train actor(lr=0.01, eps=0.01):
        now = actor.logprobs(rollout)
        row = mean(now, token)
        minimize mean((row - mean(row, by=key(prompts, score))) ** 2 + row * mean(score, by=rollout.task))
    report kept = size(score), then = mean(actor.logprobs(rollout))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = data_folder(tmp_path_factory.mktemp("keys"))
    (folder / "keys.py").write_text(JUDGES.format(most=5))
    return folder


@cache
def whole(folder: Path) -> Seen:
    """All rows at once."""
    return one_step(TEXT, folder)


def grouped(keys: Sequence[Hashable], values: Sequence[float], reduce: Callable[[list[float]], float]) -> list[float]:
    """For each value what its group comes to."""
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for key, value in zip(keys, values, strict=True):
        groups[key].append(value)
    return [reduce(groups[key]) for key in keys]


def spread(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def test_numbers_by_hand(folder: Path) -> None:
    seen = whole(folder)
    table, found = seen.table("rollout"), seen.metrics
    ids = scored_ids(table)
    length = [float(len(row)) for row in ids]
    score = [float(sum(row) % 2) for row in ids]
    task = [row["task"] for row in table.data]
    prompt = [row // 4 for row in range(20)]
    assert len(set(task)) == 3 and 0 < sum(score) < 20

    def total(values: Sequence[float], weight: Sequence[float] = length) -> float:
        return sum(a * b for a, b in zip(values, weight, strict=True))

    assert found["by_task"] == pytest.approx(total(grouped(task, score, mean)))
    assert found["inside"] == pytest.approx(total(grouped([*zip(prompt, score, strict=True)], length, spread)))
    assert found["several"] == pytest.approx(total(grouped([*zip(length, score, strict=True)], length, sum), score))
    outer = grouped(task, length, max)
    assert found["outer"] == pytest.approx(total(outer, score) / 4)
    there = [row for row in range(20) if sum(ids[row]) % 3]
    rows = {n: [sum(ids[row]) % 5 for row in there if length[row] == n] for n in set(length)}
    assert found["given"] == pytest.approx(total([mean(rows[n]) if rows[n] else 0.0 for n in length], score))
    written = grouped([tuple(token for token in row if token >= FIRST) for row in ids], length, len)
    assert found["written"] == total(written)
    for name, keys, below in (("order", score, 20), ("most", [*zip(prompt, score, strict=True)], 2)):
        order = [
            sum(
                length[other] > length[row] or (length[other] == length[row] and other < row)
                for other in range(20)
                if keys[other] == keys[row]
            )
            for row in range(20)
        ]
        assert found[name] == total(order if below == 20 else [float(at < below) for at in order])
    kept = [at < 2 for at in order]
    assert found["kept"] == sum(kept)
    where = [(prompt[row], at) for row in range(20) for at in range(1, len(ids[row]) + 1)]
    logprobs = table.columns["logprobs"].tolist()
    assert found["at"] == pytest.approx(total(grouped(where, logprobs, mean), [at for _, at in where]))
    of_prompt = [mean(score[start : start + 4]) for start in range(0, 20, 4)]
    known = [v for v in grouped(task[::4], of_prompt, mean) for _ in range(4)]
    assert found["known"] == pytest.approx(mean(known))
    assert found["seen"] == sum(grouped([round(v, 9) for v in known], length, len))


@pytest.mark.parametrize("settings", SPLITS)
def test_blocks_and_micro_batches(folder: Path, settings: dict[str, int]) -> None:
    assert_same(one_step(TEXT, folder, **settings), whole(folder), 1e-10)


@pytest.mark.parametrize("block", [1, 6])
def test_rows_that_stream_to_cpus(folder: Path, block: int) -> None:
    assert streamed_metrics(TEXT, folder, block) == pytest.approx(whole(folder).metrics, rel=1e-9)


NAMED = (
    TEXT.replace(
        "    place   =", "    cell    = key(prompts, score)\n    deep = key(rollout, rollout.length)\n    place   ="
    )
    .replace("key(prompts, score)) ** 2", "cell) ** 2")
    .replace("by=key(prompts, score)", "by=cell")
    .replace("by=key(prompts, place)", "by=key(beside, place)")
    .replace("    by_task =", "    beside  = key(prompts)\n    by_task =")
)


def test_a_name_of_a_key_is_the_key(folder: Path) -> None:
    """Above and below a `keep`, in a loss, in another key, and in a def."""
    assert NAMED.count("cell") == 5
    assert_same(one_step(NAMED, folder), whole(folder), 1e-12)
    inner = "algorithm keys\ndef inner(x, k, y):\n    part = key(k, y)\n    return mean(x, by=part)\n"
    around = NAMED.replace("algorithm keys\n", inner)
    lines = """    keep rollout where size(score, by=deep) == 1
    report inner = sum(inner(score, cell, rollout.finished) - mean(score, by=key(prompts, score, rollout.finished)))
    minibatch prompts(parts=2):
        finer = key(cell, rollout.finished)
        part = mean(rollout.length, by=finer)
    report sliced = sum(abs(part - mean(rollout.length, by=key(prompts, score, rollout.finished))))
    report after = sum(abs(part - mean(rollout.length, by=finer)))
"""
    found = one_step(around + lines, folder).metrics
    assert (found["inner"], found["sliced"], found["after"]) == (0, 0, 0)
    assert found["kept"] == whole(folder).metrics["kept"]


def test_units(folder: Path) -> None:
    """A key waits for the table that it names, or for all rows."""
    program = compile_text(TEXT)
    assert parse_program(program_text(program)) == program
    nodes = [node for node in program.phases[0].graph.walk() if node.unit]
    units = {node.name: (node.unit.axis, node.unit.reason) for node in nodes if node.unit}
    assert units["by_task"] == (None, "`mean` is over the whole batch")
    assert units["inside"] == ("prompts", "`std` is over each group of `prompts`")
