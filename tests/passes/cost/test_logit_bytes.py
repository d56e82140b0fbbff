"""What is read and written for each logit between a head's products and its loss takes time in training and reading."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.latency import latency_model
from tests.passes.cost.test_peak import BATCH, CLUSTER, CONFIGS, GPU

ISLAND = CLUSTER.islands[0]


def row_memory_s(model: str, kind: str, deployment: Deployment, logit: float) -> float:
    name = deployment.engine
    rates = {**GPU.rates, (name, kind): replace(GPU.rates[name, kind], logit=logit)}  # type: ignore[index, dict-item]
    constants = replace(GPU, rates=rates)
    return latency_model(kind, CONFIGS[model], deployment, constants, BATCH).row.memory  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["train", "forward"])
@pytest.mark.parametrize("tp", [1, 4])
def test_bytes_of_logits_go_at_the_rate_of_copies_and_are_split_by_vocabulary(kind: str, tp: int) -> None:
    deployment = Deployment("megatron", ISLAND, make_mesh(tp=tp))
    more = row_memory_s("actor", kind, deployment, 100.0) - row_memory_s("actor", kind, deployment, 0.0)
    scored = 640.0  # Answers of 256 and of 1,024 tokens.
    rate = ISLAND.device.stream_bandwidth * GPU.rates["megatron", "train"].memory
    assert more == pytest.approx(100 * scored * CONFIGS["actor"].shape.vocab / tp / rate, rel=1e-6)


def test_a_head_with_one_number_has_no_logits() -> None:
    deployment = Deployment("megatron", ISLAND, make_mesh())
    assert row_memory_s("critic", "train", deployment, 100.0) == row_memory_s("critic", "train", deployment, 0.0)


def test_engines_tell_them_on_gpus_alone() -> None:
    for engine in ("transformers", "megatron"):
        assert GPU.rates[engine, "train"].logit > GPU.rates[engine, "forward"].logit > 0
