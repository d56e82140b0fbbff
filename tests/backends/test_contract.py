"""What a plan says that its engines are opened with is what they ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.api.summary import summary_text
from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.backends.ray.cluster import process_env_vars
from rlgraph.backends.ray.processes import InlineProcesses
from rlgraph.catalog.models.shape import Shape
from rlgraph.dsl import placing
from rlgraph.errors import ProgramError
from rlgraph.ir.plan import Plan
from rlgraph.passes.cost.work import model_parallel_parameter_count
from rlgraph.passes.placement.model_load_order import model_load_rounds
from tests.shared_pool import PROGRAM, compiled, place_as_on_gpus

CLUSTER = "1x8:h100-80gb"


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with GPUs, to the compiler."""
    place_as_on_gpus(monkeypatch)


def sleepers(plan: Plan) -> set[tuple[str, str]]:
    return {(holding.model, holding.group) for holding in plan.holdings if holding.offload}


@pytest.mark.usefixtures("on_gpus")
def test_models_of_one_pool_sleep_in_turns_where_no_cluster_is_named() -> None:
    """The commonest layout on a node: vLLM takes most of a device, and would not start beside the trainer."""
    made = compiled()
    assert sleepers(made.plan) == {(model, group.name) for group in made.plan.groups for model in group.models}
    sampler, trainer = made.plan.group_of_role("actor", "generate").name, made.plan.group_of_role("actor", "train").name
    assert made.plan.holding("actor", sampler).share == 0.85 and not made.plan.holding("actor", trainer).share
    [warning] = [found for found in made.diagnostics if found.code == "W0887"]
    assert "sleep in turns on `all`" in warning.message and warning.span.line == 3
    # The sampler is opened first, on devices that nobody has yet.
    assert model_load_rounds(made.plan) == [["host", sampler], [trainer]]


@pytest.mark.usefixtures("on_gpus")
def test_what_a_schedule_says_of_sleeping_is_kept() -> None:
    said = compiled(", sleep=true", ", sleep=true, cache=8e9, max_len=4096")
    assert not [found for found in said.diagnostics if found.code == "W0887"]
    holding = said.plan.holding("actor", said.plan.group_of_role("actor", "generate").name)
    assert (holding.offload, holding.kv_bytes, holding.max_len, holding.share) == (True, 8_000_000_000, 4096, 0.0)
    awake = compiled(", sleep=false", ", sleep=false, share=0.4")
    assert not sleepers(awake.plan)
    assert awake.plan.holding("actor", awake.plan.group_of_role("actor", "generate").name).share == 0.4


def test_on_cpus_nobody_sleeps_unasked() -> None:
    assert not sleepers(compiled().plan)
    assert sleepers(compiled(", sleep=true").plan) == {("actor", "all.megatron"), ("ref", "all.megatron")}


def test_an_engine_that_does_not_sleep_is_not_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that ship all do: one of another package."""
    awake = {name: replace(spec, sleeps=name == "vllm") for name, spec in engines_by_name().items()}
    monkeypatch.setattr(placing, "engines_by_name", lambda: awake)
    with pytest.raises(ProgramError) as caught:
        compiled(", sleep=true")
    [refused] = caught.value.diagnostics
    assert refused.code == "E0887" and refused.hint == "leave it out, or take `vllm`"
    assert "`megatron` does not leave its devices to others" in refused.message
    assert compiled(", sleep=false").plan.groups


@pytest.mark.usefixtures("on_gpus")
def test_pools_of_their_own_stay_awake() -> None:
    apart = """
schedule small
pool learn = 4 devices
pool play = 4 devices
place actor.train, ref on learn(engine=megatron, tp=2)
place actor.generate on play(engine=vllm, tp=2)
"""
    made = rlgraph.compile(PROGRAM, schedule=apart)
    assert not sleepers(made.plan) and len(model_load_rounds(made.plan)) == 1


def test_a_search_keeps_what_is_said() -> None:
    made = compiled(", sleep=true", ", sleep=false, cache=20e9, max_len=4096", CLUSTER)
    sampler = made.plan.group_of_role("actor", "generate").name
    holding = made.plan.holding("actor", sampler)
    assert (holding.offload, holding.kv_bytes, holding.max_len) == (False, 20_000_000_000, 4096)
    assert made.plan.holding("actor", made.plan.group_of_role("actor", "train").name).offload
    with pytest.raises(ProgramError) as caught:
        compiled("", ", share=0.5", CLUSTER)
    assert [found.code for found in caught.value.diagnostics] == ["E0889"]


@pytest.mark.usefixtures("on_gpus")
@pytest.mark.parametrize(
    ("trainer", "sampler", "cluster"),
    [
        ("", "", None),
        (", sleep=true", ", sleep=true, cache=8e9, max_len=4096", None),
        ("", ", share=0.5", None),
        ("", ", cache=20e9", CLUSTER),
        ("", ", max_len=9000", CLUSTER),
    ],
)
def test_what_engines_ask_for_is_what_the_plan_says(
    trainer: str, sampler: str, cluster: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    from rlgraph.backends.engines.sources import ModelSpec
    from rlgraph.backends.engines.vllm import start

    monkeypatch.setattr(start, "has_no_gpu", lambda: False)
    made = compiled(trainer, sampler, cluster)
    memory = 80 << 30
    if made.target is not None:
        memory = int(made.target.cluster.islands[0].device.memory)
    rounds = model_load_rounds(made.plan)
    told = {(contract.group, contract.model): contract for contract in made.contracts}
    assert len(told) == sum(len(group.models) for group in made.plan.groups)
    for (name, model), contract in told.items():
        group, holding = made.plan.group(name), made.plan.holding(model, name)
        assert name in rounds[contract.opens - 1]
        started = process_env_vars("GPU", False, group.engine)
        assert contract.environment.items() <= started.items() and contract.visible_devices == 1
        assert bool(contract.asleep_during) == holding.offload
        if group.engine != "vllm":
            assert contract.cache is None
            continue
        shape = made.placed.shapes[model]
        assert isinstance(shape, Shape) and contract.cache is not None
        spec = ModelSpec("causal_lm", "", "bfloat16")
        asked = start.vllm_arguments(spec, shape, group.mesh, start.limits_in_plan(holding), memory)
        assert asked["max_model_len"] == contract.cache.row_tokens
        assert asked["kv_cache_memory_bytes"] == contract.cache.cache_bytes
        # Without a cluster the device is known when the engine starts: it takes no more than the share.
        assert asked["gpu_memory_utilization"] <= contract.cache.share
        if cluster or not holding.kv_bytes:
            assert asked["gpu_memory_utilization"] == contract.cache.share
        assert asked["enable_sleep_mode"] == holding.offload


class Device:
    """The memory of one device, as those who open models on it see it."""

    total_memory, device_ = 80 << 30, "cuda:0"

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], float] = {}

    @property
    def free_memory(self) -> int:
        # Each process has its context, and keeps that asleep.
        return self.total_memory - int(sum(self.held.values())) - (1 << 30) * len({name for name, _ in self.held})


def opened(made: Compiled, rounds: list[list[str]]) -> Device:
    """A device on which all groups of a plan load their models, one round after the other; within a round those that
    train come first, which is the worst for the others. vLLM's own code says whether it starts."""
    from vllm.v1.worker.utils import request_memory

    from rlgraph.backends.engines.sources import ModelSpec
    from rlgraph.backends.engines.vllm import start

    device: Any = Device()
    groups = [made.plan.group(name) for names in rounds for name in sorted(names)]
    for group, model in [(each, model) for each in groups for model in each.models]:
        shape, holding = made.placed.shapes[model], made.plan.holding(model, group.name)
        assert isinstance(shape, Shape)
        size = 2.0 * model_parallel_parameter_count(shape, "causal_lm", 1, group.mesh.axis_size("tp"))
        if group.engine == "vllm":
            limits = start.limits_in_plan(holding)
            spec = ModelSpec("causal_lm", "", "bfloat16")
            asked = start.vllm_arguments(spec, shape, group.mesh, limits, device.total_memory)
            config: Any = SimpleNamespace(gpu_memory_utilization=asked["gpu_memory_utilization"])
            size = request_memory(device, config)
        device.held[group.name, model] = 0.0 if holding.offload else size
    return device


@pytest.mark.usefixtures("on_gpus")
@pytest.mark.parametrize(
    ("trainer", "sampler", "cluster"),
    [
        ("", "", None),
        (", sleep=false", ", sleep=false, share=0.5", None),
        ("", ", cache=20e9", CLUSTER),
        (", sleep=true", ", sleep=true, cache=20e9", CLUSTER),
    ],
)
def test_the_layouts_of_one_node_start(
    trainer: str, sampler: str, cluster: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    from rlgraph.backends.engines.vllm import start

    monkeypatch.setattr(start, "has_no_gpu", lambda: False)
    made = compiled(trainer, sampler, cluster)
    assert opened(made, model_load_rounds(made.plan)).free_memory > 0


@pytest.mark.usefixtures("on_gpus")
def test_what_is_awake_and_told_nothing_would_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the same schedule as it was: nobody sleeps, and all open at the same time."""
    pytest.importorskip("vllm")
    from rlgraph.backends.engines.vllm import start

    monkeypatch.setattr(start, "has_no_gpu", lambda: False)
    made = compiled(", sleep=false", ", sleep=false")
    assert len(model_load_rounds(made.plan)) == 1
    with pytest.raises(ValueError, match="Free memory on device"):
        opened(made, model_load_rounds(made.plan))


def test_it_is_printed_with_the_plan(tmp_path: Path) -> None:
    made = compiled(", sleep=true", ", sleep=true, cache=8e9, max_len=4096", CLUSTER)
    text = summary_text(made, opened=True)
    assert "opened in this order, with\n  1  all.vllm actor" in text
    assert "rows of 4,096 tokens at most; a cache of 8GB" in text
    assert "asleep during actor.train, ref.logprobs" in text and "CUDA_DEVICE_MAX_CONNECTIONS=1" in text
    assert "opened in this order" not in summary_text(made)
    (tmp_path / "plan.json").write_text(made.plan_json(tmp_path))
    read = rlgraph.load_plan(tmp_path / "plan.json")
    assert read.plan == made.plan and read.contracts == made.contracts
    assert read.plan_json(tmp_path) == made.plan_json(tmp_path)
    assert '"max_len": 4096, "kv_bytes": 8000000000' in made.plan_json(tmp_path)


def test_processes_load_their_models_in_the_order_of_the_plan() -> None:
    """Whoever opens them asks for it."""
    from rlgraph.backends.ray import processes

    assert (
        processes.model_load_rounds is model_load_rounds
        and "model_load_rounds" in InlineProcesses.load_models.__code__.co_names
    )
