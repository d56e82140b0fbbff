"""`support=keep` in programs: what is recorded, what a run that goes on has, and where it cannot be. A run takes about
half a second."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scheduled import assert_goes_on_bit_for_bit

import rlgraph
from rlgraph.errors import ProgramError, RunError
from rlgraph.passes.placement import support_errors

MODEL = (
    'random("qwen2", hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, '
    'initializer_range=0.3, tokenizer=words("red green blue black white"))'
)
PROGRAM = """
algorithm kept

model actor  = causal_lm({model}, dtype="float32")
data prompts = jsonl("prompts.jsonl", batch=2)
buffer past  = fifo(capacity=4)

step async(lag=1):
    again   = past.sample(3)
    rollout = actor.generate(prompts, n=2, max_tokens=6, top_p=0.8, support={support})
    push past(rollout)
    train actor(lr=1e-1):
        minimize mean(-actor.logprobs(again{within}) * again.length)
    report length = mean(rollout.length), age = mean(rollout.age), again = mean(actor.logprobs(again{within}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"prompt": text}) + "\n" for text in ("red", "green blue", "blue blue red", "red green")]
    (tmp_path / "prompts.jsonl").write_text("".join(rows), "utf-8")
    return tmp_path


def text_of(support: str = "keep") -> str:
    return PROGRAM.format(model=MODEL, support=support, within=", within=again.support" if support == "keep" else "")


def written(folder: Path, support: str = "keep") -> Path:
    path = folder / f"{support}.rlf"
    path.write_text(text_of(support), "utf-8")
    return path


def metrics(program: Path, **options: object) -> list[dict[str, float]]:
    """What three steps report, without their seconds."""
    run = rlgraph.compile(program).run(3, progress=False, **options)  # type: ignore[arg-type]
    return [{name: value for name, value in step.items() if name != "seconds"} for step in run.metrics]


def test_a_recording_has_them(folder: Path) -> None:
    kept = metrics(written(folder), record=folder / "kept")
    assert metrics(written(folder), replay=folder / "kept") == [pytest.approx(step) for step in kept]
    assert kept[2]["again"] != pytest.approx(metrics(written(folder, "drop"))[2]["again"])


def test_a_recording_without_them_is_refused(folder: Path) -> None:
    metrics(written(folder, "drop"), record=folder / "kept")
    with pytest.raises(RunError) as caught:
        metrics(written(folder), replay=folder / "kept")
    [diagnostic] = caught.value.diagnostics
    assert diagnostic.code == "E0846" and "support=keep" in diagnostic.hint


def test_a_run_that_goes_on_has_those_of_its_buffer(folder: Path) -> None:
    assert_goes_on_bit_for_bit(text_of(), "actor", 3)


def test_an_engine_that_cannot_say_them_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec_of = support_errors.spec_of
    schedule = folder / "s.rls"
    schedule.write_text("schedule kept\npool a = 1 devices\nplace actor on a\n", "utf-8")
    rlgraph.compile(written(folder), schedule=schedule)
    monkeypatch.setattr(support_errors, "spec_of", lambda name: replace(spec_of(name), keeps_support=False))
    with pytest.raises(ProgramError) as caught:
        rlgraph.compile(written(folder), schedule=schedule)
    assert "E0846" in {diagnostic.code for diagnostic in caught.value.diagnostics}
