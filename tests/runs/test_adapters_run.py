"""Runs that train adapters: GRPO with a reference on the same base, in this process and over a plan; what is saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from programs_on_disk import write_tiny

import rlgraph

BASE = (
    'random("llama", hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, '
    'num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.3, tokenizer=chars("abcd>"))'
)
LORA = f"causal_lm({BASE}, lora=lora(rank=2, alpha=8))"
PROGRAM = """\
algorithm tuned

model actor  = {actor}
model ref    = frozen(actor)
model plain  = frozen(causal_lm({base}))
data prompts = jsonl("prompts.jsonl", batch=2)
func score   = python("rewards.py:score")

step:
    rollout = actor.generate(prompts, n=4, max_tokens=4)
    reward  = score(rollout) + mean(rollout.length)
    adv     = center(rollout.length, prompts)
    kl      = k3(rollout.logprobs, ref.logprobs(rollout))
    off     = k3(rollout.logprobs, plain.logprobs(rollout))
    train actor(lr=0.05, eps=1e-2, weight_decay=0.1):
        minimize -mean(actor.logprobs(rollout) * (adv - kl))
    report reward = mean(reward), kl = mean(kl), off = mean(off)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


def text(actor: str = LORA, base: str = BASE) -> str:
    return PROGRAM.format(actor=actor, base=base)


def ran(program: str, **more: Any) -> rlgraph.Run:
    return rlgraph.compile(program).run(3, progress=False, **more)


def numbers(run: rlgraph.Run, *names: str) -> list[list[float]]:
    return [[step[name] for name in names] for step in run.metrics]


def test_grpo_with_adapters(tmp_path: Path) -> None:
    run = ran(text(), out="out")
    kl = numbers(run, "kl", "off")
    # The reference is the base with adapters that do nothing.
    assert kl[0] == pytest.approx([0, 0], abs=1e-7)
    assert kl[2][0] == pytest.approx(kl[2][1], rel=1e-6)
    assert kl[2][0] > 1e-5
    actor, ref, plain = (run.models[name].engine.model for name in ("actor", "ref", "plain"))
    places = [{each.data_ptr() for each in model.parameters()} for model in (actor, ref, plain)]
    assert places[2] < places[0]
    assert places[2] < places[1]
    # The base is as it was.
    fresh = ran(text(), seed=5).models["plain"].engine.model.state_dict()
    assert all(torch.equal(each, fresh[name]) for name, each in plain.state_dict().items())
    # The same over the groups of a plan.
    placed = ran(text(), backend="ray", debug=True)
    names = ("reward", "kl", "off")
    for found, wanted in zip(numbers(placed, *names), numbers(run, *names), strict=True):
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-7)


def test_a_run_goes_on_with_saved_adapters(tmp_path: Path) -> None:
    first = ran(text(), out="out")
    saved = tmp_path / "out" / "models" / "actor"
    assert json.loads((saved / "adapter_config.json").read_text())["r"] == 2
    again = ran(text('causal_lm("out/models/actor")'))
    # It begins where the other one ended: `ref` has the same adapters, `plain` has none.
    kl = numbers(again, "kl", "off")
    assert abs(kl[0][0]) < 1e-7
    assert kl[0][1] > 1e-5
    before = first.models["actor"].engine.state()
    assert before.keys() == again.models["actor"].engine.state().keys()
    ref = again.models["ref"].engine.state()
    assert all(torch.equal(each, before[name]) for name, each in ref.items())


@pytest.mark.parametrize("backend", [{}, {"backend": "ray", "debug": True}])
def test_peft_finds_what_was_saved(tmp_path: Path, backend: dict[str, Any]) -> None:
    """The base of an adapter on random weights is in its folder, by the name that this has in the end; nothing in a
    run's folder names one that is there only while it is written."""
    from peft import AutoPeftModelForCausalLM

    run = ran(text(), out="out", save_every=2, **backend)
    saved = tmp_path / "out" / "models" / "actor"
    model = AutoPeftModelForCausalLM.from_pretrained(str(saved))
    tokens = torch.tensor([[0, 1, 2, 4]])
    with torch.no_grad():
        assert torch.allclose(model(tokens).logits, run.models["actor"].model(tokens).logits, atol=1e-6)
    for file in (tmp_path / "out").rglob("*"):
        if file.is_file() and file.suffix != ".safetensors":
            said = file.read_bytes()
            assert b"models/.actor" not in said and b"/.step-" not in said, file


def test_a_saved_adapter_without_its_base(tmp_path: Path) -> None:
    ran(text(), out="out")
    saved = tmp_path / "out" / "models" / "actor"
    (saved / "base").rename(tmp_path / "gone")
    with pytest.raises(rlgraph.ProgramError) as caught:
        ran(text('causal_lm("out/models/actor")'))
    assert [found.code for found in caught.value.diagnostics] == ["E0730"]
    assert "which is not here: write where it is as `base_model_name_or_path`" in str(caught.value)
