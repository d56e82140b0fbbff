"""One function prices a piece of work: the search's seconds are those that explanations take apart."""

from __future__ import annotations

import pytest

from rlgraph.clusters.read import read_cluster
from rlgraph.cost.constants import defaults
from rlgraph.cost.deployment import Deployment, ModelConfig
from rlgraph.cost.lengths import Lengths
from rlgraph.cost.predict import TaskModel, order
from rlgraph.cost.tasks import Workload
from rlgraph.cost.time import Batch
from rlgraph.ir.mesh import mesh
from rlgraph.models.known import known
from rlgraph.models.shape import shape_of

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


def task(operation: str, engine: str, split: tuple[int, int]) -> TaskModel:
    config = known("meta-llama/Llama-3.1-8B")
    assert config
    model = ModelConfig("actor", shape_of(config), "causal_lm", "bfloat16")
    return TaskModel(operation, model, Deployment(engine, ISLAND, mesh(1, *split)), defaults("gpu"), BATCH)


@pytest.mark.parametrize(("operation", "engine", "split"), CASES)
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_seconds_are_those_of_the_cost(operation: str, engine: str, split: tuple[int, int], copies: int) -> None:
    found = task(operation, engine, split)
    assert found.seconds(copies) == pytest.approx(found.cost(copies).seconds, rel=1e-12)
    assert found.cost(copies).seconds > found.work(copies).seconds + order(copies, defaults("gpu")).seconds


@pytest.mark.parametrize(("operation", "engine", "split"), CASES)
def test_what_was_asked_before_changes_nothing(operation: str, engine: str, split: tuple[int, int]) -> None:
    asked = task(operation, engine, split)
    for copies in (3, 1, 2, 3):
        assert asked.seconds(copies) == task(operation, engine, split).seconds(copies)


def test_answers_of_no_tokens() -> None:
    assert Workload().answers(0) == Lengths((0.0,))
