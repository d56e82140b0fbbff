"""Stages with several parts of a model: seconds and memory are those of the lists that ranks follow."""

from __future__ import annotations

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.latency import LatencyModel
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.memory import MemoryModel
from rlgraph.passes.cost.predict import TaskCostModel, memory_model
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.published_schedules import micro_batches_in_flight, published_lists
from rlgraph.passes.pipelines.timetable import Lists, compute_timetable

BUDGET = 1001
"""Tokens of a micro-batch: the longest row."""


def _alone(stages: int, batches: int, chunks: int) -> tuple[PipelineProblem, Lists]:
    model = PipelineModel("a", stages, batches, 4.0, 8.0, memory=1.0, chunks=chunks)
    return PipelineProblem((model,)), published_lists(model)


def _deployment(stages: int, chunks: int) -> Deployment:
    island = read_cluster("2x8:a100-80gb").islands[0]
    return Deployment("megatron", island, make_mesh(pp=stages, chunks=chunks), micro_tokens=BUDGET)


def _training(stages: int, chunks: int, batch: Batch) -> MemoryModel:
    config = known_config("meta-llama/Llama-3.1-8B")
    assert config
    model = ModelConfig("actor", shape_of(config), "causal_lm", "bfloat16")
    return memory_model("train", model, _deployment(stages, chunks), [batch])


@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize(("stages", "batches"), [(2, 1), (2, 2), (2, 5), (4, 1), (4, 3), (4, 4), (4, 6), (4, 16)])
def test_a_training_takes_as_long_as_its_lists(stages: int, batches: int, chunks: int) -> None:
    table = compute_timetable(*_alone(stages, batches, chunks))
    passes = LatencyModel(Cost(compute=10.0), Cost(overhead=2.0), 0.0, 1.0, stages, chunks=chunks)
    assert passes.seconds(batches) == passes.cost(batches).seconds == pytest.approx(table.makespan)
    if chunks > 1:
        counted = [micro_batches_in_flight(stages, batches, chunks, stage) for stage in range(stages)]
        assert counted == pytest.approx(table.peaks)


@pytest.mark.parametrize("chunks", [2, 4])
@pytest.mark.parametrize(("stages", "rows"), [(2, 1), (2, 3), (4, 2), (4, 7), (4, 8), (4, 32)])
def test_memory_has_what_the_lists_have_in_flight(stages: int, rows: int, chunks: int) -> None:
    training = _training(stages, chunks, Batch(rows, Lengths((400.0,)), Lengths((600.0,))))
    table = compute_timetable(*_alone(stages, rows, chunks))
    _, first, _, last = training.replica_load(1)
    assert (first, last) == pytest.approx((table.peaks[0], table.peaks[-1]))


@pytest.mark.parametrize("chunks", [2, 4])
@pytest.mark.parametrize("stages", [2, 4])
def test_memory_is_enough_however_many_micro_batches_uneven_rows_make(stages: int, chunks: int) -> None:
    """The longest rows make most. Fewer may be in groups that are larger."""
    rows, mean = 8 * stages, 600.0
    training = _training(stages, chunks, Batch(rows, Lengths((400.0,)), Lengths((100.0, 100.0, 400.0))))
    fewest, most = int(rows * mean / BUDGET), rows
    _, first, _, last = training.replica_load(1)
    for count in range(fewest, most + 1):
        peaks = compute_timetable(*_alone(stages, count, chunks)).peaks
        assert first >= peaks[0] - 1e-9 and last >= peaks[-1] - 1e-9


def test_copies_with_a_row_less_may_have_more_in_flight() -> None:
    """Of 15 rows the first copy has 8, in two groups of four, the other one 7 in one group."""
    training = _training(4, 2, Batch(15, Lengths((400.0,)), Lengths((600.0,))))
    _, first, _, last = training.replica_load(2)
    peaks = compute_timetable(*_alone(4, 7, 2)).peaks
    assert (first, last) == pytest.approx((peaks[0], peaks[-1]))


def test_parts_of_a_stage_need_no_communicator() -> None:
    one, two = (_deployment(4, chunks).process_bytes(default_constants("gpu")) for chunks in (1, 2))
    assert one == two


def test_a_model_in_several_parts_waits_less_and_sends_more() -> None:
    island = read_cluster("2x8:a100-80gb").islands[0]
    config = known_config("meta-llama/Llama-3.1-8B")
    assert config
    model = ModelConfig("actor", shape_of(config), "causal_lm", "bfloat16")
    batch = [Batch(96.0, Lengths((400.0,)), Lengths((600.0,)), 4)]
    one, two, four = (
        TaskCostModel(
            "train",
            model,
            Deployment("megatron", island, make_mesh(pp=4, tp=2, chunks=chunks)),
            default_constants("gpu"),
            batch,
        ).request_to_answer_cost(2)
        for chunks in (1, 2, 4)
    )
    assert one.bubble / 2 < two.bubble < one.bubble / 1.8 and two.bubble / 2 < four.bubble < two.bubble / 1.8
    assert one.communication < two.communication < four.communication
    assert one.compute == two.compute == four.compute and two.seconds < one.seconds


@pytest.mark.parametrize("work", ["train", "logprobs"])
@pytest.mark.parametrize("copies", [1, 2, 24])
def test_seconds_in_other_parts_are_those_of_a_mesh_with_them(work: str, copies: int) -> None:
    config = known_config("meta-llama/Llama-3.1-8B")
    assert config
    model = ModelConfig("actor", shape_of(config), "causal_lm", "bfloat16")
    batch = [Batch(96.0, Lengths((400.0,)), Lengths((100.0, 600.0)), 4)]
    one, two, eight = (
        TaskCostModel(work, model, _deployment(4, chunks), default_constants("gpu"), batch) for chunks in (1, 2, 8)
    )
    assert one.seconds_with_chunks(copies, 2) == pytest.approx(two.seconds(copies), rel=1e-12)
    assert one.seconds_with_chunks(copies, 8) == pytest.approx(eight.seconds(copies), rel=1e-12)
    assert eight.seconds_with_chunks(copies, 1) == pytest.approx(one.seconds(copies), rel=1e-12)
