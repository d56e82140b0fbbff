"""What a plan says of ranks that have some experts entire, beside those that have some columns of all of them."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean

import pytest

from rlgraph.backends.enginespec.registry import engine
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost import work
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.decoding import DecodeStepCost
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.predict import memory_footprint
from rlgraph.passes.placement.search.meshes import legal_replica_meshes

ISLAND = read_cluster("1x8:h100-80gb").islands[0]
BATCH = Batch(64.0, Lengths((300.0,)), Lengths((500.0,)))


def config() -> ModelConfig:
    found = known_config("Qwen/Qwen3-30B-A3B")
    assert found
    return ModelConfig("actor", shape_of(found), "causal_lm", "bfloat16")


def whole(ranks: int) -> Deployment:
    return Deployment("vllm", ISLAND, make_mesh(ep=ranks))


def columns(ranks: int) -> Deployment:
    return Deployment("vllm", ISLAND, make_mesh(tp=ranks))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("rows", [16, 64])
def test_the_fullest_rank_reads_the_experts_that_it_has(ranks: int, rows: int) -> None:
    """Beside tokens that choose their experts at random."""
    shape, random = config().shape, Random(0)
    own, fullest = shape.experts // ranks, []
    for _ in range(200):
        read = {expert for _ in range(rows) for expert in random.sample(range(shape.experts), shape.experts_per_token)}
        fullest.append(max(sum(expert // own == rank for expert in read) for rank in range(ranks)))
    step, even = (
        DecodeStepCost(config(), deployment, default_constants("gpu"), BATCH).cost(rows)
        for deployment in (whole(ranks), columns(ranks))
    )
    device, share = ISLAND.device, default_constants("gpu").rates["vllm", "generate"].memory
    expert = (
        work.expert_parameter_count(shape) * config().item_bytes / shape.experts / (device.stream_bandwidth * share)
    )
    # Half of an expert's columns on each of two ranks take as long to read as half of the experts.
    average = own * (1 - (1 - shape.experts_per_token / shape.experts) ** (rows + 1))
    found = (step.memory - even.memory) / expert + average
    assert found == pytest.approx(fmean(fullest), rel=0.06) and found >= average
    assert (step.communication, step.overhead) == (even.communication, even.overhead)


def test_they_need_as_much_memory_as_their_tensors() -> None:
    shape = config().shape
    found, even = (
        memory_footprint("generate", config(), deployment, [BATCH]).resident for deployment in (whole(4), columns(4))
    )
    assert found == even
    numbers = [
        sum(math.prod(each.shape) for each in engine("vllm").layout(shape, make_mesh(ep=4), rank, "causal_lm"))
        for rank in range(4)
    ]
    assert dict(found.parts)["weights"] == pytest.approx(2 * max(numbers), rel=0.01)


def test_a_search_tries_one_or_the_other() -> None:
    splits = legal_replica_meshes(config().shape, "vllm", "causal_lm", 8)
    assert {str(split) for split in splits} == {"1 device", "tp2", "tp4", "tp8", "tp16", "ep2", "ep4", "ep8", "ep16"}
