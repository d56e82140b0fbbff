"""What attention and experts take, beside plain formulas: no model is opened, and nothing is run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.catalog.models.families import parameter_count
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost import work
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.latency import LatencyModel, latency_model
from rlgraph.passes.cost.lengths import Lengths

CONSTANTS = default_constants("gpu")


def config(name: str) -> ModelConfig:
    found = known_config(name)
    assert found is not None
    return ModelConfig("m", shape_of(found), "causal_lm", "bfloat16")


def trained(model: ModelConfig, engine: str, device: str, tokens: int, **split: int) -> LatencyModel:
    deployment = Deployment(engine, read_cluster(f"1x8:{device}").islands[0], make_mesh(**split), micro_tokens=tokens)
    batch = Batch(8.0, Lengths((1.0,)), Lengths((tokens - 1.0,)))
    return latency_model("train", model, deployment, CONSTANTS, [batch])


@pytest.mark.parametrize(("engine", "rate"), [("megatron", 0.72), ("transformers", 0.42)])
def test_rows_twice_as_long_take_what_attention_kernels_take_for_half_of_the_pairs(engine: str, rate: float) -> None:
    model = config("meta-llama/Meta-Llama-3-8B")
    short, long = (trained(model, engine, "h100-80gb", tokens).row.compute for tokens in (16384, 32768))
    pairs = (32768**2 - 2 * 16384**2) / 2
    flops = 3.5 * 4 * model.shape.layers * model.shape.heads * model.shape.head_dim * pairs
    taken = flops / (989e12 * 0.8 * 0.9 * rate)
    scored = 3 * 2 * model.shape.hidden * model.shape.vocab / (989e12 * 0.8 * 0.9)
    assert long - 2 * short == pytest.approx(taken, rel=1e-3, abs=2 * scored)


def test_products_in_float8_have_a_rate_of_their_own_and_attention_has_not() -> None:
    wide = config("meta-llama/Meta-Llama-3-8B")
    narrow = replace(wide, autocast="float8")
    saved = (
        trained(wide, "megatron", "h100-80gb", 8192).row.compute
        - trained(narrow, "megatron", "h100-80gb", 8192).row.compute
    )
    weights = 3 * work.weight_flops(wide.shape, work.Tokens(1, 8192, 8192**2, 8191))
    assert saved == pytest.approx(weights * (1 / 989e12 - 1 / 1979e12) / (0.8 * 0.9), rel=1e-9)
    without = [trained(each, "megatron", "a100-80gb", 8192).row.compute for each in (wide, narrow)]
    assert without[0] == without[1], "a device without float8 multiplies in bfloat16"


def test_experts_wait_for_their_tokens_and_read_their_weights() -> None:
    model = config("Qwen/Qwen3-30B-A3B")
    one, eight = (trained(model, "megatron", "h100-80gb", 4096, ep=ranks) for ranks in (1, 8))
    sent = 48 * 4 * 7 / 8 * 4096 * 2048 * 2 * 8 / (450e9 * 0.8)
    assert eight.row.communication - one.row.communication == pytest.approx(sent), "none of it is hidden"
    rate = 3.35e12 * 0.92 * 0.9
    read = work.expert_parameter_count(model.shape) * (3 * 2 + 8) / rate
    others = (parameter_count(model.shape, "causal_lm") - work.expert_parameter_count(model.shape)) * 10 / rate
    assert one.block.memory == pytest.approx(read + others)
    assert eight.block.memory == pytest.approx(read / 8 + others)
    dense = config("Qwen/Qwen3-8B")
    added = parameter_count(dense.shape, "causal_lm") * 10 / rate
    assert trained(dense, "megatron", "h100-80gb", 4096).block.memory == pytest.approx(added)
    assert one.block.overhead == pytest.approx(1e-3 + 48 * (1e-4 + 3.6e-3))
