"""What vLLM is asked for: what the plan has decided. No engine is started."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import rlgraph
from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.vllm import engine, start
from rlgraph.backends.enginespec.memory import ReservedCache
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import ModelHolding
from rlgraph.passes.cost.decoding_slots import cache_bytes_per_token
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.work import model_parallel_parameter_count, rank_kv_bytes_per_token
from rlgraph.passes.cost.workload import Workload

GEN = """
algorithm gen
model actor  = causal_lm("meta-llama/Llama-3.1-8B-Instruct", dtype="bfloat16")
data prompts = jsonl("prompts.jsonl", batch=32)
step:
    rollout  = actor.generate(prompts, n=2, max_tokens=256)
    report length = mean(rollout.length)
"""
SCHEDULE = """
schedule gen
pool play = 1 devices
place actor.generate on play(engine=vllm, tp=1)
"""
SHAPE = shape_of(known_config("meta-llama/Llama-3.1-8B-Instruct"))
MEMORY = 24 << 30


def test_vllm_is_asked_for_what_the_plan_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache, rows that this has room for, and no more of the device than weights and cache."""
    monkeypatch.setattr(start, "has_no_gpu", lambda: False)
    compiled = rlgraph.compile(GEN, schedule=SCHEDULE, cluster="1x1:l4-24gb", workload=Workload(Lengths((512.0,))))
    [holding] = compiled.plan.holdings
    spec = ModelSpec("causal_lm", "", "bfloat16")
    asked = start.vllm_arguments(spec, SHAPE, make_mesh(tp=1), start.limits_in_plan(holding), MEMORY)
    token = rank_kv_bytes_per_token(SHAPE, 1, 2)
    assert asked["kv_cache_memory_bytes"] == holding.kv_bytes > 0
    assert 512 + 256 <= asked["max_model_len"] <= holding.kv_bytes / token < SHAPE.positions
    weights = 2 * model_parallel_parameter_count(SHAPE, "causal_lm", 1, 1)
    assert asked["gpu_memory_utilization"] * MEMORY == pytest.approx(weights + holding.kv_bytes)


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 1000])
def test_the_smallest_cache_of_a_plan_has_room_for_its_longest_row(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for on_cpu in (False, True):
        monkeypatch.setattr(start, "has_no_gpu", lambda on_cpu=on_cpu: on_cpu)
        token = int(rank_kv_bytes_per_token(SHAPE, 1, 4 if on_cpu else 2))
        holding = ModelHolding("actor", "play", kv_bytes=token * ReservedCache().room_tokens(tokens, on_cpu))
        spec = ModelSpec("causal_lm", "", "bfloat16")
        asked = start.vllm_arguments(spec, SHAPE, make_mesh(tp=1), start.limits_in_plan(holding), MEMORY)
        assert asked["kv_cache_memory_bytes"] == holding.kv_bytes
        assert asked["max_model_len"] >= tokens


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 1000])
def test_a_plan_that_gives_too_small_a_cache_is_told_the_least_that_would_do(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModelSpec("causal_lm", "", "bfloat16")
    for on_cpu in (False, True):
        monkeypatch.setattr(start, "has_no_gpu", lambda on_cpu=on_cpu: on_cpu)
        for tp in (1, 2):
            least = start.min_cache_bytes(spec, SHAPE, make_mesh(tp=tp), tokens)
            limits = start.limits_in_plan(ModelHolding("actor", "play", kv_bytes=least))
            asked = start.vllm_arguments(spec, SHAPE, make_mesh(tp=tp), limits, MEMORY)
            assert (asked["kv_cache_memory_bytes"], asked["max_model_len"] >= tokens) == (least, True)
            limits = start.limits_in_plan(ModelHolding("actor", "play", kv_bytes=least - 1))
            less = start.vllm_arguments(spec, SHAPE, make_mesh(tp=tp), limits, MEMORY)["max_model_len"]
            assert less < tokens or asked["max_model_len"] == ReservedCache().longest_row_tokens(0, on_cpu)


def test_what_a_plan_has_to_say_for_longer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, where it says no cache, or where positions end before."""
    monkeypatch.setattr(start, "has_no_gpu", lambda: True)
    opened = engine.VllmEngine.__new__(engine.VllmEngine)
    opened.spec, opened._shape, opened._mesh = ModelSpec("causal_lm", "", "bfloat16"), SHAPE, make_mesh(tp=2)
    opened.holding = ModelHolding("actor", "play", kv_bytes=1, offload=True)
    least = start.min_cache_bytes(opened.spec, SHAPE, make_mesh(tp=2), 1000)
    assert opened.holding_for_longer_rows(1000) == ModelHolding("actor", "play", kv_bytes=least, offload=True)
    assert (
        opened.holding_for_longer_rows(SHAPE.positions) is not None
        and opened.holding_for_longer_rows(SHAPE.positions + 1) is None
    )
    opened.holding = ModelHolding("actor", "play")
    assert opened.holding_for_longer_rows(1000) is None


def test_nobody_says_how_large_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "has_no_gpu", lambda: False)
    asked = start.vllm_arguments(
        ModelSpec("causal_lm", "", "bfloat16"), SHAPE, make_mesh(tp=1), start.EngineLimits(), MEMORY
    )
    assert (asked["kv_cache_memory_bytes"], asked["max_model_len"]) == (None, SHAPE.positions)
    assert asked["gpu_memory_utilization"] == 0.9


def test_a_token_takes_on_a_cpu_what_the_engine_keeps_there() -> None:
    """Which computes in float32, whatever the model is in."""
    config = ModelConfig("actor", SHAPE, "causal_lm", dtype="bfloat16")
    for text, item in (("1x1:cpu", 4), ("1x1:l4-24gb", 2)):
        island = read_cluster(text).islands[0]
        assert cache_bytes_per_token(config, Deployment("vllm", island)) == rank_kv_bytes_per_token(SHAPE, 1, item)
        assert cache_bytes_per_token(
            replace(config, dtype="float32"), Deployment("vllm", island)
        ) == rank_kv_bytes_per_token(SHAPE, 1, 4)


def test_adapters_where_the_plan_says_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that is exact in the dtype that the weights have there."""
    lora = Adapters(8, 16.0)
    spec = ModelSpec("causal_lm", "", "bfloat16", adapters=lora)
    source: Any = SimpleNamespace(shape=replace(SHAPE, adapters=lora))
    for on_cpu in (False, True):
        monkeypatch.setattr(engine, "has_no_gpu", lambda on_cpu=on_cpu: on_cpu)
        assert engine._adapting(spec, source, "") == "merged"
        # Who asks for the other way gets it.
        assert engine._adapting(spec, source, "apart") == "apart"
    assert engine._adapting(replace(spec, adapters=None), source, "") == ""
    monkeypatch.setattr(engine, "has_no_gpu", lambda: False)
    source = SimpleNamespace(shape=replace(SHAPE, adapters=Adapters(1024, 16.0)))
    with pytest.raises(EngineError, match="vllm holds adapters apart only up to rank 512"):
        engine._adapting(spec, source, "apart")
