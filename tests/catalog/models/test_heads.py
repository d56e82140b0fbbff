"""Value and reward models whose files have no head: seen before they are loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlgraph
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.worker.session import Settings
from rlgraph.dsl.check import check
from rlgraph.errors import ProgramError, Source
from rlgraph.passes.rewrites.pipeline import run_passes
from tests.backends.engines.models import engine

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "vocab_size": 8,
    "max_position_embeddings": 64,
}
PROGRAM = """algorithm a
model actor = causal_lm("m")
model judge = {}
data prompts = jsonl("p.jsonl", batch=4)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=8)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout) * judge.score(rollout))
"""
LEARNS = """    train judge(lr=1e-6):
        minimize mean(judge.score(rollout))
"""


def folder(path: Path, tensors: list[str], *, parts: bool) -> Path:
    """A model's folder, of whose weights only the index is there."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    if parts:
        index = {"weight_map": dict.fromkeys(tensors, "model-00001-of-00002.safetensors")}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        header = json.dumps(dict.fromkeys(tensors, empty)).encode()
        (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return path


@pytest.mark.parametrize("parts", [False, True])
def test_a_head_that_nothing_trains_has_to_be_in_the_files(tmp_path: Path, parts: bool) -> None:
    language = folder(tmp_path / "language", ["model.norm.weight", "lm_head.weight"], parts=parts)
    reward = folder(tmp_path / "reward", ["model.norm.weight", "score.weight"], parts=parts)
    for judge in (f'frozen(reward_lm("{language}"))', f'reward_lm("{language}")'):
        with pytest.raises(ProgramError) as caught:
            rlgraph.compile(PROGRAM.format(judge))
        [found] = caught.value.diagnostics
        assert (found.code, found.span.covered_text) == ("E0755", f"model judge = {judge}")
        assert "has no head that gives scores, and nothing trains one" in found.message
    rlgraph.compile(PROGRAM.format(f'frozen(reward_lm("{reward}"))'))
    rlgraph.compile(PROGRAM.format(f'reward_lm("{language}")') + LEARNS)
    copied = PROGRAM.format(f'reward_lm("{language}")\nmodel own = judge')
    rlgraph.compile(copied + LEARNS.replace("judge", "own"))


def test_a_gguf_file_is_read_as_a_language_model(tmp_path: Path) -> None:
    judge = 'reward_lm(gguf("m.gguf"))'
    with pytest.raises(ProgramError) as caught:
        rlgraph.compile(PROGRAM.format(f"frozen({judge})"))
    [found] = caught.value.diagnostics
    assert found.code == "E0755" and "'m.gguf' has no head that gives scores" in found.message
    try:
        rlgraph.compile(PROGRAM.format(judge) + LEARNS)
    except ProgramError as error:
        assert "E0755" not in {problem.code for problem in error.diagnostics}


def test_what_cannot_be_told_is_left_to_who_loads_it(tmp_path: Path) -> None:
    place = folder(tmp_path / "m", ["model.norm.weight"], parts=True)
    program = PROGRAM.format(f'frozen(reward_lm("{place}"))')
    for text in ("{", "[]", '{"weight_map": 3}'):
        (place / "model.safetensors.index.json").write_text(text)
        rlgraph.compile(program)
    (place / "model.safetensors.index.json").unlink()
    rlgraph.compile(program)
    (place / "model.safetensors").write_bytes(b"\xff" * 9)
    rlgraph.compile(program)
    rlgraph.compile(program.replace(str(place), "nowhere/model"))


def test_who_loads_it_says_it_at_the_model(tmp_path: Path) -> None:
    engine(dtype="float32").save(tmp_path / "m")
    text = PROGRAM.format('frozen(reward_lm("m"))').replace('causal_lm("m")', 'causal_lm("m", dtype="float32")')
    (tmp_path / "p.jsonl").write_text('{"prompt": "t5"}\n' * 4)
    program, _ = check(Source("p.rlf", text))
    with pytest.raises(ProgramError) as caught:
        LocalBackend(run_passes(program)[-1].program, Settings(folder=tmp_path))
    [found] = caught.value.diagnostics
    assert (found.code, found.span.line) == ("E0755", 3) and found.message.startswith("`judge` cannot be used: ")
