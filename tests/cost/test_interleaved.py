"""Stages with several parts of a model: seconds and memory are those of the lists that ranks follow."""

from __future__ import annotations

import pytest

from rlgraph.clusters.read import read_cluster
from rlgraph.cost.constants import defaults
from rlgraph.cost.deployment import Deployment, ModelConfig
from rlgraph.cost.lengths import Lengths
from rlgraph.cost.predict import TaskModel
from rlgraph.cost.time import Batch, Cost, LatencyModel
from rlgraph.ir.mesh import mesh
from rlgraph.models.known import known
from rlgraph.models.shape import shape_of
from rlgraph.pipelines.problem import Model, Problem
from rlgraph.pipelines.published import alone, in_flight
from rlgraph.pipelines.timetable import timetable


@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize(("stages", "batches"), [(2, 2), (2, 5), (4, 4), (4, 6), (4, 16)])
def test_a_training_takes_as_long_as_its_lists(stages: int, batches: int, chunks: int) -> None:
    model = Model("a", stages, batches, 4.0, 8.0, memory=1.0, chunks=chunks)
    table = timetable(Problem((model,)), alone(model))
    passes = LatencyModel(Cost(compute=10.0), Cost(overhead=2.0), 0.0, 1.0, stages, chunks=chunks)
    assert passes.seconds(batches) == passes.cost(batches).seconds == pytest.approx(table.makespan)
    if chunks > 1:
        counted = [in_flight(stages, batches, chunks, stage) for stage in range(stages)]
        assert counted == pytest.approx(table.peaks)


def test_a_model_in_several_parts_waits_less_and_sends_more() -> None:
    island = read_cluster("2x8:a100-80gb").islands[0]
    config = known("meta-llama/Llama-3.1-8B")
    assert config
    model = ModelConfig("actor", shape_of(config), "causal_lm", "bfloat16")
    batch = [Batch(96.0, Lengths((400.0,)), Lengths((600.0,)), 4)]
    one, two, four = (
        TaskModel(
            "train", model, Deployment("megatron", island, mesh(pp=4, tp=2, chunks=chunks)), defaults("gpu"), batch
        ).cost(2)
        for chunks in (1, 2, 4)
    )
    assert one.bubble / 2 < two.bubble < one.bubble / 1.8 and two.bubble / 2 < four.bubble < two.bubble / 1.8
    assert one.communication < two.communication < four.communication
    assert one.compute == two.compute == four.compute and two.seconds < one.seconds
