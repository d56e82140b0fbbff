"""The fullest moment of pools: who is there, who works, and that the search counts in the same way."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.catalog.models.families import parameter_count
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import HOST, Group, ModelHolding, Plan, Pool, Role
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.peak_memory import (
    OffloadedBytes,
    Peak,
    offloaded_bytes_by_host,
    pool_peaks,
    usable_device_bytes,
    usable_host_bytes,
)
from rlgraph.passes.cost.predict import Predictor, memory_footprint
from rlgraph.passes.cost.task import Task
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.options import Options
from rlgraph.passes.placement.search.problem import PlacementProblem, device_peak_bytes
from tests.passes.placement.test_search import everything, random_case
from tests.suites import few

CONFIG = known_config("meta-llama/Llama-3.1-8B")
assert CONFIG is not None
SHAPE = shape_of(CONFIG)
CONFIGS = {
    "actor": ModelConfig("actor", SHAPE, "causal_lm", "bfloat16"),
    "critic": ModelConfig("critic", SHAPE, "value_lm", "bfloat16"),
    "ref": ModelConfig("ref", SHAPE, "causal_lm", "bfloat16"),
}
BATCH = (Batch(64, Lengths((512.0,)), Lengths((256.0, 1024.0))),)
TASKS = (
    Task("rollout", "generate", "actor", BATCH),
    Task("reward", "call", None),
    Task("ref_logp", "logprobs", "ref", BATCH),
    Task("value", "values", "critic", BATCH),
    Task("train critic", "train", "critic", BATCH),
    Task("train actor", "train", "actor", BATCH),
)

GPU = default_constants("gpu")
CLUSTER = read_cluster("1x8:h200")
EIGHT = tuple(range(8))


def plan(*offloaded: tuple[str, str]) -> Plan:
    """All on eight devices, but `ref` on the last four."""
    groups = (
        Group(HOST, HOST, HOST, make_mesh(), ()),
        Group("learn", "all", "megatron", make_mesh(dp=2, tp=4), EIGHT, ("actor", "critic")),
        Group("play", "all", "vllm", make_mesh(dp=8), EIGHT, ("actor",)),
        Group("look", "all", "megatron", make_mesh(tp=4), EIGHT[4:], ("ref",)),
    )
    roles = (
        Role("actor", "generate", "play"),
        Role("actor", "train", "learn"),
        Role("critic", "values", "learn"),
        Role("critic", "train", "learn"),
        Role("ref", "logprobs", "look"),
    )
    owners = (("actor", "learn"), ("critic", "learn"), ("ref", "look"))
    holdings = tuple(ModelHolding(model, group, offload=True) for model, group in offloaded)
    return Plan("p", (Pool(HOST, 0), Pool("all", 8)), groups, roles, owners, holdings=holdings)


def found(*offloaded: tuple[str, str]) -> Peak:
    return pool_peaks(plan(*offloaded), TASKS, CONFIGS, CLUSTER, GPU)["all"]


def test_all_models_are_there_and_one_works() -> None:
    own = plan()
    predictor = Predictor(own, CONFIGS, CLUSTER, GPU)

    def footprint(model: str, operation: str, group: str) -> tuple[float, float]:
        from rlgraph.passes.cost.predict import memory_footprint as of

        deployment = predictor.deployment(model, own.group(group))
        each = of(operation, CONFIGS[model], deployment, BATCH)
        return each.resident.total, each.active.total

    held = [
        footprint("actor", "train", "learn"),
        footprint("critic", "train", "learn"),
        footprint("actor", "generate", "play"),
        footprint("ref", "logprobs", "look"),
    ]
    peak = found()
    # A process for each group, that of `learn` with two models.
    running = sum(
        predictor.deployment(model, own.group(group)).process_bytes(GPU)
        for model, group in (("actor", "learn"), ("actor", "play"), ("ref", "look"))
    )
    stays = running + sum(size for size, _ in held)
    # The devices with `ref` are the fullest.
    assert peak.used_bytes == pytest.approx(stays + max(size for _, size in held))
    assert peak.moment == "train actor"
    assert [name for name, _ in peak.moments] == [task.name for task in TASKS if task.model]
    assert dict(peak.moments)["ref_logp"] == pytest.approx(stays + held[3][1])


def test_parts_add_up() -> None:
    peak = found()
    assert sum(size for _, _, size in peak.parts) == peak.used_bytes == max(size for _, size in peak.moments)
    assert peak.parts == tuple(sorted(peak.parts, key=lambda part: -part[2]))
    kinds = {(model, what) for model, what, _ in peak.parts}
    assert {("actor", "cache"), ("actor", "gradients"), ("critic", "optimizer"), ("ref", "weights")} <= kinds


def test_what_is_off_loaded_is_there_only_while_it_works() -> None:
    whole, less = found(), found(("critic", "learn"), ("ref", "look"))
    # Processes stay.
    critic = sum(size for model, what, size in whole.parts if model == "critic" and what != "runtime")
    ref = sum(size for model, what, size in whole.parts if model == "ref" and what != "runtime")
    before, after = dict(whole.moments), dict(less.moments)
    assert after["train actor"] == pytest.approx(before["train actor"] - critic - ref)
    assert after["train critic"] == pytest.approx(before["train critic"] - ref)
    assert after["rollout"] == pytest.approx(before["rollout"] - critic - ref)
    assert less.moment == "train critic" and {what for model, what, _ in less.parts if model == "ref"} == {"runtime"}


def test_weights_of_earlier_steps_stay_where_their_model_is_trained() -> None:
    """As many as a step may lag behind, while another model works and theirs sleeps, too; the host has none of them."""
    configs = CONFIGS | {"actor": replace(CONFIGS["actor"], earlier_versions=3)}
    # Megatron's ranks, four to a copy; bfloat16.
    earlier = 3 * 2 * parameter_count(SHAPE, "causal_lm") / 4
    for offloaded in ([], [("actor", "learn")]):
        own = plan(*offloaded)
        before, after = (pool_peaks(own, TASKS, each, CLUSTER, GPU)["all"] for each in (CONFIGS, configs))
        for (moment, least), (_, most) in zip(before.moments, after.moments, strict=True):
            assert most - least == pytest.approx(earlier, rel=0.01), moment
        assert after.host == before.host and ("actor", "earlier weights") in {part[:2] for part in after.parts}
        costs = (Predictor(own, each, CLUSTER, GPU) for each in (CONFIGS, configs))
        moved = [each.offload_round_trip_cost("actor", "learn", "train", BATCH).seconds for each in costs]
        assert moved[0] == moved[1] and (moved[0] > 0) == bool(offloaded)


def test_a_sleeping_sampler_keeps_its_inputs() -> None:
    """vLLM has its input for 8,192 prompt tokens, and 1 MiB of notes on rows, while another model works, too."""
    inputs = 8192 * SHAPE.hidden * 2 + (1 << 20)
    own = plan()
    deployment = Predictor(own, CONFIGS, CLUSTER, GPU).deployment("actor", own.group("play"))
    resident = memory_footprint("generate", CONFIGS["actor"], deployment, BATCH).resident
    awake, asleep = (dict(peak.moments)["train actor"] for peak in (found(), found(("actor", "play"))))
    assert resident.total_of(["inputs"]) == inputs
    assert awake - asleep == pytest.approx(resident.total - inputs)


@pytest.mark.parametrize("seed", few(range(12), 2, 4))
def test_the_search_counts_earlier_weights_in_the_same_way(seed: int) -> None:
    random_problem = random_case(seed).problem
    components = [
        replace(component, config=replace(component.config, earlier_versions=2))
        if component.work == "train"
        else component
        for component in random_problem.components
    ]
    problem = PlacementProblem(components, random_problem.cluster, random_problem.options, random_problem.goal)
    devices, dice = problem.cluster.islands[0].device_count, random.Random(seed)
    options = [everything(problem, number, (0,), devices) for number in range(len(components))]
    if not all(options):
        pytest.skip("a part has no option on so many devices")
    chosen = [dice.choice([option for option in own if option.offload] or own) for own in options]
    for component, option in zip(components, chosen, strict=True):
        stays = option.resident - option.strategy.non_tensor_bytes(option.copies)
        if option.offload:
            assert stays == option.strategy.never_offloaded_bytes
            # Of what trains its gradients, of vLLM its inputs.
            assert (stays > 0) == (component.work == "train" or option.deployment.engine == "vllm")
    configs = {component.model_name: component.config for component in components}
    peak = pool_peaks(laid(problem, chosen), problem.tasks, configs, problem.cluster, problem.constants)["all"]
    assert peak.used_bytes == pytest.approx(device_peak_bytes(chosen))
    assert peak.fits == problem.can_share_pool(chosen, problem.cluster.islands[0])


def lodged(
    *offloaded: tuple[str, str], cluster: str = "1x8:h200", streamed: tuple[str, ...] = ()
) -> list[OffloadedBytes]:
    found = offloaded_bytes_by_host(plan(*offloaded), TASKS, CONFIGS, read_cluster(cluster), GPU, streamed)
    assert list(found) == list(range(len(found)))
    return list(found.values())


def test_a_host_has_what_sleeps_on_its_node() -> None:
    """Weights, and AdamW's moments and wide copies, which Megatron's copies share out; of vLLM, whose weights are
    brought, nothing."""
    numbers = {name: float(parameter_count(SHAPE, each.kind)) for name, each in CONFIGS.items()}
    [node] = lodged(("critic", "learn"), ("ref", "look"), ("actor", "play"))
    critic, ref = numbers["critic"] * (2 * 2 + 12), numbers["ref"] * 2
    assert dict(node.parts) == pytest.approx({"critic": critic, "ref": ref}, rel=0.01)
    assert node.used_bytes == pytest.approx(critic + ref, rel=0.01)
    assert node.capacity == usable_host_bytes(CLUSTER.islands[0], GPU) == CLUSTER.islands[0].host_memory / 2
    assert not lodged(("actor", "play")) and not lodged()


def test_each_host_has_its_own() -> None:
    """One copy of `learn` is on each of two nodes, and `ref` is on the second."""
    [one] = lodged(("critic", "learn"), ("ref", "look"))
    first, second = lodged(("critic", "learn"), ("ref", "look"), cluster="2x4:h200(host_memory=8GB)")
    assert first.used_bytes + second.used_bytes == pytest.approx(one.used_bytes)
    assert dict(first.parts)["critic"] == pytest.approx(dict(one.parts)["critic"] / 2)
    assert [name for name, _ in second.parts] == ["critic", "ref"] and len(first.parts) == 1
    assert one.fits and not first.fits and first.capacity == 4 * 8e9 / 2


def test_gradients_of_a_step_that_goes_on_are_kept_too() -> None:
    [without], [with_them] = lodged(("critic", "learn")), lodged(("critic", "learn"), streamed=("critic",))
    assert with_them.used_bytes - without.used_bytes == pytest.approx(
        2 * 4 * parameter_count(SHAPE, "value_lm"), rel=0.01
    )


def test_what_does_nothing_in_a_step_is_held_all_the_same() -> None:
    idle = pool_peaks(plan(), (), CONFIGS, CLUSTER, GPU)["all"]
    assert idle.moment == "" and idle.moments == ()
    assert {model for model, _, _ in idle.parts} == {"actor", "critic", "ref"}


def test_the_capacity_is_what_a_search_may_fill() -> None:
    assert found().capacity == usable_device_bytes(CLUSTER.islands[0], GPU)
    assert found().fits == (found().used_bytes <= found().capacity)


@pytest.mark.parametrize("seed", few(range(40), 8, 11, 18, 25, 31, 32))
def test_the_search_counts_in_the_same_way(seed: int) -> None:
    """Any options of the parts of a random problem, in one pool, of every other one with rows that stream."""
    dice = random.Random(seed)
    problem = random_case(seed).problem
    trained: list[str] = []
    if seed % 2:
        streaming = Options(problem.tasks, problem.constants, replace(problem.options.settings, streams=True))
        problem = PlacementProblem(problem.components, problem.cluster, streaming, problem.goal)
        trained = [component.model_name for component in problem.components if component.work == "train"]
    devices = problem.cluster.islands[0].device_count
    options = [everything(problem, number, (0,), devices) for number in range(len(problem.components))]
    if not all(options):
        pytest.skip("a part has no option on so many devices")
    chosen = [dice.choice(own) for own in options]
    configs = {component.model_name: component.config for component in problem.components}
    peak_ = pool_peaks(
        laid(problem, chosen),
        problem.tasks,
        configs,
        problem.cluster,
        problem.constants,
        accumulated=trained,
    )["all"]
    assert peak_.used_bytes == pytest.approx(device_peak_bytes(chosen))
    assert peak_.fits == problem.can_share_pool(chosen, problem.cluster.islands[0])
    nodes = offloaded_bytes_by_host(
        laid(problem, chosen), problem.tasks, configs, problem.cluster, problem.constants, trained
    )
    most = max((each.used_bytes for each in nodes.values()), default=0.0)
    assert most == pytest.approx(sum(option.host for option in chosen))


def laid(problem: PlacementProblem, chosen: list[Option]) -> Plan:
    """A plan with one pool, and a group for each part."""
    groups, roles, holdings = [], [], []
    for component, option in zip(problem.components, chosen, strict=True):
        deployment = option.deployment
        groups.append(
            Group(
                component.name,
                "all",
                deployment.engine,
                deployment.mesh,
                tuple(range(deployment.rank_count)),
                (component.model_name,),
            )
        )
        roles += [Role(component.model_name, operation, component.name) for operation in component.operations]
        holdings.append(
            ModelHolding(
                component.model_name,
                component.name,
                deployment.micro_tokens,
                deployment.recompute,
                deployment.attention,
                deployment.adapters,
                deployment.gather,
                deployment.optimizer,
                option.offload,
                deployment.kv_bytes,
            )
        )
    pool = Pool("all", problem.cluster.islands[0].device_count)
    owners = tuple((each.model_name, each.name) for each in problem.components if each.work == "train")
    return Plan("p", (pool,), tuple(groups), tuple(roles), owners, holdings=tuple(holdings))


@pytest.mark.parametrize("name", ["l4-24gb", "h100-80gb", "h200-141gb", "b200-180gb"])
def test_plans_leave_six_hundredths_of_a_gpu_at_least(name: str) -> None:
    island = read_cluster(f"1x1:{name}").islands[0]
    constants = default_constants("gpu")
    assert usable_device_bytes(island, constants) <= 0.94 * island.device.memory
    alone = replace(constants, spare=0.0)
    assert (usable_device_bytes(island, alone) > 0.94 * island.device.memory) == name.startswith(("h200", "b200"))
