"""What the cost model says of new weights on their way, beside the bytes of the planner's own transfers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.backends.exchange.exchange import TransferEndpoint
from rlgraph.backends.exchange.mailbox import GlooLink
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import find_config
from rlgraph.catalog.models.families import parameter_count as count_numbers
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.transfer import Topology
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.memory import BUCKET
from rlgraph.passes.cost.transfer_pieces import transfer_counts
from rlgraph.passes.cost.weights import weight_sync_cost
from rlgraph.passes.resharding.rank_assignment import assign_ranks
from rlgraph.passes.resharding.reshard import plan_resharding

GPU = default_constants("gpu")

NAMES = ("Qwen/Qwen2.5-7B", "meta-llama/Llama-2-13b-hf")
ISLAND = read_cluster("1x8:a100-80gb").islands[0]
SPLITS = [
    ((1, 2, 4), (4, 1, 2)),
    ((2, 1, 4), (8, 1, 1)),
    ((1, 1, 4), (2, 1, 2)),
    ((1, 2, 2), (1, 1, 4)),
    ((2, 2, 2), (2, 1, 4)),
]
"""dp, pp and tp of Megatron's and of vLLM's group on the same devices."""


def shape(name: str) -> Shape:
    config = find_config(name)
    assert config
    return shape_of(config)


def deployment(engine: str, split: tuple[int, int, int]) -> Deployment:
    return Deployment(engine, ISLAND, make_mesh(*split))


def test_between_islands_their_link_is_what_weights_wait_for() -> None:
    """As many times longer as the link is slower, beside what each node passes on; and a message's way."""
    model = ModelConfig("actor", shape(NAMES[0]), "causal_lm", "bfloat16")
    ends = deployment("megatron", (2, 1, 4)), deployment("vllm", (8, 1, 1))
    near = weight_sync_cost(model, *ends, False, GPU)
    assert weight_sync_cost(model, *ends, False, GPU, (10 * ISLAND.network, 0.0)) == near
    slow = weight_sync_cost(model, *ends, False, GPU, (ISLAND.network / 100, 0.5))
    size = count_numbers(model.shape, "causal_lm") * 2
    assert slow.communication - near.communication == pytest.approx(
        0.5 + 99 * size / 8 / (ISLAND.network * GPU.transfer)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("source", "target"), SPLITS)
def test_on_the_same_devices_it_is_what_the_fullest_device_lacks(
    name: str, source: tuple[int, int, int], target: tuple[int, int, int]
) -> None:
    model = ModelConfig("actor", shape(name), "causal_lm", "bfloat16")
    if model.shape.kv_heads % target[2] or model.shape.heads % max(source[2], target[2]):
        pytest.skip("no such split of this model")
    meshes = make_mesh(*source), make_mesh(*target)
    held, needed = (
        [spec_of(engine).layout(model.shape, split, rank, "causal_lm") for rank in range(split.rank_count)]
        for engine, split in zip(("megatron", "vllm"), meshes, strict=True)
    )
    ranks = assign_ranks(held, needed, meshes[1]).ranks
    count = len(ranks)
    devices = {**{rank: rank for rank in range(count)}, **{count + place: device for device, place in enumerate(ranks)}}
    plan = plan_resharding(
        dict(enumerate(held)),
        {count + rank: layout for rank, layout in enumerate(needed)},
        itemsize=2,
        topology=Topology(devices, dict.fromkeys(range(count), 0)),
        bucket=256 << 20,
    )
    most = max(plan.received_bytes().values(), default=0)
    cost = weight_sync_cost(model, deployment("megatron", source), deployment("vllm", target), True, GPU)
    said = cost.communication * ISLAND.device.link * GPU.transfer
    # Norms, biases and embeddings are not split as the layers are.
    assert said == pytest.approx(most, rel=0.15, abs=0.01 * 2 * count_numbers(model.shape))


SPREAD = [
    ("Qwen/Qwen3-4B", "transformers", {"fsdp": 8}, {"dp": 8}),
    ("Qwen/Qwen3-4B", "megatron", {"tp": 4, "dp": 2}, {"dp": 8}),
    ("Qwen/Qwen3-4B", "megatron", {"dp": 8}, {"tp": 8}),
    ("Qwen/Qwen3-30B-A3B", "megatron", {"pp": 2, "ep": 8}, {"tp": 2, "dp": 8}),
]
"""Models, engines that train them, and splits of these and of vLLM, of as many devices apart."""


@pytest.mark.parametrize(("name", "trainer", "source", "target"), SPREAD)
def test_pieces_are_those_that_the_plan_has(
    name: str, trainer: str, source: dict[str, int], target: dict[str, int]
) -> None:
    """The seconds of all pieces at one sender and at one receiver are those of the plan's, within a factor of two."""
    model = ModelConfig("actor", shape(name), "causal_lm", "bfloat16")
    splits = make_mesh(**source), make_mesh(**target)
    count = splits[0].rank_count
    cluster = read_cluster(f"{count // 8}x8:h100-80gb").islands[0]
    held, needed = (
        {first + rank: spec_of(engine).layout(model.shape, split, rank, "causal_lm") for rank in range(count)}
        for engine, split, first in zip((trainer, "vllm"), splits, (0, count), strict=True)
    )
    places = {place: place for place in range(2 * count)}
    topology = Topology(
        places, {device: device // 8 for device in places}, node_bandwidth=315e9, network_bandwidth=35e9
    )
    plan = plan_resharding(held, needed, itemsize=2, topology=topology, bucket=BUCKET)
    parts = plan.split_by_place(places)
    ends = [
        TransferEndpoint(
            parts[place],
            cast(GlooLink, SimpleNamespace(place=place, direct=True, device=torch.device("cpu"))),
            source=held.get(place, ()),
            destination=needed.get(place, ()),
            dtype=torch.bfloat16,
        )
        for place in (0, count)
    ]
    rounds = [round_ for end in ends for round_ in end._rounds]
    pieces = sum(len(message.copies) for round_ in rounds for message in (*round_.sends, *round_.receives))
    messages = sum(len(round_.posts) + len(round_.receives) for round_ in rounds)
    sides = Deployment(trainer, cluster, splits[0]), Deployment("vllm", cluster, splits[1])
    size = 2 * count_numbers(model.shape, "causal_lm")
    counts = transfer_counts(
        model.shape, "causal_lm", *sides, size / sides[1].weight_shard_count, size / 8 / topology.network_bandwidth
    )
    assert sum(end.seconds(GPU) for end in counts) == pytest.approx(6e-6 * pieces + 9.4e-6 * messages, rel=1.0)
    assert sum(end.seconds(GPU) for end in counts) > (6e-6 * pieces + 9.4e-6 * messages) / 2


def test_each_piece_takes_its_time() -> None:
    """Of Qwen2.5 7B twelve tensors in each of 28 layers, the embedding, the last norm and the head: at both ends as many
    pieces, of which nothing has to be cut."""
    model = ModelConfig("actor", shape(NAMES[0]), "causal_lm", "bfloat16")
    sides = deployment("megatron", (1, 1, 4)), deployment("vllm", (1, 1, 4))
    fewer, more = (weight_sync_cost(model, *sides, True, replace(GPU, piece=seconds)) for seconds in (0.0, 1e-3))
    assert more.overhead - fewer.overhead == pytest.approx(2 * 1e-3 * (28 * 12 + 3))
