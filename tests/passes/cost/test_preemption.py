"""What vLLM's scheduler does where its cache has no room for all rows: it begins as many as there is room for their
prompts, and preempts the last ones where others grow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.decoding import DecodeStepCost, GenerationCostModel, mixed_steps_saving, prefill_cost
from rlgraph.passes.cost.decoding_slots import busy_slots, decoding_slots, preempted_rows
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.sampling import predict_sampling

CONFIG = ModelConfig("actor", Shape("qwen2", 512, 64, 64, 1, 2, 1, 32), "causal_lm", "float32")
TOKEN = 2 * 32 * 4
ISLAND = read_cluster("1x1:cpu").islands[0]
CONSTANTS = default_constants("cpu")

COUNTED = [
    ((64, 64, 256), 565, 7_240),
    ((64, 32, 512), 1528, 18_594),
    ((64, 512, 64), 322, 1_057),
    ((256, 32, 256), 1550, 38_255),
    ((128, 128, 256), 1217, 20_096),
]
"""Rows, tokens of prompts and of answers; steps of vLLM 0.32 with a cache for 8,192 tokens, and tokens that it read
again (`python benchmarks/scheduling.py`)."""


def case(rows: int, prompt: int, answer: int, room: int = 8192) -> tuple[Deployment, Batch]:
    deployment = Deployment("vllm", ISLAND, make_mesh(), kv_bytes=TOKEN * room)
    return deployment, Batch(rows, Lengths((float(prompt),)), Lengths((float(answer),)))


@pytest.mark.parametrize(("lengths", "steps", "again"), COUNTED)
def test_steps_and_tokens_are_those_of_the_scheduler(lengths: tuple[int, int, int], steps: int, again: int) -> None:
    """Steps within an eighth; with as many rows as fit at their full length it would be up to half too many."""
    deployment, batch = case(*lengths)
    rows, _, answer = lengths
    slots, busy = decoding_slots(CONFIG, deployment, batch), busy_slots(CONFIG, deployment, batch)
    assert (rows - slots) * answer / busy + answer == pytest.approx(steps, rel=1 / 8)
    count, tokens = preempted_rows(deployment, batch, rows, slots)
    # A few rows more or less are much of what is little: of all prompt tokens.
    assert count * tokens == pytest.approx(again, rel=1 / 3, abs=rows * lengths[1] / 10)


def test_rows_that_all_fit_are_not_preempted() -> None:
    deployment, batch = case(16, 64, 256)
    slots = decoding_slots(CONFIG, deployment, batch)
    assert preempted_rows(deployment, batch, 16, slots) == (0.0, 0.0)
    model = GenerationCostModel(CONFIG, deployment, CONSTANTS, batch)
    plenty = GenerationCostModel(CONFIG, replace(deployment, kv_bytes=100 * deployment.kv_bytes), CONSTANTS, batch)
    assert model.cost(1) == plenty.cost(1)


def test_what_is_read_again_and_how_many_are_decoded_takes_time() -> None:
    """On average, and row by row: within a tenth of each other."""
    deployment, batch = case(256, 32, 256)
    model = GenerationCostModel(CONFIG, deployment, CONSTANTS, batch)
    step = DecodeStepCost(CONFIG, deployment, CONSTANTS, batch)
    assert model.busy > 1.5 * model.slots
    waiting = (256 - model.slots) * 256
    slower = step.cost(model.slots).seconds * waiting / model.slots
    faster = step.cost(model.busy).seconds * waiting / model.busy
    assert faster < slower
    rows = predict_sampling(CONFIG, deployment, CONSTANTS, [32.0] * 256, [256.0] * 256, 1)
    assert rows.cost.seconds == pytest.approx(model.cost(1).seconds, rel=0.1)


def test_steps_that_read_prompts_too_read_the_weights_once() -> None:
    """No more of them than decode while others wait, and none where all rows begin at once."""
    deployment, batch = case(64, 512, 64)
    step = DecodeStepCost(CONFIG, deployment, CONSTANTS, batch)
    prompts = prefill_cost(CONFIG, deployment, CONSTANTS, batch, 64)
    slots, busy = decoding_slots(CONFIG, deployment, batch), busy_slots(CONFIG, deployment, batch)
    shared = mixed_steps_saving(deployment, batch, 64, slots, busy, step, prompts)
    steps = (64 - slots) * 512 / (2048 - busy)
    assert shared.overhead == pytest.approx(steps * step.overhead)
    assert 0 < shared.memory <= steps * step.cost(busy).memory
    assert mixed_steps_saving(deployment, batch, slots, slots, busy, step, prompts).seconds == 0
