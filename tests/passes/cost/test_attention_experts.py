"""What attention and experts take, beside plain formulas: no model is opened, and nothing is run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
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
from rlgraph.passes.cost.lengths import Lengths, largest_excess

UNEVEN = default_constants("gpu")
CONSTANTS = replace(UNEVEN, uneven=0.0)
"""Routers choose each expert as often, unless a test says otherwise."""


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


def test_the_host_is_waited_for_where_experts_have_little_to_do() -> None:
    """It launches a layer's kernels, and goes on while the device computes."""
    model = config("Qwen/Qwen3-30B-A3B")
    many, few = (trained(model, "megatron", "h100-80gb", tokens, ep=8) for tokens in (4096, 64))
    launched = 1e-3 + 48 * 1e-4
    assert many.block.overhead == pytest.approx(launched)
    worked = few.row.seconds + few.block.memory + few.block.communication
    assert 0 < worked < 48 * 1.6e-3
    assert few.block.overhead == pytest.approx(launched + 48 * 1.6e-3 - worked)


SENT = 48 * 4 * 4096 * 2048 * 2 * 8
"""Bytes of the tokens of a row, once for each of their experts, back and forth, in both passes."""
NEAR, FAR = 450e9 * 0.8, 50e9 * 0.8


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 4), (1, 8), (4, 32)])
def test_a_layer_waits_for_the_rank_whose_experts_are_chosen_most(nodes: int, ranks: int) -> None:
    """Its products, what it moves, and the tokens that come to it and to its node; where no rank has experts of its own
    all is as it was."""
    model, island = config("Qwen/Qwen3-30B-A3B"), read_cluster(f"{nodes}x8:h100-80gb").islands[0]
    batch, split = Batch(8.0, Lengths((1.0,)), Lengths((4095.0,))), make_mesh(ep=ranks)
    for mesh, differs in ((make_mesh(tp=8), False), (split, True)):
        deployment = Deployment("megatron", island, mesh, micro_tokens=4096)
        even, real = (latency_model("train", model, deployment, each, [batch]).row for each in (CONSTANTS, UNEVEN))
        assert (even != real) is differs
    excess = 1.6 * math.sqrt(ranks / 128) * largest_excess(ranks)
    flops = 3 * 2 * 48 * 4096 * 8 * 3 * 2048 * 768
    assert real.compute - even.compute == pytest.approx(excess * flops / (989e12 * 0.8 * 0.9))
    own = 3 * 3.0 * 48 * 4096 * 8 * (2048 + 4 * 768) * 2
    assert real.memory - even.memory == pytest.approx(excess * own / (3.35e12 * 0.92 * 0.9))
    of_node = 1.6 * math.sqrt(nodes / 128) * largest_excess(nodes) if nodes > 1 else excess
    assert real.communication == pytest.approx(even.communication * (1 + of_node))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_fullest_rank_beside_random_shares_of_experts(ranks: int) -> None:
    """Log-normal shares of 128 experts, dealt out to ranks: the fullest one's tokens, in the mean of many layers."""
    spread = math.sqrt(math.log(1 + 1.6**2))
    drawn = np.random.default_rng(0).lognormal(-(spread**2) / 2, spread, (4000, ranks, 128 // ranks))
    loads = drawn.mean(axis=2) / drawn.mean(axis=(1, 2))[:, None]
    assert 1 + 1.6 * math.sqrt(ranks / 128) * largest_excess(ranks) == pytest.approx(loads.max(axis=1).mean(), rel=0.1)


@pytest.mark.parametrize(
    ("nodes", "split", "how", "seconds"),
    [
        (1, {"ep": 8}, {}, SENT * 7 / 8 / NEAR),
        (4, {"ep": 32}, {}, SENT * 24 / 32 / FAR),
        # Two ranks share tokens, of which each sends a half. They gather what arrives, or have experts of their own; and
        # in neither case all tokens, of which what travels beside products is not waited for.
        (4, {"ep": 16, "tp": 2}, {}, SENT / 2 * (12 / 16 / FAR + 1 / NEAR) - SENT / 8 / 2 / NEAR * 0.4),
        (4, {"ep": 16, "tp": 2}, {"whole_experts": True}, SENT / 2 * 12 / 16 / FAR - SENT / 8 / 2 / NEAR * 0.4),
        # Eight experts at random are on 1 - 0.75 ** 8 of four nodes.
        (4, {"ep": 32}, {"once_a_node": True}, SENT / 8 * 3 * (1 - 0.75**8) / FAR),
        (1, {"ep": 8}, {"hides_routed": True}, 0.0),
    ],
)
def test_tokens_go_to_experts_of_their_node_and_of_others_at_the_same_time(
    nodes: int, split: dict[str, int], how: dict[str, bool], seconds: float
) -> None:
    key = ("megatron", "train")
    constants = replace(CONSTANTS, rates={**CONSTANTS.rates, key: replace(CONSTANTS.rates[key], **how)})
    island, batch = read_cluster(f"{nodes}x8:h100-80gb").islands[0], Batch(8.0, Lengths((1.0,)), Lengths((4095.0,)))
    found = []
    for axes in (split, split | {"ep": 1}):
        deployment = Deployment("megatron", island, make_mesh(**axes), micro_tokens=4096)
        found.append(latency_model("train", config("Qwen/Qwen3-30B-A3B"), deployment, constants, [batch]))
    assert found[0].row.communication - found[1].row.communication == pytest.approx(seconds)
