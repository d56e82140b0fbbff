"""Functions that look at other rows than the one whose number they say: blocks and plans change none of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from scheduled import compiled, debug_metrics
from tiny import Run, compile_text, data_folder, weights

USER = """
def siblings(prompts, completions, **columns):
    groups = {}
    for prompt, text in zip(prompts, completions):
        groups.setdefault(prompt, []).append(text[:1])
    return [groups[prompt].count(text[:1]) - 1.0 for prompt, text in zip(prompts, completions)]

def rank(completions, **columns):
    return [sum(len(other) < len(each) for other in completions) for each in completions]

def length(completions, **columns):
    return [len(each) for each in completions]
"""
TEXT = f"""algorithm over
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
func alike   = python("over.py:siblings")
func ranked  = python("over.py:rank", over=batch)
func long    = python("over.py:length", over=row, batch=2)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    keep rollout where rollout.length > 1
    retry = actor.generate(rollout, n=2, max_tokens=3)
    report alike = mean(alike(rollout)), ranked = mean(ranked(rollout)), long = mean(long(rollout))
    report again = mean(alike(retry))
"""
SCHEDULE = """pool play   = 1 devices
pool judges = 3 cpus
place actor on play(engine=transformers)
place alike, long on judges
stream rollout(block={})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = data_folder(tmp_path_factory.mktemp("over"))
    (folder / "over.py").write_text(USER)
    return folder


@cache
def whole(folder: Path) -> dict[str, float]:
    """All rows at once."""
    [step] = Run(compile_text(TEXT), folder).steps(1)
    assert all(step.metrics[name] > 0 for name in ("alike", "ranked", "long", "again"))
    return step.metrics


@pytest.mark.parametrize("block", [1, 3])
def test_blocks(folder: Path, block: int) -> None:
    [step] = Run(compile_text(TEXT), folder, block=block).steps(1)
    assert step.metrics == pytest.approx(whole(folder), rel=1e-12)


@pytest.mark.parametrize("block", [1, 6])
def test_rows_that_stream_to_cpus(folder: Path, block: int) -> None:
    made = compiled(TEXT, {}, SCHEDULE.format(block), folder)
    [metrics] = debug_metrics(made, folder, 1)
    assert metrics == pytest.approx(whole(folder), rel=1e-12)


def test_units(folder: Path) -> None:
    """What is said of them is what they wait for."""
    units = {node.attr("func"): node.unit for node in compile_text(TEXT).phases[0].graph.walk() if node.op == "call"}
    found = {name: (unit.axis or "batch", unit.reason) for name, unit in units.items() if unit}
    assert found["long"][0].startswith("rollout") and not found["long"][1]
    assert found["ranked"] == ("batch", "`ranked` may look at all rows of a batch")
    assert found["alike"][1].startswith("`alike` may look at all rows of each group of")
