"""What is predicted of models whose products are in another dtype than their weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost import work
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.latency import latency_model
from rlgraph.passes.cost.lengths import Lengths
from tests.passes.cost.allocated import Work, transformers
from tests.passes.cost.test_adapters_memory import LORA
from tests.passes.cost.trained import Case


@dataclass(frozen=True)
class Narrowed(Work):
    lora: bool = False

    @property
    def spec(self) -> ModelSpec:
        return replace(super().spec, autocast="bfloat16", adapters=LORA if self.lora else None)

    def model(self) -> ModelConfig:
        found = super().model()
        shape = replace(found.shape, adapters=LORA if self.lora else None)
        return replace(found, autocast="bfloat16", shape=shape)


@pytest.mark.parametrize("operation", ["train", "logprobs"])
@pytest.mark.parametrize("lora", [False, True])
def test_copies_of_weights_stay_until_these_change(operation: str, lora: bool) -> None:
    """What a pass needs is an upper bound: as if all activations were as wide as the weights."""
    wanted = Narrowed(operation, Case("llama", rows=1, length=32), layers=4, lora=lora)
    stays, needs = transformers(wanted)
    found = wanted.predicted("transformers")
    assert found.resident.total == pytest.approx(stays, rel=0.02)
    assert needs * 0.95 < found.active.total < needs * 2


def test_layers_multiply_at_the_rate_of_their_products_and_the_head_at_its_own() -> None:
    deployment = Deployment("transformers", read_cluster("1x1:h100-80gb").islands[0], make_mesh())
    plain = ModelConfig("m", Case("llama").shape(), "causal_lm")
    batch = Batch(8.0, Lengths((100.0,)), Lengths((20.0,)))

    def compute_s(config: ModelConfig) -> float:
        return latency_model("train", config, deployment, default_constants("gpu"), [batch]).row.compute

    wide, narrow, whole = map(compute_s, (plain, replace(plain, autocast="bfloat16"), replace(plain, dtype="bfloat16")))
    rows = batch.micro_batches_per_row(2048, deployment.packs_rows, deployment.prefix_sharing)[1]
    layers, attention, head = work.training_flops(plain.shape, "causal_lm", rows)
    layers += attention / 2 / deployment.attention_rate
    share = layers / (layers + head)
    assert whole < narrow < wide
    assert narrow == pytest.approx(share * whole + (1 - share) * wide)
