"""What is known of a program's models without loading them, beside what is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

import rlgraph
from rlgraph.backends.engines.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    TokenizerSpec,
    WordTokenizer,
    build_tokenizer,
)
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.shape import Shape, UnknownFamily, UnsupportedModel
from rlgraph.dsl.check import check
from rlgraph.errors import ProgramError, Source
from rlgraph.ir.schedule import Schedule
from rlgraph.passes.compilation import default_plan
from rlgraph.user_code.files import SearchFolders

PROGRAM = """\
algorithm a
model actor = causal_lm({source})
model ref = frozen(actor)
data prompts = jsonl("p.jsonl", batch=8)
step:
    rollout = actor.generate(prompts, max_tokens=8)
    report kl = mean(ref.logprobs(rollout))
"""
SMALL: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}


def shapes(source: str, folder: Path = Path()) -> dict[str, Shape | UnsupportedModel]:
    program, _ = check(Source("a.rlf", PROGRAM.format(source=source)))
    return default_plan.read_model_shapes(program, SearchFolders(folder))


def random(family: str, fields: dict[str, Any]) -> str:
    return f'random("{family}", {"".join(f"{name}={value}, " for name, value in fields.items())}tokenizer=bytes())'


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "fields", [{}, {"hidden_size": 2048}, SMALL, {**SMALL, "head_dim": 32, "num_hidden_layers": 3}], ids=str
)
def test_random_models_have_the_shape_that_transformers_gives_them(family: str, fields: dict[str, Any]) -> None:
    if family == "qwen2":
        fields = {name: value for name, value in fields.items() if name != "head_dim"}
    made = AutoConfig.for_model(family, **fields, vocab_size=259)
    expected = shape_of({name: value for name, value in made.to_dict().items() if value is not None})
    found = shapes(random(family, fields))
    for name in (
        "family",
        "vocab",
        "hidden",
        "ffn",
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "tied",
        "qkv_bias",
        "qk_norm",
        "positions",
    ):
        assert getattr(found["actor"], name) == getattr(expected, name), name
    assert found["ref"] == found["actor"]


def test_a_family_that_is_not_known_whatever_its_vocabulary() -> None:
    """An engine that needs its numbers is refused for it by name, before anybody knows the tokenizer."""
    found = shapes('random("gpt_neox", tokenizer="nobody/has-it")')
    assert isinstance(found["actor"], UnknownFamily)
    assert not shapes('random("llama", tokenizer="nobody/has-it")')


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ('chars("abc de")', CharTokenizer("abc de")),
        ('words("one two  three")', WordTokenizer("one two  three")),
        ("bytes()", ByteTokenizer()),
    ],
)
def test_the_vocabulary_is_the_tokenizers(text: str, spec: TokenizerSpec, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(spec)
    found = shapes(f'random("llama", tokenizer={text})')["actor"]
    assert isinstance(found, Shape) and found.vocab == len(tokenizer)
    tokenizer.save_pretrained(tmp_path / "saved")
    again = shapes('random("llama", tokenizer="saved")', tmp_path)["actor"]
    assert isinstance(again, Shape) and again.vocab == len(tokenizer)


def test_a_folder_of_the_program(tmp_path: Path) -> None:
    made = AutoConfig.for_model("qwen3", **SMALL)
    made.save_pretrained(tmp_path / "models" / "mine")
    assert shapes('"models/mine"', tmp_path)["actor"] == shape_of(made.to_dict())


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    assert shapes('"nobody/knows"') == {}
    assert shapes('random("llama", tokenizer="nowhere")') == {}
    assert isinstance(shapes('random("gpt2", tokenizer=bytes())')["actor"], UnsupportedModel)


def test_a_plan_names_what_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_plan, "installed_engines", lambda: frozenset({"transformers", "vllm"}))
    schedule = (
        "schedule a\npool one = 2 devices\nplace ref on one(engine=megatron)\nplace actor on one(engine=transformers)\n"
    )
    compiled = rlgraph.compile(PROGRAM.format(source=random("llama", SMALL)), schedule=schedule)
    (found,) = default_plan.missing_engine_diagnostics(compiled.plan, compiled.schedule)
    assert (
        found.render()
        == """\
error[E0913]: the engine `megatron` is not installed
 --> <schedule>:3:18
  |
3 | place ref on one(engine=megatron)
  |                  ^^^^^^^^^^^^^^^
help: pip install 'rlgraph-compiler[megatron]'"""
    )


def test_an_engine_without_a_kernel_for_this_machine_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_plan, "installed_engines", lambda: frozenset({"transformers", "vllm"}))
    schedule = "schedule a\npool one = 2 devices\nplace actor.generate on one(engine=vllm)\n"
    for kind, heads, chosen in ("cpu", 20, "transformers"), ("cpu", 32, "vllm"), ("gpu", 20, "vllm"):
        machine = default_plan.Machine(2, kind)
        monkeypatch.setattr(default_plan, "local_machine", lambda devices, machine=machine: machine)
        program = PROGRAM.format(source=random("llama", SMALL | {"head_dim": heads}))
        said = rlgraph.compile(program, schedule=schedule)
        found = default_plan.unusable_engine_diagnostics(said.plan, said.schedule, said.placed.shapes)
        assert [problem.message[:41] for problem in found] == ["`vllm` cannot compute `actor` on a CPU: t"] * (
            chosen != "vllm"
        )
        assert all("engine=transformers" in problem.hint and problem.span.line == 3 for problem in found)
        free = rlgraph.compile(program, schedule="schedule a\npool one = 2 devices\nplace actor.generate on one\n")
        assert free.plan.group_of_role("actor", "generate").engine == chosen


def warned(schedule: str, program: str = PROGRAM) -> list[tuple[str, str, str]]:
    compiled = rlgraph.compile(program.format(source=random("llama", SMALL)), schedule=f"schedule a\n{schedule}")
    found = compiled.diagnostics
    return [(each.code, each.message, each.span.covered_text) for each in found if each.code[:3] == "W09"]


def test_devices_on_which_nothing_runs_are_warned_of() -> None:
    place = "place actor, ref on one(engine=transformers, dp=DP)\n"
    assert warned("pool one = 4 devices\n" + place.replace("DP", "4")) == []
    ((code, message, text),) = warned("pool one = 4 devices\n" + place.replace("DP", "2"))
    assert (code, text) == ("W0903", "pool one = 4 devices")
    assert message == "nothing runs on 2 of the 4 devices of `one`, and they stay reserved"
    ((code, message, _),) = warned("pool one = 4 devices\npool spare = 8 devices\n" + place.replace("DP", "4"))
    assert (code, message) == ("W0903", "nothing runs on the 8 devices of `spare`, and they stay reserved")


def test_a_place_of_work_that_nobody_needs_is_warned_of() -> None:
    place = "pool one = 1 devices\nplace actor.generate, ref.logprobs on one(engine=transformers)\n"
    assert warned(place) == []
    unused = PROGRAM.replace(
        "report kl = mean(ref.logprobs(rollout))", "kl = ref.logprobs(rollout)\n    report l = mean(rollout.length)"
    )
    ((code, _, text),) = warned(place, unused)
    assert (code, text) == ("W0904", "ref.logprobs")


def test_a_plan_that_is_searched_for_warns_alike() -> None:
    schedule = """\
schedule a
pool one = 2 devices
pool spare = 1 devices
place actor.generate, ref.logprobs on one
"""
    unused = PROGRAM.replace(
        "report kl = mean(ref.logprobs(rollout))", "kl = ref.logprobs(rollout)\n    report l = mean(rollout.length)"
    )
    source = random("llama", SMALL)
    compiled = rlgraph.compile(unused.format(source=source), schedule=schedule, cluster="1x4:a100-80gb")
    found = [(each.code, each.message) for each in compiled.diagnostics if each.code in ("W0903", "W0904")]
    assert found == [
        ("W0903", "nothing runs on the 1 device of `spare`, and the plan has no such pool"),
        ("W0904", "`ref.logprobs` is placed, and the compiler has found that nobody needs it"),
    ]


def test_functions_that_nobody_calls_and_cpus_on_which_nothing_runs_are_warned_of() -> None:
    judged = PROGRAM.replace("step:", 'func f = python("r.py:f")\nfunc g = python("r.py:g")\nstep:').replace(
        "report kl", "report f = mean(f(rollout)), kl"
    )
    judges = "pool judges = 4 cpus\n"
    assert [each for each in warned(judges + "place f on judges\n", judged) if "judges" in each[1]] == []
    (gone, idle) = (each for each in warned(judges + "place g on judges\n", judged))
    assert {gone[0], idle[0]} == {"W0903", "W0904"}
    assert {gone[2], idle[2]} == {"pool judges = 4 cpus", "g"}


def test_adapters_are_known_before_a_model_is_loaded() -> None:
    source = random("llama", SMALL)
    found = shapes(f'{source}, lora=lora(rank=4, targets=["q_proj"])')
    for name in ("actor", "ref"):
        shape = found[name]
        assert isinstance(shape, Shape)
        assert shape.adapters == Adapters(4, 4.0, ("q_proj",))


def test_a_saved_adapter_has_the_shape_of_its_base(tmp_path: Path) -> None:
    config = AutoConfig.for_model("llama", vocab_size=50, **SMALL)
    config.save_pretrained(tmp_path / "base")
    (tmp_path / "tuned").mkdir()
    saved = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(tmp_path / "base"),
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["v_proj", "q_proj"],
    }
    (tmp_path / "tuned" / "adapter_config.json").write_text(json.dumps(saved))
    shape = shapes('"tuned"', tmp_path)["actor"]
    assert isinstance(shape, Shape)
    assert shape.hidden == 64
    assert shape.adapters == Adapters(4, 8.0, ("q_proj", "v_proj"), start=str(tmp_path / "tuned"))


def test_targets_that_a_family_does_not_have(tmp_path: Path) -> None:
    source = random("llama", SMALL)
    program, _ = check(Source("a.rlf", PROGRAM.format(source=f'{source}, lora=lora(rank=4, targets=["q_prj", "fc"])')))
    with pytest.raises(ProgramError) as caught:
        default_plan.place_program(program, Schedule(), SearchFolders(tmp_path), default_plan.local_machine(1))
    assert [(found.code, found.message, found.hint) for found in caught.value.diagnostics] == [
        ("E0747", "no linear layer of `actor`, a llama model, is called `q_prj`", "did you mean `q_proj`?"),
        (
            "E0747",
            "no linear layer of `actor`, a llama model, is called `fc`",
            "there are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj",
        ),
    ]
    assert caught.value.diagnostics[0].span.covered_text == 'lora(rank=4, targets=["q_prj", "fc"])'
