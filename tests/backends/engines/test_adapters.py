"""Models with adapters against PEFT, an implementation of its own: gradients, files, and a base that stays as it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification

from rlgraph.backends.engines.adapters import attach_adapters, initial_lora_a
from rlgraph.backends.engines.adapters import trained_parameters as changing
from rlgraph.backends.engines.base import EngineError, MicroBatch, ModelCall, Rank, TrainOptions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers.engine import TransformersEngine, open_rank
from rlgraph.catalog.models.adapters import Adapters, UnsupportedAdapter, find_adapter
from rlgraph.catalog.models.families import ModelKind, trainable_parameter_shapes
from rlgraph.ir.layout import layer_tensor_name
from tests.backends.engines.models import source
from tests.catalog.models.tiny import KINDS, shape_of_model, tiny

LORA = Adapters(4, 8.0)
ROWS = Sequences.from_lists(
    [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14, 15, 16, 17, 18]],
    [[0, 0, 1, 1, 0, 1], [0, 1, 1], [0, 1, 1, 1, 1]],
)
STEP = TrainOptions(lr=0.1, settings={"eps": 1e-2, "weight_decay": 0.1})


def opened(
    family: str = "llama",
    lora: Adapters | None = LORA,
    kind: ModelKind = "causal_lm",
    dtype: str = "float64",
    **more: Any,
) -> TransformersEngine:
    return TransformersEngine.open(ModelSpec(kind, source(family), dtype, adapters=lora), **more)


def filled(engine: TransformersEngine) -> TransformersEngine:
    """With adapters that do something, which they do not at first."""
    generator = torch.Generator().manual_seed(1)
    tensors = engine.tensors()
    engine.load_weights(
        {name: torch.randn(each.shape, generator=generator).to(each) / 4 for name, each in tensors.items()}
    )
    return engine


def loss(answers: Any) -> Tensor:
    found: Tensor = (answers[0] * torch.linspace(-1, 1, answers[0].shape[0], dtype=answers[0].dtype)).sum()
    return found


def micro(kind: ModelKind = "causal_lm") -> Any:
    op: Any = {"causal_lm": "logprobs", "value_lm": "values", "reward_lm": "score"}[kind]
    return lambda block: MicroBatch((ModelCall(op, ROWS.take(block)),), loss)


BLOCK = torch.arange(len(ROWS))


def gradients(engine: TransformersEngine, kind: ModelKind = "causal_lm") -> dict[str, Tensor]:
    engine.clear_gradients()
    engine.add_gradients([BLOCK], micro(kind))
    return dict(zip(engine.tensors(), [each for each in engine._gradients if each is not None], strict=True))


def theirs(engine: TransformersEngine, folder: Path, base: Any) -> Any:
    """The saved adapters as PEFT reads them, trainable."""
    engine.save(folder)
    return peft.PeftModel.from_pretrained(base, str(folder), is_trainable=True, autocast_adapter_dtype=False).eval()


def their_gradients(model: Any) -> dict[str, Tensor]:
    total = torch.zeros((), dtype=torch.float64)
    logs = []
    for row, flags in zip(ROWS.rows(), ROWS.scored.split(ROWS.lengths.tolist()), strict=True):
        out = model(input_ids=torch.tensor([row]), use_cache=False).logits[0]
        for place in flags.nonzero()[:, 0].tolist():
            last = out.shape[-1] == 1
            logs.append(out[place - 1, 0] if last else out[place - 1].log_softmax(-1)[row[place]])
    total = loss([torch.stack(logs)])
    total.backward()
    return {
        name.removeprefix("base_model.model.").replace(".default", "").replace("modules_to_save.", ""): each.grad
        for name, each in model.named_parameters()
        if each.grad is not None
    }


TARGETS = [("all-linear",), ("q_proj", "v_proj"), ("model.layers.1.self_attn.o_proj",)]
CASES = [(family, targets) for family in ("llama", "qwen3_moe", "gemma2") for targets in TARGETS]
CASES += [("gpt2", ("all-linear",)), ("gpt2", ("h.1.attn.c_proj", "c_attn"))]


@pytest.mark.parametrize(("family", "targets"), CASES)
def test_gradients_are_those_of_peft(family: str, targets: tuple[str, ...], tmp_path: Path) -> None:
    engine = filled(opened(family, replace(LORA, targets=targets)))
    wanted = their_gradients(theirs(engine, tmp_path, opened(family, None).model))
    found = gradients(engine)
    assert found.keys() == wanted.keys()
    for name, each in found.items():
        torch.testing.assert_close(each, wanted[name], rtol=0, atol=1e-10, msg=name)


def test_a_head_is_trained_beside_adapters_and_saved_with_them(tmp_path: Path) -> None:
    engine = filled(opened("llama", kind="value_lm"))
    engine.save(tmp_path)
    name = json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"]
    base = AutoModelForTokenClassification.from_pretrained(name, dtype=torch.float64, num_labels=1)
    wanted = their_gradients(theirs(engine, tmp_path, base))
    found = gradients(engine, "value_lm")
    assert {"score.weight", "score.bias"} < found.keys() == wanted.keys()
    for name, each in found.items():
        torch.testing.assert_close(each, wanted[name], rtol=0, atol=1e-10, msg=name)


def test_all_linear_layers_are_those_of_peft() -> None:
    for family in ("llama", "gpt2", "gemma2", "phi3", "bloom"):
        engine = opened(family)
        config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        model: Any = peft.get_peft_model(opened(family, None).model, config)
        named = [name for name, each in model.named_parameters() if each.requires_grad]
        assert [each.removeprefix("base_model.model.").replace(".default", "") for each in named] == list(
            engine.tensors()
        )


def test_adapters_begin_as_those_of_peft() -> None:
    """A uniform as torch's own linear layers, B zero: a model that is its base, to the bit."""
    engine, base = opened(), opened(lora=None)
    with torch.no_grad():
        assert torch.equal(engine.logprobs(ROWS), base.logprobs(ROWS))
    a = initial_lora_a("a", (300, 400), 0)
    layer = torch.nn.Linear(400, 300)
    assert a.abs().max() <= layer.weight.abs().max() * 1.001
    assert abs(float(a.std() / layer.weight.detach().std()) - 1) < 0.01
    assert torch.equal(a, initial_lora_a("a", (300, 400), 0))
    assert not torch.equal(a, initial_lora_a("a", (300, 400), 1))
    assert not torch.equal(a, initial_lora_a("b", (300, 400), 0))


@pytest.mark.parametrize("recompute", [False, True])
def test_only_adapters_change(recompute: bool) -> None:
    engine = opened(recompute=recompute)
    before = {name: each.clone() for name, each in engine.model.state_dict().items()}
    for step in range(3):
        engine.train_step([BLOCK], micro(), STEP, step)
    after = engine.model.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == set(engine.tensors())
    assert all(kept.keys() == changed for kept in engine.moments().tensors_by_kind.values())


def test_recomputation_and_threads_change_nothing() -> None:
    wanted = gradients(filled(opened()))
    for more in ({"recompute": True}, {"threads": 2}):
        for name, each in gradients(filled(opened(**more))).items():
            torch.testing.assert_close(each, wanted[name], rtol=0, atol=1e-10, msg=name)


def test_models_of_one_base_share_its_tensors() -> None:
    ref = opened(lora=None)
    spec = replace(ref.spec, adapters=LORA)
    actor = filled(open_rank(spec, Rank(base_engine=ref)))
    other = open_rank(replace(spec, adapters=replace(LORA, rank=2, targets=("q_proj",))), Rank(base_engine=actor))
    places = [{each.data_ptr() for each in engine.model.parameters()} for engine in (ref, actor, other)]
    assert places[0] < places[1]
    assert places[0] < places[2]
    assert len(places[1] & places[2]) == len(places[0])
    with torch.no_grad():
        base = opened(lora=None).logprobs(ROWS)
        assert torch.equal(ref.logprobs(ROWS), base)
        assert torch.equal(other.logprobs(ROWS), base)
        assert not torch.allclose(actor.logprobs(ROWS), base)
    copy = actor.copy()
    before = copy.state()
    actor.train_step([BLOCK], micro(), STEP, 0)
    assert all(torch.equal(before[name], each) for name, each in copy.state().items())
    assert {each.data_ptr() for each in copy.model.parameters()} > places[0]


def test_heads_of_one_base_are_their_own() -> None:
    ref = opened("llama", None, "value_lm")
    critic = open_rank(replace(ref.spec, adapters=LORA), Rank(base_engine=ref))
    critic.train_step([BLOCK], micro("value_lm"), STEP, 0)
    with torch.no_grad():
        assert torch.equal(ref.values(ROWS), opened("llama", None, "value_lm").values(ROWS))


def test_a_saved_adapter_is_a_start(tmp_path: Path) -> None:
    engine = filled(opened())
    engine.save(tmp_path / "first")
    found = find_adapter(str(tmp_path / "first"))
    assert found is not None
    base, adapters = found
    again = TransformersEngine.open(ModelSpec("causal_lm", base, "float64", adapters=adapters))
    with torch.no_grad():
        assert torch.equal(again.logprobs(ROWS), engine.logprobs(ROWS))
    again.save(tmp_path / "second")
    assert json.loads((tmp_path / "second" / "adapter_config.json").read_text())["base_model_name_or_path"] == base
    # Both folders at another place: the base is beside the first one.
    (tmp_path / "first").rename(tmp_path / "moved")
    found = find_adapter(str(tmp_path / "moved"))
    assert found is not None
    assert found[0] == str(tmp_path / "moved" / "base")


def test_narrow_models_have_wide_adapters() -> None:
    engine = opened(dtype="bfloat16")
    assert {each.dtype for each in engine.tensors().values()} == {torch.float32}
    before = engine.state()
    engine.train_step([BLOCK], micro(), STEP, 0)
    assert any(not torch.equal(before[name], each) for name, each in engine.state().items())


@pytest.mark.parametrize(
    ("family", "dtype", "autocast"),
    [
        ("llama", "float64", None),
        ("llama", "float32", None),
        ("llama", "bfloat16", None),
        ("qwen2", "bfloat16", None),
        ("gpt2", "bfloat16", None),
        ("llama", "float32", "bfloat16"),
        ("gpt2", "float32", "bfloat16"),
    ],
)
@pytest.mark.parametrize("lr", [1e-4, 1e-3])
def test_what_an_update_adds_is_in_the_output(family: str, dtype: str, autocast: str | None, lr: float) -> None:
    """Of AdamW's first step: each number of B has moved by the learning rate. In float64 and float32 all of it; in
    bfloat16 in the mean, whose error is that of 4000 rows; and in the same layer before, what the base says to the bit.
    Rounded apart from the output half of it and more is lost. A second in all."""
    engine = TransformersEngine.open(ModelSpec("causal_lm", source(family), dtype, adapters=LORA, autocast=autocast))
    base = TransformersEngine.open(ModelSpec("causal_lm", source(family), dtype, autocast=autocast))
    name = {"gpt2": "transformer.h.1.attn.c_attn"}.get(family, "model.layers.1.self_attn.q_proj")
    layer: Any = engine.model.get_submodule(name)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, layer.lora_A.weight.shape[1], generator=generator).to(engine.model.dtype)
    kept, error = update_in_output(layer, x, lr, generator, autocast, base.model.get_submodule(name))
    assert error < (0.04 if "bfloat16" in (dtype, autocast) else {"float64": 1e-9, "float32": 1e-4}[dtype])
    assert kept == pytest.approx(1.0, abs=max(5 * error, 1e-9))


def update_in_output(
    layer: Any, x: Tensor, lr: float, generator: torch.Generator, autocast: str | None, plain: Any
) -> tuple[float, float]:
    """Return which share of an update of B is in a layer's output, and the standard error of that."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast is not None):
        before = layer(x).double()
        if plain.bias is None or before.dtype != torch.bfloat16:
            torch.testing.assert_close(
                before, plain(x).double(), rtol=2**-7 if plain.bias is not None else 0, atol=1e-6
            )
        layer.lora_B.weight.copy_(torch.randn(layer.lora_B.weight.shape, generator=generator).sign() * lr)
        a, b = layer.lora_A.weight.double(), layer.lora_B.weight.double()
        wanted = layer.lora_scale * (x.double() @ a.T @ b.T)
        change = layer(x).double() - before
    size = wanted.square().sum()
    kept = (change * wanted).sum() / size
    return float(kept), float(((change - kept * wanted) * wanted).square().sum().sqrt() / size)


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_the_parameters_of_a_family_are_those_of_the_model(family: str, kind: ModelKind) -> None:
    model = tiny(family, kind)
    shape = replace(shape_of_model(model), adapters=LORA)
    attach_adapters(model, LORA, kind)
    found: dict[str, tuple[int, ...]] = {}
    for each in trainable_parameter_shapes(shape, kind):
        if "*" in each.name:
            found |= {layer_tensor_name(each.name, place): each.shape[1:] for place in range(each.shape[0])}
        else:
            found[each.name] = each.shape
    assert found == {name: tuple(each.shape) for name, each in changing(model).items()}


def test_wrong_targets_and_wrong_folders(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no linear layer of LlamaForCausalLM is called `query`: there are down_proj"):
        opened(lora=replace(LORA, targets=("query",)))
    engine = filled(opened())
    engine.save(tmp_path)
    spec = ModelSpec("causal_lm", source("llama"), "float64", adapters=replace(LORA, rank=2, start=str(tmp_path)))
    with pytest.raises(EngineError, match="is another model's"):
        TransformersEngine.open(spec)
    with pytest.raises(EngineError, match="only the folder has"):
        TransformersEngine.open(replace(spec, adapters=replace(LORA, targets=("q_proj",), start=str(tmp_path))))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    for field, value in {
        "use_dora": True,
        "bias": "all",
        "r": 0,
        "target_modules": ".*",
        "base_model_name_or_path": None,
    }.items():
        (tmp_path / "adapter_config.json").write_text(json.dumps(config | {field: value}))
        with pytest.raises(UnsupportedAdapter, match="target_modules" if field == "r" else field):
            find_adapter(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("[")
    with pytest.raises(UnsupportedAdapter, match="cannot read"):
        find_adapter(str(tmp_path))
    assert find_adapter("Qwen/Qwen3-8B") is None
