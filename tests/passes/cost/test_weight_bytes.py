"""What is read and written for each weight as gradients are added up, and in the optimizer's step, takes time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest

from rlgraph.backends.enginespec.rates import WorkKind
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost import work
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.decoding import DecodeStepCost
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.latency import latency_model
from rlgraph.passes.cost.optimizer_step import optimizer_step_cost_model
from rlgraph.passes.cost.weights import rank_parameter_count
from tests.documents import ROOT
from tests.passes.cost.test_peak import BATCH, CLUSTER, CONFIGS, GPU
from tests.passes.cost.test_whole_experts import config as mixture

ISLAND = CLUSTER.islands[0]


def rates_with(engine: str, kind: WorkKind = "train", **differs: float) -> Constants:
    return replace(GPU, rates={**GPU.rates, (engine, kind): replace(GPU.rates[engine, kind], **differs)})


def rate(engine: str, kind: WorkKind = "train") -> float:
    return ISLAND.device.stream_bandwidth * GPU.rates[engine, kind].memory


@pytest.mark.parametrize("model", ["actor", "mixture"])
def test_gradients_are_added_in_each_micro_batch_but_those_of_experts_which_are_counted_with_their_weights(
    model: str,
) -> None:
    config = mixture() if model == "mixture" else CONFIGS["actor"]
    deployment = Deployment("megatron", ISLAND, make_mesh(tp=2))
    none, ten = (
        latency_model("train", config, deployment, rates_with("megatron", gradient=each), BATCH).block.memory
        for each in (0.0, 10.0)
    )
    dense = rank_parameter_count(config, deployment) - work.expert_parameter_count(config.shape) / 2
    assert ten - none == pytest.approx(10 * dense / rate("megatron"))


@pytest.mark.parametrize(("engine", "shared"), [("transformers", 1), ("megatron", 4)])
def test_replicas_that_shard_the_optimizer_share_the_bytes_of_its_step(engine: str, shared: int) -> None:
    config, deployment = CONFIGS["actor"], Deployment(engine, ISLAND, make_mesh())
    none, sixty = (
        optimizer_step_cost_model(config, deployment, rates_with(engine, stepped=each)).memory_seconds(4)
        for each in (0.0, 60.0)
    )
    weights = rank_parameter_count(config, deployment)
    assert sixty - none == pytest.approx(60 * weights / shared / rate(engine))


@pytest.mark.long
@pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed")
def test_engines_move_as_many_bytes_as_they_tell() -> None:
    """As operators get and give them."""
    told = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "step_bytes.py"], capture_output=True, text=True, check=True
    ).stdout
    for engine in ("transformers", "megatron"):
        rates = GPU.rates[engine, "train"]
        assert f"| {engine} | {rates.gradient:.1f} | {rates.stepped:.1f} |" in told
    assert f"samples: {GPU.rates['transformers', 'generate'].logit:.1f} bytes" in told


def test_a_token_is_sampled_from_logits_that_are_read() -> None:
    """Each row's in each decoding step, of the whole vocabulary on each rank."""
    config, deployment = CONFIGS["actor"], Deployment("transformers", ISLAND, make_mesh())
    none, ten = (
        DecodeStepCost(config, deployment, rates_with("transformers", "generate", logit=each), BATCH[0]).cost(8).memory
        for each in (0.0, 10.0)
    )
    reached = ISLAND.device.weight_bandwidth * GPU.rates["transformers", "generate"].memory
    assert ten - none == pytest.approx(8 * 10 * config.shape.vocab / reached)
