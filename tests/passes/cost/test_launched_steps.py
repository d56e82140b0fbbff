"""A decoding step takes what the host launches or what the device does, whichever is longer, where one goes ahead of the
other. Nothing is run: a hundredth of a second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
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
    batch = Batch(64.0, Lengths((1000.0,)), Lengths((1000.0,)))
    return DecodeStepCost(model, deployment, constants, batch), model, deployment


@pytest.mark.parametrize("rows", [1, 64])
def test_the_longer_of_both_counts(rows: int) -> None:
    ahead, in_turn = (step({"queues": queues})[0].cost(rows) for queues in (True, False))
    device = in_turn.seconds - in_turn.overhead
    assert in_turn.overhead == pytest.approx(LAUNCHED)
    assert ahead.seconds == pytest.approx(max(device, LAUNCHED))
    assert (ahead.overhead == 0) == (rows == 64), "one row waits for the host"


def test_a_system_that_copies_its_cache_moves_it_more_often() -> None:
    """`generate` of Hugging Face, with seven heads that share keys."""
    (plain, model, deployment), (copied, _, _) = step({}), step({"cached": 3 + 2 * 7})
    context = 1000 + 1000 / 2
    device = deployment.island.device
    once = cache_bytes_per_token(model, deployment) * context / (device.stream_bandwidth * GPU.rates[KEY].memory)
    assert copied.cache - plain.cache == pytest.approx(16 * once, rel=1e-3)
