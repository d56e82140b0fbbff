"""What programs read in texts: the same numbers in any block, and on Ray."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from scheduled import compiled, debug_metrics
from tiny import Run, compile_text, data_folder, weights

from rlgraph.errors import RlgraphError

TEXT = f"""algorithm reading
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    wanted  = number(rollout.note)
    a       = contains(rollout.text, "a")
    b       = matches(rollout.text, "a.*b|^c")
    report wanted = mean(wanted), there = mean(valid(wanted)), a = mean(a), b = mean(b)
    report none = size(number(rollout.text)), all = mean(otherwise(number(prompts.note), -1))
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(rollout) * (otherwise(wanted, 0.5) + a - b))
    report then = mean(actor.logprobs(rollout))
"""
NOTES = ["score 3 of 5", "none", "it is -2.5", "", "1,200"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = data_folder(tmp_path)
    write_notes(folder, NOTES)
    return folder


def write_notes(folder: Path, notes: list[object]) -> None:
    """Give each row of the data a text to read."""
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, "note": notes[place % len(notes)]}) for place, row in enumerate(rows)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")


def test_any_block_and_ray_read_the_same(folder: Path) -> None:
    [whole] = [dict(seen.metrics) for seen in Run(compile_text(TEXT), folder).steps(1)]
    assert whole["wanted"] == pytest.approx(statistics.fmean([5, -2.5, 1200])) and whole["there"] == 3 / 5
    assert whole["all"] == pytest.approx(statistics.fmean([5, -1, -2.5, -1, 1200])) and whole["none"] == 0
    assert 0 < whole["a"] < 1 and 0 < whole["b"] < 1
    found = [dict(seen.metrics) for block in (1, 3) for seen in Run(compile_text(TEXT), folder, block=block).steps(1)]
    made = compiled(TEXT, {}, "pool play = 1 devices\nplace actor on play(engine=transformers)\n", folder)
    found += debug_metrics(made, folder, 1)
    assert found == [pytest.approx(whole, rel=1e-9, abs=1e-9)] * 3


def test_a_row_that_is_no_text_is_named(folder: Path) -> None:
    write_notes(folder, [*NOTES[:4], 7])
    with pytest.raises(RlgraphError) as raised:
        Run(compile_text(TEXT), folder).steps(1)
    assert "`note` holds a whole number in prompts.jsonl:5, and a text is needed here" in str(raised.value)
