"""A decoding step takes what the host launches or what the device does, whichever is longer, where one goes ahead of the
other. Nothing is run: a hundredth of a second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.catalog.models.families import parameter_count
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.decoding import DecodeStepCost
from rlgraph.passes.cost.decoding_slots import cache_bytes_per_token
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths

GPU = default_constants("gpu")
KEY = ("transformers", "generate")
LAUNCHED = 28 * 6.7e-4
"""Seconds in which the host launches the layers of a Qwen2.5-7B."""


def step(rates: dict[str, float]) -> tuple[DecodeStepCost, ModelConfig, Deployment]:
    found = known_config("Qwen/Qwen2.5-7B")
    assert found
    model = ModelConfig("m", shape_of(found), "causal_lm", "bfloat16")
    deployment = Deployment("transformers", read_cluster("1x8:a100-80gb").islands[0], make_mesh())
    constants = replace(GPU, rates={**GPU.rates, KEY: replace(GPU.rates[KEY], **rates)})  # type: ignore[arg-type]
    batch = Batch(256.0, Lengths((1000.0,)), Lengths((1000.0,)))
    return DecodeStepCost(model, deployment, constants, batch), model, deployment


@pytest.mark.parametrize("rows", [1, 256])
def test_the_longer_of_both_counts(rows: int) -> None:
    ahead, in_turn = step({})[0].cost(rows), step({"layer": 6.7e-4, "host_layer": 0.0})[0].cost(rows)
    device = in_turn.seconds - in_turn.overhead
    assert in_turn.overhead == pytest.approx(LAUNCHED)
    assert ahead.seconds == pytest.approx(max(device, LAUNCHED))
    assert (ahead.overhead == 0) == (rows == 256), "one row waits for the host"


def test_a_system_that_copies_its_cache_moves_it_more_often() -> None:
    """`generate` of Hugging Face, with seven heads that share keys."""
    (plain, model, deployment), (copied, _, _) = step({"cached": 1.0}), step({"cached": 3 + 2 * 7})
    context = 1000 + 1000 / 2
    device = deployment.island.device
    once = cache_bytes_per_token(model, deployment) * context / (device.cache_bandwidth * GPU.rates[KEY].memory)
    assert copied.cache - plain.cache == pytest.approx(16 * once, rel=1e-3)


def test_kernels_take_as_long_as_they_do_on_a_device() -> None:
    """Four products and attention of each layer begin anew; weights and cache are read at rates of their own, and of an
    embedding that is no head nothing is."""
    found = known_config("Qwen/Qwen2.5-7B")
    assert found
    model = ModelConfig("m", shape_of(found), "causal_lm", "bfloat16")
    shape, rates = model.shape, GPU.rates["vllm", "generate"]
    assert not shape.tied and rates.products == 4 and rates.memory == 1
    batch = Batch(64.0, Lengths((1000.0,)), Lengths((1000.0,)))
    for name in ("a100-80gb", "h100-80gb"):
        deployment = Deployment("vllm", read_cluster(f"1x8:{name}").islands[0], make_mesh())
        device, found_step = deployment.island.device, DecodeStepCost(model, deployment, GPU, batch)
        begun = rates.layer + 4 * device.product_latency + device.attention_latency
        assert found_step.cost(1).overhead == pytest.approx(28 * begun + rates.block + rates.row)
        read = 2 * (parameter_count(shape, "causal_lm") - shape.vocab * shape.hidden)
        assert found_step.weights == pytest.approx(read / device.weight_bandwidth)
        assert found_step.cache == pytest.approx(
            cache_bytes_per_token(model, deployment) * 1500 / device.cache_bandwidth
        )
    tied = replace(model, shape=replace(shape, tied=True))
    assert DecodeStepCost(tied, deployment, GPU, batch).weights == pytest.approx(read / device.weight_bandwidth), (
        "a head"
    )
