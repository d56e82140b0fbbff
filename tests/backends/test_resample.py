"""`resample`: rows that are drawn with weights, the same with any block and on every backend."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scheduled import apart, compiled, debug_metrics
from tiny import Run, compile_text, data_folder, weights

from rlgraph.backends.frame import Frame
from rlgraph.backends.step import Step
from rlgraph.backends.worker.draws import draw
from rlgraph.errors import RunError
from rlgraph.ir.graph import Node

HEAD = f"""algorithm drawn
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
func spread  = python("rewards.py:spread", over=row)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    score   = spread(rollout)
    adv     = score - mean(score, by=prompts)
"""
TEXT = (
    HEAD
    + """    resample rollout(LINE)
    train actor(lr=0.02, eps=0.01):
        minimize mean(-actor.logprobs(rollout) * adv)
    report rows = size(score), score = sum(score), tokens = sum(rollout.logprobs * score)
    report groups = mean(size(score, by=prompts)), most = max(size(score, by=prompts)), now = mean(actor.logprobs(rollout))
"""
)
LINES = [
    "13, weight=score",
    "3, weight=score + 0.1, by=prompts",
    "2, weight=score + 0.1, by=prompts, replace=false",
    "30",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("resample"))


@pytest.mark.parametrize("line", LINES)
def test_any_block_and_backend_draws_the_same_rows(folder: Path, line: str) -> None:
    text = TEXT.replace("LINE", line)
    whole = [seen.metrics for seen in Run(compile_text(text), folder).steps(2)]
    assert whole[0]["rows"] == {"13": 13, "3": 15, "2": 10, "30": 30}[line.split(",")[0]]
    if "by=" in line:
        assert whole[0]["groups"] == whole[0]["most"]
    made = compiled(text, {}, apart(compile_text(text)), folder)
    others = [[seen.metrics for seen in Run(compile_text(text), folder, block=2, micro_rows=3).steps(2)]]
    others.append(debug_metrics(made, folder, 2))
    for found in others:
        for one, other in zip(found, whole, strict=True):
            assert one == pytest.approx(other, abs=1e-11)


def test_a_row_that_is_drawn_twice_counts_twice(folder: Path) -> None:
    """The loss is that of rows with whole numbers as weights; a row without a weight is not among them."""
    text = TEXT.replace("LINE", "40, weight=max(score - 0.4, 0)")
    run, found = Run(compile_text(text), folder), {}

    def note(node: Node, frame: Frame) -> None:
        if node.op == "resample":
            found["before"], found["after"] = frame.rows["rollout"].ids, frame.rows["rollout.2"].ids
            found["score"] = frame.values["score"].tolist()

    run.also = note
    [seen] = run.steps(1)
    counts = Counter(found["after"])
    assert max(counts.values()) > 1 and sum(counts.values()) == 40
    for row, score in zip(found["before"], found["score"], strict=True):
        assert score > 0.4 or row not in counts
    again = sum(score * counts[row] for row, score in zip(found["before"], found["score"], strict=True))
    assert seen.metrics["score"] == pytest.approx(again, abs=1e-12)


@pytest.mark.parametrize("replace", [True, False])
def test_chances_are_in_proportion_to_weights(replace: bool) -> None:
    """Of one draw; four standard deviations."""
    chances, times = np.array([0.0, 1.0, 2.0, 5.0]), 4000
    counts = Counter(int(draw(chances, range(4), 1, replace, "x", Step(n, "step"))[0]) for n in range(times))
    for place, chance in enumerate(chances / chances.sum()):
        assert abs(counts[place] / times - chance) <= 4 * np.sqrt(chance * (1 - chance) / times)


def test_without_replacement_no_row_comes_twice() -> None:
    for number in range(50):
        drawn = draw(np.array([1.0, 0.0, 3.0, 2.0]), range(4), 9, False, "x", Step(number, "step"))
        assert sorted(drawn.tolist()) == [0, 2, 3]


@pytest.mark.parametrize(("weight", "code"), [("score - 1", "E0896"), ("score / 0", "E0896"), ("0 * score", "E0897")])
def test_wrong_weights(folder: Path, weight: str, code: str) -> None:
    text: Any = TEXT.replace("LINE", f"4, weight={weight}")
    with pytest.raises(RunError) as caught:
        Run(compile_text(text), folder).steps(1)
    assert caught.value.diagnostics[0].code == code and caught.value.diagnostics[0].span.line
