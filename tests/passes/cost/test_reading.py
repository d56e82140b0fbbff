"""A pass over prompts takes as long as its products, or as its weights take to be read, whichever is longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.decoding import DecodeStepCost, reading_cost
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.work import Tokens, expert_parameter_count

GPU = default_constants("gpu")
AT = Deployment("vllm", read_cluster("1x8:h100-80gb").islands[0], make_mesh())


def config(name: str) -> ModelConfig:
    found = known_config(name)
    assert found
    return ModelConfig("m", shape_of(found), "causal_lm", "bfloat16")


def read(model: ModelConfig, tokens: float, at: Deployment = AT) -> Cost:
    return reading_cost(model, at, GPU, Tokens(1.0, tokens, tokens**2, 1.0), 0.0)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-0.5B"])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_short_prompt_waits_for_the_weights_as_a_decoding_step_does(name: str, tp: int) -> None:
    """Of an embedding that is no head, too, neither reads more than rows."""
    model, at = config(name), replace(AT, mesh=make_mesh(tp=tp))
    one = Batch(1.0, Lengths((1.0,)), Lengths((1.0,)))
    step = DecodeStepCost(model, at, GPU, one)
    found = read(model, 1.0, at)
    assert found.compute + found.memory == pytest.approx(step.weights, rel=0.01)
    assert read(model, 64.0, at).seconds == pytest.approx(found.seconds, rel=0.1)


def test_products_of_many_tokens_hide_their_weights() -> None:
    model = config("Qwen/Qwen2.5-7B")
    some, twice = read(model, 4096.0), read(model, 8192.0)
    assert twice.memory == pytest.approx(2 * some.memory) and twice.compute > 1.99 * some.compute


def test_experts_are_read_once() -> None:
    """All of them, beside which the rest of the weights is little."""
    model = config("Qwen/Qwen3-30B-A3B")
    bandwidth, item = AT.island.device.stream_bandwidth, 2
    experts = expert_parameter_count(model.shape) * item / bandwidth
    assert experts < read(model, 8.0).memory < 1.1 * experts
