"""What is predicted of models with adapters: bytes beside those of a real engine, products beside torch's count."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlgraph.backends.engines.base import TrainOptions
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost import work
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.latency import latency_model
from rlgraph.passes.cost.lengths import Lengths
from tests.passes.cost.allocated import Work, transformers
from tests.passes.cost.test_work import counter
from tests.passes.cost.trained import Case
from tests.suites import few

LORA = Adapters(8, 16.0)


class Tuned(Work):
    def __str__(self) -> str:
        return f"{super().__str__()} adapters"

    @property
    def spec(self) -> ModelSpec:
        return replace(self.case.spec(self.layers), adapters=LORA)

    def model(self) -> ModelConfig:
        found = super().model()
        return replace(found, shape=replace(found.shape, adapters=LORA))


SHORT, NARROW, AGAIN, VALUED = (
    Tuned("train", Case("llama", rows=1, length=32), layers=4),
    Tuned("train", Case("qwen2", dtype="bfloat16"), micros=3),
    Tuned("train", Case("llama"), layers=4, micros=2, recompute=True),
    Tuned("train", Case("llama", kind="value_lm"), micros=2),
)
CASES = [
    SHORT,
    Tuned("train", Case("qwen2"), micros=3),
    NARROW,
    Tuned("train", Case("llama", dtype="bfloat16", rows=1, length=32), layers=4, micros=3),
    AGAIN,
    VALUED,
]


@pytest.mark.parametrize("wanted", few(CASES, SHORT, NARROW, AGAIN, VALUED), ids=str)
def test_bytes_are_those_of_the_engine(wanted: Work) -> None:
    stay, active = transformers(wanted)
    predicted = wanted.predicted("transformers")
    assert predicted.resident.total == pytest.approx(stay, rel=1e-3)
    assert predicted.resident.total + predicted.active.total == pytest.approx(stay + active, rel=0.04)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_products_are_those_that_torch_counts(family: str) -> None:
    # The counter does not see oneDNN's products, which are of float32.
    case = Case(family, scored=16, dtype="float64")
    shape = replace(case.shape(), layers=3, adapters=LORA)
    engine = TransformersEngine.open(replace(case.spec(3), adapters=LORA))
    micro = case.micro()
    with counter() as counted:
        engine.train_step([0], lambda block: micro, TrainOptions(lr=1e-3), 0)
    tokens = case.tokens()
    layers, attention, head = work.training_flops(shape, "causal_lm", tokens)
    # What reaches no adapter is not computed.
    assert layers + head + attention == pytest.approx(counted.get_total_flops(), rel=0.03)


def test_what_is_between_the_matrices_travels_where_ranks_split_tokens() -> None:
    """As many messages again as without adapters, which take time by their number; their bytes are few."""
    plain, batch = ModelConfig("m", Case("llama").shape(), "causal_lm"), Batch(8.0, Lengths((100.0,)), Lengths((20.0,)))
    tuned = replace(plain, shape=replace(plain.shape, adapters=LORA))
    island = read_cluster("1x2:h100-80gb").islands[0]

    def messages_s(config: ModelConfig, engine: str) -> float:
        deployment = Deployment(engine, island, make_mesh(tp=2))
        return latency_model("forward", config, deployment, default_constants("gpu"), [batch]).block.communication

    assert messages_s(tuned, "megatron") == pytest.approx(2 * messages_s(plain, "megatron"))
    assert messages_s(tuned, "transformers") == messages_s(plain, "transformers")


def test_narrow_models_train_wide_adapters() -> None:
    case = Case("llama", dtype="bfloat16")
    config = ModelConfig("m", replace(case.shape(), adapters=LORA), "causal_lm", "bfloat16")
    engine = TransformersEngine.open(replace(case.spec(config.shape.layers), adapters=LORA))
    assert config.adapter_bytes == sum(each.numel() * each.itemsize for each in engine.tensors().values())
    assert work.trained_tensor_count(config.shape, "causal_lm") == len(engine.tensors())
    assert torch.float32.itemsize == config.trained_item_bytes
