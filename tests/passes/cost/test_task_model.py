"""One function prices a piece of work: the search's seconds are those that explanations take apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.packing import pack_separately, pack_sharing_prefixes
from rlgraph.backends.engines.transformers.spec import SHARES
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.predict import TaskCostModel, request_cost
from rlgraph.passes.cost.workload import Workload

ISLAND = read_cluster("2x8:a100-80gb").islands[0]
BATCH = [Batch(96.0, Lengths((100.0, 300.0)), Lengths((20.0, 700.0)), 4)]
CASES = [
    (operation, engine, split)
    for operation, engine in (
        ("train", "megatron"),
        ("logprobs", "megatron"),
        ("generate", "vllm"),
        ("generate", "transformers"),
    )
    for split in ((1, 1), (1, 4), (2, 2))
    if engine == "megatron" or split == (1, 1) or (engine, split) == ("vllm", (1, 4))
]


def task(operation: str, engine: str, split: tuple[int, int]) -> TaskCostModel:
    config = known_config("meta-llama/Llama-3.1-8B")
    assert config
    model = ModelConfig("actor", shape_of(config), "causal_lm", "bfloat16")
    return TaskCostModel(
        operation, model, Deployment(engine, ISLAND, make_mesh(1, *split)), default_constants("gpu"), BATCH
    )


@pytest.mark.parametrize(("operation", "engine", "split"), CASES)
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_seconds_are_those_of_the_cost(operation: str, engine: str, split: tuple[int, int], copies: int) -> None:
    found = task(operation, engine, split)
    assert found.seconds(copies) == pytest.approx(found.request_to_answer_cost(copies).seconds, rel=1e-12)
    assert (
        found.request_to_answer_cost(copies).seconds
        > found.work_cost(copies).seconds + request_cost(copies, default_constants("gpu")).seconds
    )


@pytest.mark.parametrize(("operation", "engine", "split"), CASES)
def test_what_was_asked_before_changes_nothing(operation: str, engine: str, split: tuple[int, int]) -> None:
    asked = task(operation, engine, split)
    for copies in (3, 1, 2, 3):
        assert asked.seconds(copies) == task(operation, engine, split).seconds(copies)


def test_parameters_that_are_gathered_for_an_update_come_once() -> None:
    """Eight ranks with an eighth of 8 billion numbers each: two bytes of the other seven come, and four go for the
    gradients of each micro-batch."""
    config = known_config("meta-llama/Llama-3.1-8B")
    assert config
    model, constants = ModelConfig("actor", shape_of(config), "causal_lm", "bfloat16"), default_constants("gpu")
    rates = replace(constants.rates["transformers", "train"], hides=0.0)
    constants = replace(constants, rates={**constants.rates, ("transformers", "train"): rates})
    layer, update = (
        TaskCostModel(
            "train", model, Deployment("transformers", ISLAND, make_mesh(fsdp=8), gather=way), constants, BATCH
        )
        for way in ("layer", "update")
    )
    assert layer.passes and update.passes and layer.passes.gathered == 0
    once = update.passes.gathered
    link = ISLAND.device.link * constants.collective
    assert once == pytest.approx(2 * 8.03e9 * 7 / 8 / link, rel=0.05)
    assert layer.passes.block.communication == pytest.approx(4 * once, rel=0.01)
    assert update.passes.block.communication == pytest.approx(2 * once, rel=0.01)
    rows, turns = (
        layer.rows_of_fullest_replica(1),
        layer.passes.micro_batch_count(layer.passes.rows_of_fullest_rank(layer.rows_of_fullest_replica(1))),
    )
    assert turns > 1
    assert layer.passes.seconds(rows) - update.passes.seconds(rows) == pytest.approx((2 * turns - 1) * once, rel=0.01)
    assert update.seconds(1) == pytest.approx(update.request_to_answer_cost(1).seconds, rel=1e-12)


def test_answers_of_no_tokens() -> None:
    assert Workload().answer_lengths(0) == Lengths((0.0,))


@pytest.mark.parametrize(
    ("prompts", "responses"),
    [([40, 40], [10, 10, 10, 10]), ([24, 56], [8, 12, 4, 16]), ([4, 4], [40, 20, 20, 40])],
    ids=["alike", "unlike", "not worth it"],
)
def test_prompts_that_are_read_once(prompts: list[int], responses: list[int]) -> None:
    """Tokens, and pairs of them in attention, as the engine lays such rows out."""
    begun = [[10 + number] * prompt for number, prompt in enumerate(prompts)]
    rows = Sequences.from_lists([each + [at] * length for each in begun for at, length in enumerate(responses)])
    packing = pack_sharing_prefixes(rows, torch.tensor(prompts).repeat_interleave(len(responses))) or pack_separately(
        rows
    )
    pairs = 0
    for span in packing.spans:
        # A token sees half of those that lie between its span's beginning and end.
        behind = sum(count * (length**2 + 2 * length * span.prefix_tokens) for count, length in span.suffixes)
        pairs += span.family_count * (span.prefix_tokens**2 + behind)
    each = len(responses)
    batch = Batch(len(rows), Lengths.from_lengths(prompts), Lengths.from_lengths(responses), each, together=each)
    read = batch.tokens_read_per_row(SHARES)
    assert batch.rows * read.tokens == pytest.approx(len(packing.token_at_place))
    assert batch.rows * read.squares == pytest.approx(pairs)
    assert (read.scored, read.longest) == (batch.mean_row_tokens.scored, batch.mean_row_tokens.longest)


def test_rows_share_prompts_where_the_engine_has_them_do_so() -> None:
    """On CPUs, and where samples of a prompt are read beside each other."""
    config = known_config("Qwen/Qwen2.5-0.5B")
    assert config
    model = ModelConfig("actor", shape_of(config), "causal_lm", "float32")
    rows = {each: [Batch(64.0, Lengths((900.0,)), Lengths((100.0,)), 4, together=each)] for each in (1.0, 4.0)}

    def seconds(cluster: str, engine: str, together: float) -> float:
        island = read_cluster(cluster).islands[0]
        deployment = Deployment(engine, island, make_mesh())
        return TaskCostModel("train", model, deployment, default_constants(island.device.kind), rows[together]).seconds(
            1
        )

    assert seconds("1x1:cpu", "transformers", 4) < 0.5 * seconds("1x1:cpu", "transformers", 1)
    for cluster, engine in (("1x1:cpu", "megatron"), ("1x1:h100-80gb", "transformers")):
        assert seconds(cluster, engine, 4) == seconds(cluster, engine, 1)
