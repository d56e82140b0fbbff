"""What it costs that ranks share the tokens of rows out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.latency import latency_model
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.optimizer_step import optimizer_step_cost_model
from rlgraph.passes.cost.predict import memory_footprint
from rlgraph.passes.cost.weights import weight_sync_cost
from rlgraph.passes.cost.work import Tokens

ISLAND = read_cluster("2x8:a100-80gb").islands[0]
CONSTANTS = default_constants("gpu")
CONFIG = known_config("meta-llama/Llama-3.1-8B")
assert CONFIG
MODEL = ModelConfig("actor", shape_of(CONFIG), "causal_lm", "bfloat16")
ROWS = [Batch(64.0, Lengths((1000.0,)), Lengths((15000.0,)))]


def on(split: Mesh, **how: bool) -> Deployment:
    return Deployment("megatron", ISLAND, split, 16000, **how)


@pytest.mark.parametrize(("kind", "again", "gathers"), [("forward", False, 1), ("train", False, 2), ("train", True, 3)])
def test_work_is_divided_and_keys_and_values_travel(kind: str, again: bool, gathers: int) -> None:
    alone, shared = (
        latency_model(kind, MODEL, on(split, recompute=again), CONSTANTS, ROWS)
        for split in (make_mesh(), make_mesh(cp=4))
    )  # type: ignore[arg-type]
    assert shared.row.compute == pytest.approx(alone.row.compute / 4)
    assert shared.row.memory == pytest.approx(alone.row.memory / 4)
    shape, link = MODEL.shape, ISLAND.device.link * CONSTANTS.collective
    keys = 16000 * 2 * shape.kv_heads * shape.head_dim * 2
    assert alone.row.communication == 0
    waits = 1 - CONSTANTS.rates["megatron", kind].hides  # type: ignore[index]
    assert shared.row.communication == pytest.approx(waits * gathers * shape.layers * keys * 3 / 4 / link)


def test_over_nodes_each_one_has_one_ring_of_its_devices() -> None:
    near, far = (
        latency_model("train", MODEL, on(make_mesh(cp=size)), CONSTANTS, ROWS).row.communication for size in (8, 16)
    )
    network = min(ISLAND.device.link, 8 * ISLAND.network)
    assert far / near == pytest.approx((15 / 16) / (7 / 8) * ISLAND.device.link / network)


def test_an_update_is_that_of_as_many_copies() -> None:
    copies, shared = (
        optimizer_step_cost_model(MODEL, on(make_mesh()), CONSTANTS),
        optimizer_step_cost_model(MODEL, on(make_mesh(cp=4)), CONSTANTS),
    )
    for count in (1, 2, 4):
        assert shared.seconds(count) == pytest.approx(copies.seconds(4 * count))


def test_weights_that_copies_gather_are_hidden_where_the_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes of a weight travel beside the four of its gradient."""
    hides, group = CONSTANTS.rates["megatron", "train"].hides, on(make_mesh(dp=2))
    assert hides > 0
    later = optimizer_step_cost_model(MODEL, group, CONSTANTS).communication_seconds(2)
    waits = replace(group.engine_spec, gathers_later=frozenset())
    monkeypatch.setattr(Deployment, "engine_spec", waits)
    at_once = optimizer_step_cost_model(MODEL, on(make_mesh(dp=2)), CONSTANTS).communication_seconds(2)
    assert at_once / later == pytest.approx((4 * (1 - hides) + 2) / (6 * (1 - hides)), rel=1e-3)


def test_weights_are_there_as_often_as_there_are_ranks() -> None:
    target = Deployment("vllm", ISLAND, make_mesh(4, 1, 2))
    found = [
        weight_sync_cost(MODEL, on(split), target, True, CONSTANTS).seconds
        for split in (make_mesh(4, tp=2), make_mesh(2, tp=2, cp=2))
    ]
    assert found[0] == found[1]


def test_memory_of_long_rows() -> None:
    """Weights stay whole, the optimizer is shared out, and so are activations but for keys and values."""
    alone, shared = (memory_footprint("train", MODEL, on(split), ROWS) for split in (make_mesh(), make_mesh(cp=4)))
    before, after = dict(alone.resident.parts), dict(shared.resident.parts)
    assert after["weights"] == before["weights"] and after["gradients"] == before["gradients"]
    assert after["optimizer"] == pytest.approx(before["optimizer"] / 4)
    shape, tokens = MODEL.shape, 15999
    keys = shape.layers * tokens * 2 * shape.kv_heads * shape.head_dim * 2 * 3 / 4
    # What comes out of attention is there for each stretch, and put together.
    outputs = shape.layers * tokens * shape.heads * shape.head_dim * 2 / 4
    kept = dict(shared.active.parts)["activations"] - dict(alone.active.parts)["activations"] / 4
    assert kept == pytest.approx(keys + outputs, rel=0.01)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
def test_the_fullest_rank_has_its_part_of_all_tokens_and_most_of_what_is_scored(rows: int, ranks: int) -> None:
    """As the engine cuts rows, counted token by token."""
    length, scored = 48, 17
    most = [0] * ranks
    for row in range(rows):
        for place in range(length - scored, length):
            stretch = place * 2 * ranks // length
            most[(min(stretch, 2 * ranks - 1 - stretch) + row) % ranks] += 1
    found = Tokens(rows, rows * length, rows * length**2, rows * scored, length).part_of_fullest_rank(ranks)
    assert (found.tokens, found.scored) == (rows * length / ranks, pytest.approx(max(most)))
