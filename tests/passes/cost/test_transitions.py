"""What a model takes to leave its devices to others and to come back is one figure, wherever it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rlgraph
from rlgraph.backends.enginespec.offload_overheads import OffloadOverheads
from rlgraph.explain.critical_path import TRANSITIONS, critical_path, seconds_by_kind
from rlgraph.explain.simulate import simulate
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.predict import Predictor
from rlgraph.passes.cost.transitions import offload_round_trip_cost
from tests.passes.cost.test_peak import BATCH, CLUSTER, CONFIGS, GPU, plan

SHARED = """schedule grpo

pool all = 8 devices

place actor.train, ref on all(engine=megatron, tp=4, dp=2, sleep=true)
place actor.generate on all(engine=vllm, dp=8, sleep=true)
"""


@pytest.mark.parametrize(
    ("operation", "synced", "ways"), [("train", False, 2), ("logprobs", False, 1), ("generate", True, 0)]
)
def test_bytes_go_as_often_as_they_change(operation: str, synced: bool, ways: int) -> None:
    deployment = Predictor(plan(), CONFIGS, CLUSTER, GPU).deployment("actor", plan().group("learn"))
    cost = offload_round_trip_cost(operation, 1e9, deployment, synced, GPU)
    assert cost.memory == pytest.approx(ways * 1e9 / (0.78 * deployment.island.device.host))
    assert cost.overhead == 0


def test_an_engine_sleeps_and_wakes_though_its_weights_are_brought() -> None:
    offloaded = plan(("actor", "play"))
    assert offloaded.gets_synced("actor", "play")
    asleep = Predictor(offloaded, CONFIGS, CLUSTER, GPU).offload_round_trip_cost("actor", "play", "generate", BATCH)
    assert asleep.seconds == pytest.approx(0.2 + 1.3)
    slow = replace(GPU, offload_overheads={"vllm": OffloadOverheads(1.0, 2.0)})
    slower = Predictor(offloaded, CONFIGS, CLUSTER, slow).offload_round_trip_cost("actor", "play", "generate", BATCH)
    assert slower.seconds == pytest.approx(3.0)
    awake = Predictor(plan(), CONFIGS, CLUSTER, GPU)
    assert awake.offload_round_trip_cost("actor", "play", "generate", BATCH).seconds == 0


def test_nothing_is_told_of_a_cpu() -> None:
    constants = default_constants("cpu")
    assert (constants.host_link, dict(constants.offload_overheads)) == (1.0, {})


def test_search_simulator_and_explanation_tell_the_same() -> None:
    made = rlgraph.compile("grpo", schedule=SHARED, cluster="1x8:h100-80gb")
    problem, found = made.choice.problem, made.choice.search_result
    told = seconds_by_kind(critical_path(problem, found))[TRANSITIONS]
    assert told > 1.5, "of vLLM alone"
    simulated = simulate(made)
    assert simulated.transition_seconds == pytest.approx(told, rel=1e-6)
    assert simulated.to_json()["transitions"] == {"seconds": simulated.transition_seconds}
    assert "models that take turns on their devices leave them and come back for" in str(simulated)
