"""The work that is counted from a shape, beside what torch counts in transformers' models on fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import AutoConfig, PreTrainedModel

from rlgraph.backends.engines.megatron import layout as megatron
from rlgraph.backends.engines.transformers.attention import use_packing_attention
from rlgraph.catalog.models.config_shape import FAMILIES, shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.catalog.models.families import ModelKind, parameter_count, parameter_shapes_by_layer
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.passes.cost.work import (
    Tokens,
    active_parameter_count,
    attended_tokens,
    backward_flops,
    decode_flops_per_token,
    expert_parameter_count,
    forward_flops,
    head_flops,
    kv_bytes_per_token,
    layer_parameter_count,
    layers_flops,
    model_parallel_parameter_count,
    stage_parameter_count,
)
from tests.catalog.models.tiny import AUTO, OWN, SIZES
from tests.catalog.models.tiny import KINDS as ALL
from tests.suites import few

LARGE = [
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen3-1.7B",
    "meta-llama/Llama-3.2-3B",
    "mistralai/Mistral-7B-v0.3",
    "meta-llama/Llama-2-7b-hf",
    "mistralai/Mixtral-8x7B-v0.1",
    "Qwen/Qwen1.5-MoE-A2.7B",
    "Qwen/Qwen3-30B-A3B",
]
KINDS: tuple[ModelKind, ...] = ("causal_lm", "value_lm", "reward_lm")


def config_of(name: str) -> dict[str, Any]:
    found = known_config(name)
    assert found is not None
    return dict(found)


DEEPSEEK_V3 = {"model_type": "deepseek_v3", "vocab_size": 129280}
"""All else is as transformers has it where a configuration says nothing."""
DEEPSEEK = {"model_type": "deepseek_v3", **SIZES, **OWN["deepseek_v3"]}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def model_of(config: dict[str, Any], kind: ModelKind) -> PreTrainedModel:
    """One that asks no tensor for a number, as the experts' usual loop over those that have tokens does: a fake tensor
    has none."""
    fields = {"num_labels": 1, "attn_implementation": "sdpa", "experts_implementation": "batched_mm"}
    if kind == "reward_lm":
        fields["pad_token_id"] = 0
    model = AUTO[kind].from_config(AutoConfig.for_model(**{**config, **fields}))
    if shape_of(config).latent:
        # Then keys and values are as wide as each other.
        assert use_packing_attention(model)
    return model


def counter() -> FlopCounterMode:
    """torch knows the FLOPs of the attention of GPUs; that of CPUs has the same arguments."""

    def forward(*shapes: Any, **_: Any) -> int:
        return int(sdpa_flop_count(*shapes[:3]))

    def backward(*shapes: Any, **_: Any) -> int:
        return int(sdpa_backward_flop_count(*shapes[:4]))

    aten = torch.ops.aten
    return FlopCounterMode(
        display=False,
        custom_mapping={
            aten._scaled_dot_product_flash_attention_for_cpu: forward,
            aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
        },
    )


def counted(config: dict[str, Any], kind: ModelKind, rows: int, length: int) -> tuple[int, int]:
    """FLOPs that torch counts forward, and backward."""
    with FakeTensorMode(), default_dtype(torch.bfloat16):
        model = model_of(config, kind)
        ids = torch.zeros(rows, length, dtype=torch.long)
        with counter() as forward:
            # As an engine does it: the head of a reward model reads one place of each row.
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            head = model.lm_head if kind == "causal_lm" else model.score
            found = head(hidden[:, -1] if kind == "reward_lm" else hidden).sum()
        with counter() as backward:
            found.backward()
    return forward.get_total_flops(), backward.get_total_flops()


def whole(rows: int, length: int) -> Tokens:
    """Rows of one length, all of them scored."""
    return Tokens(rows, rows * length, rows * length**2, rows * length, length)


@pytest.mark.parametrize(
    "name", few(LARGE, "meta-llama/Llama-2-7b-hf", "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen1.5-MoE-A2.7B")
)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    config = {**config_of(name), "num_hidden_layers": 3}  # Torch takes its time over each, and all are alike.
    shape, work = shape_of(config), whole(2, 512)
    forward, backward = counted(config, "causal_lm", 2, 512)
    assert forward_flops(shape, "causal_lm", work) == forward
    assert backward_flops(shape, "causal_lm", work) == backward


@pytest.mark.parametrize(
    ("family", "kind"),
    few(
        ALL,
        ("llama", "value_lm"),
        ("qwen2", "reward_lm"),
        ("gemma2", "causal_lm"),
        ("mixtral", "value_lm"),
        ("qwen2_moe", "causal_lm"),
        ("qwen3_moe", "reward_lm"),
        ("deepseek_v3", "causal_lm"),
        ("deepseek_v3", "value_lm"),
    ),
)
def test_flops_of_every_family_and_head(family: str, kind: ModelKind) -> None:
    config = {"model_type": family, **SIZES, **OWN.get(family, {})}
    shape, work = shape_of(config), whole(3, 20)
    assert (forward_flops(shape, kind, work), backward_flops(shape, kind, work)) == counted(config, kind, 3, 20)


def test_layers_and_head_are_all_that_a_pass_computes() -> None:
    shape, work = shape_of(config_of("Qwen/Qwen2.5-0.5B")), whole(2, 512)
    assert layers_flops(shape, work) + head_flops(shape, "causal_lm", work) == forward_flops(shape, "causal_lm", work)


@pytest.mark.parametrize("config", [config_of("Qwen/Qwen2.5-0.5B"), DEEPSEEK], ids=lambda config: config["model_type"])
def test_a_new_token_multiplies_with_every_weight_and_sees_its_context(config: dict[str, Any]) -> None:
    with FakeTensorMode(), default_dtype(torch.bfloat16):
        model = model_of(config, "causal_lm")
        cache = model(input_ids=torch.zeros(1, 99, dtype=torch.long), use_cache=True).past_key_values
        with counter() as step:
            model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache)
    assert decode_flops_per_token(shape_of(config), 100) == step.get_total_flops()


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mistralai/Mixtral-8x7B-v0.1", 12.9),
        ("mistralai/Mixtral-8x22B-v0.1", 39.1),
        ("Qwen/Qwen1.5-MoE-A2.7B", 2.7),
        ("Qwen/Qwen2-57B-A14B", 14.2),
        ("Qwen/Qwen3-30B-A3B", 3.35),
        ("Qwen/Qwen3-235B-A22B", 22.2),
    ],
)
def test_the_published_share_of_the_parameters_is_active(name: str, billions: float) -> None:
    assert active_parameter_count(shape_of(config_of(name))) / 1e9 == pytest.approx(billions, rel=0.005)


def test_the_published_numbers_of_deepseek_v3() -> None:
    """671 and 37 billion (arXiv 2412.19437, section 4.2), the latter without the embedding, which is looked up."""
    shape = shape_of(DEEPSEEK_V3)
    assert parameter_count(shape) / 1e9 == pytest.approx(671, abs=0.5)
    assert active_parameter_count(shape) / 1e9 - shape.vocab * shape.hidden / 1e9 == pytest.approx(37, abs=0.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_of_layers_and_experts_are_those_of_the_tensors(family: str) -> None:
    shape = shape_of({"model_type": family, **SIZES, **OWN.get(family, {})})
    sizes = {tensor.name: prod(tensor.shape) for tensor in parameter_shapes_by_layer(shape)}
    assert layer_parameter_count(shape) == sum(size for name, size in sizes.items() if ".layers.1." in name)
    assert expert_parameter_count(shape) == sum(size for name, size in sizes.items() if ".experts." in name)
    assert active_parameter_count(shape) <= parameter_count(shape)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
@pytest.mark.parametrize("family", ["qwen2", "deepseek_v3"])
def test_the_fullest_stage_is_that_of_megatron(family: str, pp: int, kind: ModelKind, tied: bool) -> None:
    shape = replace(shape_of({"model_type": family, **SIZES, **OWN.get(family, {})}), tied=tied)
    stages = [megatron.layout(shape, make_mesh(1, pp), rank, kind) for rank in range(pp)]
    assert stage_parameter_count(shape, kind, pp) == max(sum(prod(local.shape) for local in stage) for stage in stages)


@pytest.mark.parametrize(
    "over",
    [make_mesh(tp=8), make_mesh(pp=2, tp=4), make_mesh(ep=8, tp=2), make_mesh(pp=4, ep=4, tp=8), make_mesh(pp=3, ep=8)],
    ids=str,
)
def test_the_fullest_rank_is_that_of_megatron(over: Mesh) -> None:
    """Of a model whose heads share much; norms and routers, which each rank has, are little."""
    shape = replace(shape_of(DEEPSEEK_V3), layers=8)
    pp, ep, tp = (over.axis_size(axis) for axis in ("pp", "ep", "tp"))
    ranks = [megatron.layout(shape, over, rank, "causal_lm") for rank in range(over.rank_count)]
    most = max(sum(prod(local.shape) for local in rank) for rank in ranks)
    assert model_parallel_parameter_count(shape, "causal_lm", pp, tp, ep) == pytest.approx(most, rel=0.005)


def test_keys_and_values_of_a_token() -> None:
    # 2 (keys and values) x 32 layers x 8 heads x 128 x 2 bytes: 128 KiB.
    assert kv_bytes_per_token(shape_of(config_of("meta-llama/Llama-3.1-8B")), 2) == 128 << 10


@pytest.mark.parametrize(("context", "tokens"), [(6, 6), (8, 8), (20, (8 * 3 + 20) / 4), (4000, (8 * 3 + 4000) / 4)])
def test_layers_with_a_window_see_its_last_tokens(context: int, tokens: float) -> None:
    types = ["sliding_attention"] * 3 + ["full_attention"]
    windowed = shape_of({"model_type": "gemma3_text", **SIZES, "sliding_window": 8, "layer_types": types})
    assert attended_tokens(windowed, context) == tokens
    assert attended_tokens(shape_of({"model_type": "llama", **SIZES}), context) == context
