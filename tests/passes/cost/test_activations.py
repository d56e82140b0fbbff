"""The bytes that training keeps, beside those of all tensors that are there while real engines train."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.transformers.gradients import compute_gradient_sum
from rlgraph.backends.enginespec.memory import HeadTiles
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.cost.activations import LOGITS, Activations, activation_bytes
from rlgraph.passes.cost.work import Tokens
from tests.passes.cost.live import Live
from tests.passes.cost.trained import LATENT, WIDE_VALUES, Case
from tests.suites import few

MANY_SCORED = {"scored": 64}
LONG = {"rows": 2, "length": 512}
WIDE = {"fields": (("hidden_size", 128), ("intermediate_size", 128), ("num_attention_heads", 8)), "scored": 16}
CASES = [
    *(Case(family, dtype=dtype) for family in ("qwen2", "qwen3") for dtype in ("float32", "bfloat16")),
    *(Case("llama", dtype=dtype, **more) for more in (MANY_SCORED, LONG, WIDE) for dtype in ("float32", "bfloat16")),
    Case("qwen2", "value_lm", **MANY_SCORED),
    Case("qwen2", entropy=True, **MANY_SCORED),
    Case("phi3", fields=(("pad_token_id", 0),)),
    Case("gemma2", scored=127, fields=(("head_dim", 16),)),
    Case("gemma3_text", dtype="bfloat16", fields=(("head_dim", 16),)),
    Case("mixtral", fields=(("num_local_experts", 4),)),
    Case("qwen3_moe", fields=(("num_experts", 8), ("num_experts_per_tok", 2), ("moe_intermediate_size", 80))),
    *(Case("deepseek_v3", dtype=dtype, fields=LATENT) for dtype in ("float32", "bfloat16")),
    Case("deepseek_v3", rows=2, length=512, fields=WIDE_VALUES),
]
KEPT = [
    Case("qwen2"),
    Case("qwen2", dtype="bfloat16"),
    Case("qwen3"),
    Case("llama", **MANY_SCORED),
    Case("llama", dtype="bfloat16", **WIDE),
    Case("qwen2", "value_lm", **MANY_SCORED),
    Case("qwen2", entropy=True, **MANY_SCORED),
    Case("gemma2", scored=127, fields=(("head_dim", 16),)),
    Case("gemma3_text", dtype="bfloat16", fields=(("head_dim", 16),)),
    Case("mixtral", fields=(("num_local_experts", 4),)),
    Case("deepseek_v3", fields=LATENT),
    Case("deepseek_v3", rows=2, length=512, fields=WIDE_VALUES),
]


TILES = HeadTiles(rows=64, columns=128, cached=1 << 12)


def measured(case: Case, layers: int, logits: int = LOGITS, recompute: bool = False, tiles: HeadTiles = TILES) -> int:
    """The peak of one micro-batch, after a small one that has made what stays."""
    engine = TransformersEngine.open(case.spec(layers), logit_numbers=logits, recompute=recompute, head_tiles=tiles)
    micro, small = case.micro(), replace(case, rows=1, length=16, scored=1).micro()
    parameters = list(engine.model.parameters())
    compute_gradient_sum(engine, engine._differentiate, [0], lambda block: small, None, 1)
    with Live(parameters) as live:
        compute_gradient_sum(engine, engine._differentiate, [0], lambda block: micro, None, 1)
    return live.peak


@pytest.mark.parametrize("case", few(CASES, *KEPT), ids=str)
def test_what_transformers_keeps(case: Case) -> None:
    shape = case.shape()
    found = activation_bytes(
        shape,
        case.kind,
        case.tokens(),
        itemsize=4 if case.dtype == "float32" else 2,
        fused_norms=case.dtype == "float32",
        entropy=case.entropy,
        masked=True,
        tiles=TILES,
    )
    two, four = measured(case, 2), measured(case, 4)
    # What routers keep is left out. Where scores are written out no sums of them are kept.
    rel = 0.03 if shape.experts else 0.003 if shape.has_soft_cap else 0.001
    assert found.layer == pytest.approx((four - two) / 2, rel=rel)
    assert found.peak_bytes(2) == pytest.approx(two, rel=0.1)
    assert found.peak_bytes(4) == pytest.approx(four, rel=0.1)


@pytest.mark.parametrize(
    "entropy, dtype",
    few(product([False, True], ["float32", "bfloat16"]), (False, "bfloat16"), (True, "float32")),
)
def test_of_a_head_in_tiles_there_is_what_is_kept(entropy: bool, dtype: str) -> None:
    """Half of the exponentials, a tile, and the gradients of the head."""
    case = Case("qwen2", dtype=dtype, scored=127, entropy=entropy, fields=(("vocab_size", 1024),))
    itemsize, fused = (4, True) if dtype == "float32" else (2, False)
    tiles = replace(TILES, kept=1 << 19)
    found = activation_bytes(
        case.shape(),
        "causal_lm",
        case.tokens(),
        itemsize=itemsize,
        fused_norms=fused,
        entropy=entropy,
        masked=True,
        tiles=tiles,
    )
    assert found.head > found.working
    assert found.peak_bytes(2) == pytest.approx(measured(case, 2, tiles=tiles), rel=0.02)
    assert measured(case, 2) > 1.05 * found.peak_bytes(2)


@pytest.mark.parametrize(
    "family, dtype",
    few(product(["llama", "qwen3"], ["float32", "bfloat16"]), ("llama", "float32"), ("qwen3", "bfloat16")),
)
def test_layers_that_are_recomputed_keep_their_input(family: str, dtype: str) -> None:
    case = Case(family, dtype=dtype)
    itemsize, fused = (4, True) if dtype == "float32" else (2, False)
    found = activation_bytes(
        case.shape(),
        "causal_lm",
        case.tokens(),
        itemsize=itemsize,
        fused_norms=fused,
        recompute=True,
        masked=True,
        tiles=TILES,
    )
    two, four = (measured(case, layers, recompute=True) for layers in (2, 4))
    assert found.layer == pytest.approx((four - two) / 2, rel=0.001)
    assert found.peak_bytes(2) == pytest.approx(two, rel=0.1)
    assert found.peak_bytes(4) == pytest.approx(four, rel=0.1)


def llama(tokens: float, tp: int = 1, recompute: bool = False) -> Activations:
    config = known_config("meta-llama/Llama-3.1-8B")
    assert config is not None
    work = Tokens(1, tokens, tokens**2, tokens, tokens)
    return activation_bytes(shape_of(config), "causal_lm", work, itemsize=2, tp=tp, recompute=recompute)


def test_recomputation_keeps_the_inputs_of_the_layers() -> None:
    whole, again = llama(4096), llama(4096, recompute=True)
    assert again.layer == 4096 * 4096 * 2
    assert again.working == whole.layer + whole.working
    assert again.peak_bytes(32) < whole.peak_bytes(32) / 2


def test_tensor_parallel_ranks_share_all_but_the_residual_stream() -> None:
    one, two, most = (llama(4096, tp).layer for tp in (1, 2, 10**9))
    shared = one - most
    assert most == pytest.approx(2 * 4096 * (2 * 2 * 4096 + 4), rel=1e-6)
    assert two == pytest.approx(most + shared / 2)
    assert llama(64, 2).head == llama(64).head / 2


def test_what_a_layer_keeps_grows_with_the_tokens() -> None:
    assert llama(8192).layer == pytest.approx(2 * llama(4096).layer)


def test_experts_keep_what_their_tokens_need() -> None:
    def layer(chosen: int) -> float:
        shape = Shape("mixtral", 100, 64, 160, 1, 4, 2, 16, experts=8, experts_per_token=chosen)
        return activation_bytes(shape, "causal_lm", Tokens(1, 10, 100, 0, 10), itemsize=2).layer

    assert layer(3) - layer(2) == layer(2) - layer(1) == 10 * 2 * (4 * 160 + 2 * 64)
