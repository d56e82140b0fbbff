"""`routing=replay` in programs: what is recorded and trained with, and where it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import rlgraph
from rlgraph.backends.enginespec.registry import engine
from rlgraph.errors import ProgramError, RunError
from rlgraph.passes.placement import routing_errors

MODEL = (
    'random("qwen3_moe", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, '
    "num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, "
    'initializer_range=0.3, max_position_embeddings=64, experts_implementation="eager", '
    'tokenizer=words("red green blue"))'
)
PROGRAM = """
algorithm replayed

model actor  = causal_lm({model}, dtype="float32")
data prompts = jsonl("prompts.jsonl", batch=2)

step:
    rollout = actor.generate(prompts, n=2, max_tokens=6, routing={routing})
    train actor(lr=1e-2):
        minimize mean(-actor.logprobs(rollout) * rollout.length)
    report length = mean(rollout.length)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"prompt": text}) + "\n" for text in ("red", "green blue", "blue blue red", "red green")]
    (tmp_path / "prompts.jsonl").write_text("".join(rows), "utf-8")
    return tmp_path


def written(folder: Path, routing: str = "replay", model: str = MODEL) -> Path:
    path = folder / f"{routing}.rlf"
    path.write_text(PROGRAM.format(model=model, routing=routing), "utf-8")
    return path


def metrics(program: Path, **options: object) -> list[dict[str, float]]:
    """What two steps report, without their seconds."""
    run = rlgraph.compile(program).run(2, progress=False, **options)  # type: ignore[arg-type]
    return [{name: value for name, value in step.items() if name != "seconds"} for step in run.metrics]


def test_the_first_step_is_that_without_replay_and_a_recording_has_the_experts(folder: Path) -> None:
    replayed = metrics(written(folder), record=folder / "kept")
    free = metrics(written(folder, "free"))
    assert replayed[0] == pytest.approx(free[0], abs=1e-5)
    assert metrics(written(folder), replay=folder / "kept") == [pytest.approx(step) for step in replayed]
    lines = [
        json.loads(line)
        for file in sorted((folder / "kept").glob("step-*.jsonl"))
        for line in file.open(encoding="utf-8")
    ]
    assert lines and all(line["routes"][:2] == [2, 2] for line in lines)


def test_a_recording_without_experts_is_refused(folder: Path) -> None:
    metrics(written(folder, "free"), record=folder / "kept")
    with pytest.raises(RunError) as caught:
        metrics(written(folder), replay=folder / "kept")
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["E0849"]


def test_a_dense_model_is_refused(folder: Path) -> None:
    """Where there is a plan before it is loaded."""
    dense = 'random("qwen2", hidden_size=32, num_attention_heads=4, num_key_value_heads=2, tokenizer=words("red green blue"))'
    program = written(folder, model=dense)
    with pytest.raises(RunError) as caught:
        metrics(program)
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["E0847"]
    schedule = folder / "s.rls"
    schedule.write_text("schedule replayed\npool a = 1 devices\nplace actor on a\n", "utf-8")
    with pytest.raises(ProgramError) as refused:
        rlgraph.compile(program, schedule=schedule)
    [diagnostic] = refused.value.diagnostics
    assert diagnostic.code == "E0847" and "routing" in diagnostic.hint


def test_rows_without_answers_need_no_experts(folder: Path) -> None:
    path = written(folder)
    path.write_text(path.read_text("utf-8").replace("max_tokens=6", "max_tokens=0"), "utf-8")
    assert [step["length"] for step in metrics(path)] == [0, 0]


def test_an_engine_that_cannot_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that ship can; one of another package may not."""
    without = replace(engine("vllm"), replays_routes=False)
    monkeypatch.setattr(routing_errors, "spec_of", lambda _: without)
    schedule = folder / "s.rls"
    schedule.write_text("schedule replayed\npool a = 1 devices\nplace actor.generate on a(engine=vllm)\n", "utf-8")
    with pytest.raises(ProgramError) as caught:
        rlgraph.compile(written(folder), schedule=schedule)
    assert "E0849" in {diagnostic.code for diagnostic in caught.value.diagnostics}


def test_vllm_samples_what_others_replay(folder: Path) -> None:
    made = rlgraph.compile(written(folder), cluster="1x8:h100-80gb")
    engines = {role.operation: made.plan.group(role.group).engine for role in made.plan.roles}
    assert engines["generate"] == "vllm" and engines["train"] in ("megatron", "transformers")
