"""Stages with unlike numbers of layers: a micro-batch takes as long as on the slowest one, and the fullest one has to
fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.catalog.models.families import ModelKind
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.latency import latency_model
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.predict import memory_footprint

BATCH = [Batch(64.0, Lengths((4000.0,)), Lengths((6000.0,)))]


def _model(layers: int, stages: int, kind: ModelKind) -> tuple[ModelConfig, Deployment]:
    config = known_config("meta-llama/Llama-3.1-8B")
    assert config
    model = ModelConfig("actor", replace(shape_of(config), layers=layers), kind, "bfloat16")
    mesh = make_mesh(pp=stages)
    return model, Deployment("megatron", read_cluster("2x8:a100-80gb").islands[0], mesh, micro_tokens=10001)


@pytest.mark.parametrize("work", ["train", "forward"])
@pytest.mark.parametrize(("kind", "layers"), [("causal_lm", 6), ("value_lm", 8)])
def test_the_slowest_stage_has_the_head_or_one_layer_more(work: str, kind: ModelKind, layers: int) -> None:
    """Of seven layers the first stage has four, and the last one three with the head, which is more than a layer."""
    uneven, even = (
        latency_model(work, *_model(count, 2, kind), default_constants("gpu"), BATCH)  # type: ignore[arg-type]
        for count in (7, layers)
    )
    assert uneven.row.compute == pytest.approx(even.row.compute, rel=1e-4)
    assert uneven.row.communication == even.row.communication


def test_a_later_stage_with_more_layers_may_keep_most() -> None:
    """Stages of 1, 2, 2 and 1 layers have 4, 3, 2 and 1 micro-batches in flight: the second one keeps 6 of a layer."""
    four, six, eight = (
        memory_footprint("train", *_model(layers, 4, "value_lm"), BATCH).active.total for layers in (4, 6, 8)
    )
    assert six == pytest.approx((four + eight) / 2)
