"""Plans for clusters: what a schedule pins is kept, everything fits, and what cannot be is said with a way out."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf
from pathlib import Path
from textwrap import indent

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.backends.enginespec.registry import engine
from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.cli import run_command
from rlgraph.errors import ProgramError
from rlgraph.explain.chosen_plan import chosen_plan_lines
from rlgraph.explain.critical_path import critical_path
from rlgraph.explain.simulate import simulate
from rlgraph.ir.plan import HOST, Group, Plan
from rlgraph.passes.compilation import default_plan
from rlgraph.passes.compilation.choose_plan import peak_memory_by_pool, plan_prediction
from rlgraph.passes.compilation.compile import with_default_dtypes
from rlgraph.passes.compilation.default_plan import missing_feature_diagnostics
from rlgraph.passes.compilation.finalists import choose_by_simulation
from rlgraph.passes.compilation.host_offload import plan_offload_by_host
from rlgraph.passes.compilation.overlap_simulation import simulate_step_seconds
from rlgraph.passes.compilation.target import parse_workload
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.cost.predict import ROW_BYTES
from rlgraph.passes.cost.task import device_takeovers
from rlgraph.passes.placement import choose
from rlgraph.passes.placement.choose import choose_placement, choose_with_offload, no_plan_error
from rlgraph.passes.placement.place import Machine
from rlgraph.passes.placement.search import progress
from rlgraph.passes.placement.search.no_plan_errors import MOST_NODES
from rlgraph.passes.placement.search.problem import device_peak_bytes as counted
from tests.interrupting import ctrl_c
from tests.suites import few

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
SMALL = {"base": '"Qwen/Qwen2.5-1.5B"', "judge": '"Qwen/Qwen2.5-1.5B"'}
LENGTHS = parse_workload("300", "mean=120, p99=400")
PINS = """\
schedule ppo
pool learn = 4 devices
pool play = 8 devices
place actor.train on learn(tp=2, dp=2)
place actor.generate on play(engine=vllm, tp=2)
"""
ALIKE = """\
schedule ppo
pool whole = 8 devices
place actor.train, critic, ref, reward on whole(engine=megatron, tp=2, dp=4)
place actor.generate on whole(engine=vllm, tp=2)
"""


@cache
def chosen(name: str, cluster: str, **how: object) -> Compiled:
    """Searched for once: several tests look at the same plans."""
    sets = {key: value for key, value in SMALL.items() if f"param {key} " in (ALGORITHMS / f"{name}.rlf").read_text()}
    how = {"workload": LENGTHS, "stream": False} | how
    return rlgraph.compile(ALGORITHMS / f"{name}.rlf", sets, cluster=cluster, **how)  # type: ignore[arg-type]


def codes(cluster: str, **how: object) -> list[str]:
    with pytest.raises(ProgramError) as found:
        chosen("ppo", cluster, **how)
    return [each.code for each in found.value.diagnostics]


@pytest.mark.parametrize("recompute", ["true", "false"])
def test_a_search_does_what_is_said_of_recomputation_and_attention(recompute: str) -> None:
    place = f"place actor.train on learn(engine=transformers, recompute={recompute}, attention=eager)"
    schedule = f"schedule grpo\npool learn = 4 devices\npool play = 4 devices\n{place}\nplace actor.generate on play"
    found = chosen("grpo", "1x8:a100-80gb", schedule=schedule)
    held = found.plan.holding("actor", found.plan.owner("actor").name)
    assert (held.recompute, held.attention) == (recompute == "true", "eager")
    assert "attention by eager" in "\n".join(chosen_plan_lines(found.choice, plan_prediction(found.choice)))


def adapted(base: str, schedule: str = "", lora: str = "rank=32", cluster: str | None = "1x8:a100-80gb") -> Compiled:
    source = (ALGORITHMS / "grpo.rlf").read_text()
    if lora:
        source = source.replace("causal_lm(base)", f'causal_lm(base, dtype="float32", lora=lora({lora}))')
    return rlgraph.compile(
        source, {"base": f'"{base}"'}, cluster=cluster, workload=LENGTHS if cluster else None, schedule=schedule or None
    )


def test_adapters_are_held_as_costs_less() -> None:
    """Merged ones decode faster, where there is room for a copy of the base."""
    found = adapted("Qwen/Qwen2.5-1.5B")
    held = found.plan.holding("actor", found.plan.group_of_role("actor", "generate").name)
    assert held.adapters == "merged"
    [told] = [
        line
        for line in chosen_plan_lines(found.choice, plan_prediction(found.choice))
        if line.startswith("adapters of")
    ]
    assert re.match(r"adapters of actor.generate: merged works for .*; apart works for .* of each device$", told)
    taken = dict(re.findall(r"(merged|apart) works for ([\d.]+) s", told))
    assert float(taken["merged"]) < float(taken["apart"])
    needed = dict(re.findall(r"(merged|apart) works[^;]* needs ([\d.]+)GB", told))
    assert float(needed["merged"]) > float(needed["apart"])


SAMPLED = """schedule gen
pool play = 1 devices
place actor.generate on play(engine=vllm{how})
"""


def narrow(name: str, how: str = "", cluster: str | None = "1x1:a100-80gb") -> Compiled:
    """A model with adapters in bfloat16 that only samples."""
    actor = f'causal_lm("Qwen/{name}", dtype="bfloat16", lora=lora(rank=32))'
    source = f"""algorithm gen
model actor  = {actor}
data prompts = jsonl("prompts.jsonl", batch=32)
step:
    rollout  = actor.generate(prompts, max_tokens=64)
    report length = mean(rollout.length)
"""
    schedule = SAMPLED.format(how=how) if how != "free" else None
    return rlgraph.compile(source, cluster=cluster, schedule=schedule)


def test_adapters_in_bfloat16_are_held_so_that_nothing_is_lost() -> None:
    """Merged: in the sums of vLLM's own LoRA updates are rounded away. With experts, too."""
    found = narrow("Qwen2.5-1.5B")
    assert found.plan.holding("actor", found.plan.group_of_role("actor", "generate").name).adapters == "merged"
    [told] = [
        line
        for line in chosen_plan_lines(found.choice, plan_prediction(found.choice))
        if line.startswith("adapters of")
    ]
    assert "; not apart: vllm has adapters apart in weights of bfloat16, whose outputs are rounded before" in told
    assert {group.engine for group in narrow("Qwen3-30B-A3B", "free").plan.groups if group.models} == {"vllm"}
    assert "W0518" not in {each.code for each in found.diagnostics}


@pytest.mark.parametrize("cluster", [None, "1x1:a100-80gb", "1x1:cpu"])
def test_who_asks_for_adapters_that_are_rounded_away_is_warned(
    cluster: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan has them so. An engine that computes in float32, as on CPUs, loses nothing."""
    monkeypatch.setattr(default_plan, "local_machine", lambda devices: Machine(devices, "gpu"))
    found = narrow("Qwen2.5-1.5B", ", adapters=apart", cluster)
    assert found.plan.holding("actor", found.plan.group_of_role("actor", "generate").name).adapters == "apart"
    told = [each for each in found.diagnostics if each.code == "W0518"]
    if cluster == "1x1:cpu":
        assert not told
        return
    [one] = told
    assert one.message.startswith("`actor`: vllm has adapters apart in weights of bfloat16, whose outputs are rounded")
    assert one.span.covered_text == "adapters=apart"
    assert one.hint == 'write `adapters=merged` or `dtype="float32"` of the model'


def test_a_model_that_two_nodes_are_too_few_for_is_sampled_on_more() -> None:
    """405B in float32 are 1.62 TB, and an engine without stages splits layers alone."""
    source = """algorithm gen
model actor  = causal_lm("meta-llama/Llama-3.1-405B", dtype="float32")
data prompts = jsonl("prompts.jsonl", batch=32)
step:
    rollout  = actor.generate(prompts, max_tokens=64)
    report length = mean(rollout.length)
"""
    [group] = [each for each in rlgraph.compile(source, cluster="4x8:h100-80gb").plan.groups if each.models]
    assert group.engine == "vllm" and group.mesh.axis_size("tp") == 32
    schedule = SAMPLED.format(how=", tp=8").replace("1 devices", "8 devices")
    with pytest.raises(ProgramError) as found:
        rlgraph.compile(source, cluster="4x8:h100-80gb", schedule=schedule)
    assert [each.code for each in found.value.diagnostics] == ["E0930"]


def test_a_cpu_merges_them_in_float32() -> None:
    """Whatever the model is in: its engine computes so there."""
    plan = narrow("Qwen2.5-1.5B", ", adapters=merged", "1x1:cpu").plan
    assert plan.holding("actor", plan.group_of_role("actor", "generate").name).adapters == "merged"


@pytest.mark.parametrize("way", ["merged", "apart"])
def test_adapters_as_a_schedule_says(way: str) -> None:
    lines = "pool one = 8 devices\nplace actor.train, ref on one(engine=transformers)\n"
    schedule = f"schedule grpo\n{lines}place actor.generate on one(engine=vllm, adapters={way})\n"
    found = adapted("Qwen/Qwen2.5-1.5B", schedule)
    assert found.plan.holding("actor", found.plan.group_of_role("actor", "generate").name).adapters == way
    told = [
        line
        for line in chosen_plan_lines(found.choice, plan_prediction(found.choice))
        if line.startswith("adapters of")
    ]
    assert [line.endswith("of each device, as the schedule says") for line in told] == [True]


@pytest.mark.parametrize(
    ("base", "lora", "message"),
    [
        ("Qwen/Qwen3-30B-A3B", "rank=32", "vllm holds adapters apart only for models without experts"),
        ("Qwen/Qwen2.5-1.5B", "rank=600", "vllm holds adapters apart only up to rank 512"),
        ("Qwen/Qwen2.5-1.5B", "", "vllm holds no adapters apart: the model has none"),
    ],
)
@pytest.mark.parametrize("cluster", [None, "1x8:a100-80gb"])
def test_adapters_that_an_engine_cannot_hold_so(base: str, lora: str, message: str, cluster: str | None) -> None:
    lines = "pool one = 8 devices\nplace actor.train, ref on one(engine=transformers)\n"
    schedule = f"schedule grpo\n{lines}place actor.generate on one(engine=vllm, adapters=apart)\n"
    with pytest.raises(ProgramError) as found:
        adapted(base, schedule, lora, cluster)
    assert [(each.code, each.message) for each in found.value.diagnostics] == [("E0912", f"`actor`: {message}")]


def test_attention_that_needs_a_gpu() -> None:
    place = "place actor on all(engine=transformers, attention=flash_attention_2)"
    assert codes("1x2:cpu", schedule=f"schedule ppo\npool all = 2 devices\n{place}\n") == ["E0908"]


WHOLE = [
    *product(
        ("1x8:a100-80gb", "2x2:h100-80gb + 2x4:h20-96gb"),
        ("ppo", "grpo", "remax", "sft", "async_grpo", "dapo", "agent"),
    )
]
DEAR = (WHOLE[7], WHOLE[11])
"""PPO and asynchronous GRPO where islands are unlike."""


@pytest.mark.parametrize(("cluster", "name"), few(WHOLE, *(each for each in WHOLE if each not in DEAR)))
def test_a_plan_is_whole(cluster: str, name: str) -> None:
    """All work has a group, each copy of which lies on one island, no two pools share a device, and all of them fit."""
    found = chosen(name, cluster)
    plan, wanted = found.plan, found.choice.question.cluster
    taken: list[int] = []
    for pool in plan.pools:
        if pool.name != HOST:
            taken += range(pool.first, pool.first + pool.devices)
    assert not any(astride(plan, group, wanted) for group in plan.groups)
    assert len(taken) == len(set(taken)) <= wanted.device_count
    assert all(
        group.mesh.rank_count <= next(p.devices for p in plan.pools if p.name == group.pool) or group.name == HOST
        for group in plan.groups
    )
    assert all(peak.fits for peak in peak_memory_by_pool(found.choice).values())
    assert found.choice.search_result.gap <= 0.01


def astride(plan: Plan, group: Group, cluster: Cluster) -> bool:
    """Whether a copy lies on two islands."""
    size, first = group.mesh.replica_size, next(pool.first for pool in plan.pools if pool.name == group.pool)
    copies = [group.devices[at : at + size] for at in range(0, len(group.devices), size)]
    return any(len({cluster.node_group_number(first + device) for device in copy}) > 1 for copy in copies)


@pytest.mark.parametrize("name", ["ppo", "grpo", "sft"])
def test_the_simulator_agrees(name: str) -> None:
    """Two ways to the same step: a timetable in the search, and the executor in virtual time."""
    found = chosen(name, "2x8:a100-80gb")
    seen = simulate(found, found.choice.question.cluster, workload=LENGTHS)
    assert seen.seconds == pytest.approx(found.choice.search_result.seconds, rel=0.05)


def test_orders_that_a_copy_samples_together_are_simulated() -> None:
    """ReMax asks for samples and for the likeliest answer of the same weights."""
    found = chosen("remax", "2x8:a100-80gb")
    seen = simulate(found, found.choice.question.cluster, workload=LENGTHS)
    told = plan_prediction(found.choice)
    assert told["in_turn_seconds"] == found.choice.search_result.seconds > 1.1 * seen.seconds
    # Of other steps, whose lengths differ.
    assert told["seconds"] == pytest.approx(seen.seconds, rel=0.03)
    assert plan_prediction(chosen("grpo", "2x8:a100-80gb").choice)["in_turn_seconds"] is None


@pytest.mark.long
def test_where_steps_overlap_generation_has_devices_of_its_own() -> None:
    """The simulator takes the plan for the faster one, too; and where it is given the wrong one as the plan of the
    steady state, it takes the other, with what is proven of the first."""
    steady = rlgraph.compile(ALGORITHMS / "async_grpo.rlf", {"n": 4}, cluster="4x8:h100-80gb").choice
    alone = choose_placement(replace(steady.question, sequential_steps=True))
    assert alone and len(alone.search_result.blocks) == 1 < len(steady.search_result.blocks)
    told = plan_prediction(steady)
    assert told["steady_seconds"] == steady.search_result.seconds and told["in_turn_seconds"] is None
    assert told["seconds"] < 0.95 * simulate_step_seconds(alone, 2)
    wrong = replace(
        alone, search_result=replace(alone.search_result, bound=1.0), problem=steady.problem, question=steady.question
    )
    other = choose_by_simulation(wrong, steady)
    assert other.plan == steady.plan and other.question == steady.question
    assert other.search_result.bound == 1.0 and 0 < other.search_result.gap < 1


def test_weights_go_over_the_link_between_groups() -> None:
    """Trained on one side and generated with on the other: the search and the simulator count the way alike."""
    text = "schedule grpo\npool learn = 8 devices\npool play = 8 devices\nplace actor.train, ref on learn\n"
    text += "place actor.generate on play\n"
    seconds = []
    for link in ("", " ~ 0.1Gb/s, 500ms"):
        found = chosen("grpo", "1x8:h100-80gb + 1x8:h20-96gb" + link, schedule=text)
        seen = simulate(found, found.choice.question.cluster, workload=LENGTHS)
        assert seen.seconds == pytest.approx(found.choice.search_result.seconds, rel=0.05)
        seconds.append(found.choice.search_result.seconds)
    weights = 1.5e9 * 2 / (8 * 0.1e9 / 8)
    assert seconds[1] > seconds[0] + weights


def test_rows_and_orders_go_over_the_link_between_groups() -> None:
    """The search and the simulator count the way of each task's rows alike, and of its orders; the copies have a link
    each, as far as there are as many at both ends."""
    pins = "schedule grpo\npool learn = 8 devices\npool play = 8 devices\nplace actor.train on learn(tp=1)\n"
    pins += "place ref on learn(tp=2)\nplace actor.generate on play(tp=4)\n"
    found = chosen("grpo", "1x8:h100-80gb + 1x8:h20-96gb ~ 0.01Gb/s, 500ms", schedule=pins)
    seen = simulate(found, found.choice.question.cluster, workload=LENGTHS)
    spent: dict[str, float] = {}
    for work in seen.works:
        spent[work.name] = spent.get(work.name, 0.0) + work.parts.get("transfer", 0.0) + work.parts.get("order", 0.0)
    problem, best = found.choice.problem, found.choice.search_result
    trips = problem.row_travel_seconds(
        problem.make_colocation(best.blocks), {at: each.copies for at, each in enumerate(best.options)}
    )
    own = {problem.tasks[number].name: seconds for number, seconds in trips.items()}
    assert {"ref_logp", "train actor"} <= own.keys()
    assert {name: spent[name] for name in own} == pytest.approx(own, rel=0.02)
    # Two copies sample, at 10 Mb/s each.
    sampled = 8192 * (300 + LENGTHS.answer_lengths(1024).mean) * ROW_BYTES
    assert own["ref_logp"] > sampled / (2 * 0.01e9 / 8)
    stretches = {each.name: each for each in critical_path(problem, best)}
    trained = stretches["train actor"]
    assert trained.parts["communication"] > own["train actor"]
    assert trained.seconds == pytest.approx(sum(trained.parts.values()))


def asleep(made: Compiled) -> list[str]:
    """Models that sleep while others work."""
    return [holding.model for holding in made.plan.holdings if holding.offload]


def of_usual_rows(name: str, cluster: str, offload: bool = True) -> Compiled:
    sets = {key: value for key, value in SMALL.items() if f"param {key} " in (ALGORITHMS / f"{name}.rlf").read_text()}
    return rlgraph.compile(ALGORITHMS / f"{name}.rlf", sets, cluster=cluster, offload=offload)


@pytest.mark.parametrize(
    ("name", "cluster"),
    few([("grpo", "1x8:rtx4090"), ("ppo", "1x4:a100-40gb(memory=32GiB)"), ("ppo", "1x1:h100")], ("ppo", "1x1:h100")),
)
def test_models_sleep_where_that_is_faster(name: str, cluster: str) -> None:
    """The simulator says so, too, and what is proven is proven of all plans."""
    awake, found = of_usual_rows(name, cluster, offload=False), of_usual_rows(name, cluster)
    assert asleep(found) and not asleep(awake)
    seconds = [simulate(each, read_cluster(cluster)).seconds for each in (found, awake)]
    assert seconds[0] < 0.99 * seconds[1]
    assert seconds[0] == pytest.approx(found.choice.search_result.seconds, rel=0.05)
    assert (
        found.choice.search_result.bound <= found.choice.search_result.value < 0.99 * awake.choice.search_result.value
    )
    assert all(peak.fits for peak in peak_memory_by_pool(found.choice).values())


SLICED = """\
algorithm sliced
model actor  = causal_lm("Qwen/Qwen2.5-1.5B")
model critic = value_lm("Qwen/Qwen2.5-1.5B")
data prompts = jsonl("prompts.jsonl", batch=512)
func correct = python("rlgraph.rewards:exact_match", over=row)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=512)
    values  = critic.values(rollout)
    adv     = correct(rollout) - values
    minibatch prompts(parts=8, epochs=2):
        train actor(lr=1e-6):
            minimize mean(-actor.logprobs(rollout) * adv)
"""
AFTER = """\
    train critic(lr=1e-6):
        minimize mean((critic.values(rollout) - adv) ** 2)
"""


@pytest.mark.parametrize(("slices", "often"), [(AFTER, (1, 1)), (indent(AFTER, "    "), (16, 16))])
def test_who_sleeps_comes_once_for_slices_that_only_it_works_on(slices: str, often: tuple[int, int]) -> None:
    """And for each slice where somebody else works on it, too. The simulator moves models when they have a turn."""
    cluster = "1x2:rtx4090(host_memory=64GiB)"
    made = rlgraph.compile(SLICED + slices, cluster=cluster, workload=LENGTHS)
    found = made.choice.search_result
    assert set(asleep(made)) == {"actor", "critic"}
    step = made.choice.problem.tasks
    for name, count in zip(("train actor", "train critic"), often, strict=True):
        number = next(at for at, task in enumerate(step) if task.name == name)
        assert (
            device_takeovers(step, number, [at for at, task in enumerate(step) if task.model == step[number].model])
            == count
        )
    assert simulate(made, read_cluster(cluster), workload=LENGTHS).seconds == pytest.approx(found.seconds, rel=0.01)


@pytest.mark.long
def test_nobody_sleeps_for_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan in which models sleep would be faster, by less than they have to gain; the gap says so."""
    awake = of_usual_rows("grpo", "1x8:a100-40gb", offload=False).choice
    best = choose_placement(replace(awake.question, offload=True))
    assert best is not None and any(option.offload for option in best.search_result.options)
    gain = 1 - best.search_result.value / awake.search_result.value
    assert gain > 0
    monkeypatch.setattr(choose, "ASLEEP", 2 * gain)
    found = of_usual_rows("grpo", "1x8:a100-40gb").choice
    assert found.plan == awake.plan
    assert awake.search_result.gap < found.search_result.gap
    assert found.search_result.bound <= best.search_result.value


@pytest.mark.parametrize(("name", "cluster"), [("async_grpo", "1x8:rtx4090"), ("grpo", "17x8:rtx4090")])
def test_nobody_sleeps_where_that_is_not_searched(name: str, cluster: str) -> None:
    assert not asleep(chosen(name, cluster))


def test_without_time_for_who_could_sleep_the_plan_stays() -> None:
    """Of a problem that is too large for all options nothing is known then of plans in which models sleep."""
    awake = of_usual_rows("grpo", "9x8:rtx4090", offload=False)
    # Were a sampler asleep and awake at once, models would sleep here.
    constants = replace(awake.choice.question.constants, offload_overheads={}, host_link=1.0)
    asked = replace(awake.choice.question, offload=True, constants=constants)
    looked, hurried = (choose_with_offload(replace(asked, search_seconds=each), awake.choice) for each in (inf, 0.0))
    assert (
        any(each.offload for each in looked.plan.holdings)
        and looked.search_result.value < awake.choice.search_result.value
    )
    assert hurried.plan == awake.plan and hurried.search_result.bound == 0


def test_pools_with_the_same_models_have_names_of_their_own() -> None:
    """Two models that train in one pool and sample in another: each pool has its devices."""
    base = '"meta-llama/Llama-3.1-70B-Instruct"'
    plan = rlgraph.compile(ALGORITHMS / "spiral.rlf", {"base": base}, cluster="5x8:a100-80gb", stream=False).plan
    devices = {pool.name: pool.devices for pool in plan.pools}
    assert sorted(devices) == ["first_generate_second_generate", "first_second", "host"]
    for group in plan.groups:
        assert len(group.devices) <= devices[group.pool]
    assert sum(devices.values()) <= 40


def test_one_more_device_is_never_slower() -> None:
    """Also where nodes are no power of two: what is on one node uses its links."""
    seconds = [chosen("grpo", f"1x{count}:h100-80gb").choice.search_result.seconds for count in (5, 6, 7, 8)]
    assert seconds == sorted(seconds, reverse=True)


def test_pins_are_kept() -> None:
    plan = chosen("ppo", "2x8:a100-80gb", schedule=PINS).plan
    learn, play = (next(pool for pool in plan.pools if pool.name == name) for name in ("learn", "play"))
    assert (learn.devices, play.devices) == (4, 8)
    assert (
        str(plan.group_of_role("actor", "train").mesh) == "dp2 x tp2"
        and plan.group_of_role("actor", "train").pool == "learn"
    )
    made = plan.group_of_role("actor", "generate")
    assert (made.engine, made.pool, made.mesh.axis_size("tp")) == ("vllm", "play", 2)


@pytest.mark.parametrize("devices", [3, 12])
def test_a_pool_keeps_a_size_that_no_search_would_choose(devices: int) -> None:
    text = f"schedule grpo\npool learn = {devices} devices\nplace actor, ref on learn\n"
    plan = chosen("grpo", "2x8:a100-80gb", schedule=text).plan
    assert [pool.devices for pool in plan.pools if pool.name == "learn"] == [devices]


def test_a_model_that_is_too_large_for_a_device_is_shared_out() -> None:
    """On fewer devices it would not fit, and these nodes are no power of two."""
    sets = {"base": '"google/gemma-2-9b"'}
    text = "schedule sft\npool all = 12 devices\nplace actor on all(engine=transformers)\n"
    made = rlgraph.compile(ALGORITHMS / "sft.rlf", sets, cluster="2x6:rtx4090", workload=LENGTHS, schedule=text)
    role = made.plan.group_of_role("actor", "train")
    assert (role.engine, str(role.mesh)) == ("transformers", "fsdp12")


@pytest.mark.parametrize("engine", ["engine=transformers, ", ""])
def test_a_size_that_no_search_tries_can_be_said(engine: str) -> None:
    """And so an engine that splits along its axis is taken, though another one is preferred."""
    text = f"schedule sft\npool all = 6 devices\nplace actor on all({engine}fsdp=3)\n"
    made = rlgraph.compile(ALGORITHMS / "sft.rlf", cluster="1x6:a100-80gb", workload=LENGTHS, schedule=text)
    role = made.plan.group_of_role("actor", "train")
    assert (role.engine, str(role.mesh)) == ("transformers", "dp2 x fsdp3")


@pytest.mark.parametrize("cluster,way", [("2x8:a100-80gb", "update"), ("2x8:a100-40gb", "")])
def test_parameters_are_gathered_once_an_update_where_that_fits(cluster: str, way: str) -> None:
    """14B parameters in bfloat16 are 29 GB, and 15 GB of each device are its part of the optimizer's."""
    sets = {"base": '"Qwen/Qwen2.5-14B"'}
    text = "schedule sft\npool all = 16 devices\nplace actor on all(engine=transformers, fsdp=16{})\n"

    def made(said: str) -> Compiled:
        schedule = text.format(said)
        return rlgraph.compile(ALGORITHMS / "sft.rlf", sets, cluster=cluster, workload=LENGTHS, schedule=schedule)

    found, layer = made(""), made(", gather=layer")
    group = found.plan.owner("actor").name
    assert [each.plan.holding("actor", group).gather for each in (found, layer)] == [way, "layer"]
    seconds = [plan_prediction(each.choice)["seconds"] for each in (found, layer)]
    assert seconds[0] < 0.95 * seconds[1] if way else seconds[0] == pytest.approx(seconds[1])
    if not way:
        with pytest.raises(ProgramError):
            made(", gather=update")


def test_what_is_gathered_is_shared_out() -> None:
    """Said of a model whose split the search chooses."""
    text = "schedule sft\npool all = 8 devices\nplace actor on all(engine=transformers, gather=layer)\n"
    made = rlgraph.compile(ALGORITHMS / "sft.rlf", cluster="1x8:a100-80gb", workload=LENGTHS, schedule=text)
    assert made.plan.group_of_role("actor", "train").mesh.axis_size("fsdp") > 1
    [said] = [
        line
        for line in chosen_plan_lines(made.choice, plan_prediction(made.choice))
        if line.startswith("parameters of actor are gathered")
    ]
    assert "by layer works" in said and "; by update works" in said and said.endswith("as the schedule says")


def test_a_size_that_is_impossible_is_refused_with_the_nearest() -> None:
    text = "schedule sft\npool all = 6 devices\nplace actor on all(engine=megatron, tp=3)\n"
    with pytest.raises(ProgramError) as found:
        rlgraph.compile(ALGORITHMS / "sft.rlf", cluster="1x6:a100-80gb", workload=LENGTHS, schedule=text)
    [told] = found.value.diagnostics
    assert told.code == "E0931" and "tp=3 does not divide the 28 attention heads" in told.message
    assert "the nearest that fits is tp=2 or tp=4" in told.message


def test_off_loading_is_the_last_resort() -> None:
    """A plan that needs none is taken where there is one; else it is said who sleeps when."""
    roomy = chosen("ppo", "2x8:a100-80gb")
    assert not any(each.offload for each in roomy.plan.holdings) and not roomy.diagnostics
    tight = "1x4:a100-40gb(memory=16GiB)"
    found = chosen("ppo", tight)
    assert any(each.offload for each in found.plan.holdings)
    assert not found.diagnostics
    held = [each for each in found.plan.holdings if each.offload]
    said = "\n".join(chosen_plan_lines(found.choice, plan_prediction(found.choice)))
    for name in {found.plan.describe_model_work(each.model, each.group) for each in held}:
        assert re.search(rf"^    {re.escape(name)} +sleeps during [a-z_]+", said, re.M), name
    assert "train actor" not in re.findall(r"^    actor\.(?!generate).* sleeps during .*$", said, re.M)[0]
    assert codes(tight, offload=False)[0] in ("E0930", "E0933")


@pytest.mark.parametrize(("nodes", "is_why"), [(3, True), (2, False)])
def test_a_refusal_says_where_models_have_to_share_processes(nodes: int, is_why: bool) -> None:
    """If they would fit in processes of their own: on three small devices, and not on two."""
    cluster = f"1x1:a100-80gb(memory=34GB) + {nodes}x1:rtx4090-24gb(memory=10GB)"
    models = dict.fromkeys(("base", "judge"), '"Qwen/Qwen2.5-1.5B"')
    with pytest.raises(ProgramError) as found:
        rlgraph.compile(ALGORITHMS / "nash_md.rlf", models, cluster=cluster, offload=False)
    [wrong] = found.value.diagnostics
    assert wrong.code == "E0933"
    said = "`actor` and `ref` are in the same processes, since rows are sampled from a mixture of them"
    assert (said.replace("`", "") in wrong.message.replace("`", "")) == is_why
    assert ("in processes of their own they would" in wrong.message) == is_why == bool(wrong.span.line)


@pytest.mark.long
def test_who_sleeps_has_room_in_the_hosts_memory() -> None:
    """With less of it fewer sleep, and a step takes longer, until nobody does but who has to keep nothing."""
    sizes = ("32GB", "4GB", "1GB")
    made = [of_usual_rows("grpo", f"1x8:rtx4090(host_memory={size})") for size in sizes]
    assert [asleep(each) for each in made] == [["actor", "actor", "ref"], ["actor", "ref"], ["actor"]]
    seconds = [each.choice.search_result.value for each in made]
    assert seconds == sorted(seconds) and seconds[0] < seconds[1] < seconds[2]
    for each in made:
        nodes = plan_offload_by_host(each.choice)
        assert all(node.fits for node in nodes.values())
        assert sum(node.used_bytes for node in nodes.values()) == pytest.approx(
            sum(option.host for option in each.choice.search_result.options)
        )


def test_hosts_with_too_little_memory_are_told() -> None:
    """Who would sleep where, how much that is, and with how much they would fit."""
    cluster = "1x4:a100-40gb(memory=16GiB, host_memory={})"
    with pytest.raises(ProgramError) as found:
        chosen("ppo", cluster.format("4GB"))
    first, *others = found.value.diagnostics
    assert first.code == "E0939" and [each.code for each in others] == ["E0933"]
    assert re.search(
        r"[\d.]+GB sleep in the memory of node 0's host \(.*`critic`.*\), and [\d.]+GB of it", first.message
    )
    [needed] = re.findall(r"host_memory=([\d.]+GB)", first.hint)
    made = chosen("ppo", cluster.format(needed))
    [node] = plan_offload_by_host(made.choice).values()
    assert node.used_bytes == pytest.approx(node.capacity, rel=0.01)
    said = "\n".join(chosen_plan_lines(made.choice, plan_prediction(made.choice)))
    assert re.search(r"in the host's memory, [\d.]+GB for each device, [\d.]+GB of [\d.]+GB on a node, while", said)


def test_pins_cost_time_and_never_gain_any() -> None:
    free, pinned = chosen("ppo", "2x8:a100-80gb"), chosen("ppo", "2x8:a100-80gb", schedule=PINS)
    assert free.choice.search_result.seconds < pinned.choice.search_result.seconds


@pytest.mark.parametrize(
    "split", few(["dp=1, pp=4, tp=2", "dp=2, pp=2, tp=2", "dp=4, pp=2, tp=1", "dp=2, pp=4, tp=1"], "dp=2, pp=2, tp=2")
)
def test_no_split_of_what_shares_its_optimizer_beats_the_search(split: str) -> None:
    """A copy has its share of the optimizer's state, which decides what fits on small devices."""
    pins = f"schedule grpo\npool all = 8 devices\nplace actor.train on all(engine=megatron, {split})\n"
    sets = {"base": '"Qwen/Qwen2.5-3B"'}
    free, pinned = (
        rlgraph.compile(
            ALGORITHMS / "grpo.rlf", sets, cluster="1x8:rtx4090(memory=28GiB)", schedule=text, offload=False
        ).choice
        for text in (None, pins)
    )
    assert free.search_result.bound <= pinned.search_result.seconds * (1 + 1e-9)
    assert all(peak.fits for choice in (free, pinned) for peak in peak_memory_by_pool(choice).values())


def test_eight_copies_of_8b_fit_on_devices_of_80_gb() -> None:
    """With weights and gradients of their own, and an eighth of the optimizer's state."""
    pins = "schedule sft\npool all = 8 devices\nplace actor on all(engine=megatron, dp=8, tp=1, pp=1)\n"
    found = rlgraph.compile(
        ALGORITHMS / "sft.rlf",
        {"base": '"meta-llama/Llama-3.1-8B"'},
        cluster="1x8:h100-80gb",
        schedule=pins,
        workload=LENGTHS,
    )
    assert found.plan.group_of_role("actor", "train").mesh.axis_size("dp") == 8


def test_each_process_has_its_runtime_on_a_device() -> None:
    """Models that are split alike by one engine share a process, and so what it has beside tensors."""
    for cluster, schedule in (("1x8:a100-80gb", None), ("1x8:a100-80gb", ALIKE)):
        choice = chosen("ppo", cluster, schedule=schedule).choice
        [pool] = (pool for pool in choice.plan.pools if pool.name != HOST)
        groups = [group for group in choice.plan.groups if group.pool == pool.name]
        assert schedule is None or len(groups) < len(choice.problem.components)
        expected = 0
        for group in groups:
            spec = engine(group.engine)
            axes = [name for name, size in group.mesh.axes if size > 1 and (name != "dp" or spec.trains)]
            expected += spec.memory.process_bytes + len(axes) * choice.question.constants.communicator
        [peak] = peak_memory_by_pool(choice).values()
        assert sum(size for _, what, size in peak.parts if what == "runtime") == expected > 0
        # The search does not count on processes that are shared.
        found = choice.search_result
        assert peak.used_bytes <= counted(found.options) * (1 + 1e-9)
        assert (peak.used_bytes == pytest.approx(counted(found.options))) == (len(groups) == len(found.options))


def test_devices_that_are_almost_full_are_said_to_be_tight() -> None:
    """The fastest plan is, on devices of a little more memory it is not; and one that is little slower never is."""
    # In long rows half a micro-batch takes little longer.
    rows = parse_workload("900", "mean=1100, p99=3000")
    found = chosen("sft", "1x1:h20-96gb", workload=rows).choice
    [peak] = peak_memory_by_pool(found).values()
    reserved = found.problem.constants.reserved
    for share, tight in ((0.998, True), (0.96, True), (0.94, False)):
        needed = (peak.used_bytes / share + reserved) / (1 - found.problem.constants.fragmentation)
        cluster = f"1x1:h20-96gb(memory={needed / 2**20:.6f}MiB)"
        choice = chosen("sft", cluster, search_gap=0, workload=rows).choice
        [now] = peak_memory_by_pool(choice).values()
        assert now.used_bytes == peak.used_bytes and now.is_tight == tight
        [calm] = peak_memory_by_pool(chosen("sft", cluster, workload=rows).choice).values()
        assert not calm.is_tight
        assert any("; tight, " in line for line in chosen_plan_lines(choice, plan_prediction(choice))) == tight


def test_more_devices_are_never_slower() -> None:
    steps = [chosen("grpo", f"{nodes}x8:a100-80gb").choice.search_result for nodes in (1, 2, 4, 8)]
    assert all(after.seconds <= before.seconds * 1.01 for before, after in zip(steps, steps[1:], strict=False))


@pytest.mark.parametrize("name", few(["ppo", "grpo"], "grpo"))
def test_a_slow_link_between_islands_is_not_crossed_for_nothing(name: str) -> None:
    near, far = (
        chosen(name, f"2x4:h100 + 2x4:h100 ~ {link}").choice.search_result.seconds for link in ("50GB/s", "10Mb/s")
    )
    assert near <= far * (1 + 1e-9)


@pytest.mark.parametrize("name", few(["ppo", "grpo"], "grpo"))
def test_the_cheapest_plan_is_cheaper_and_slower(name: str) -> None:
    fast, cheap = (chosen(name, "2x4:a100-80gb", minimize=goal).choice for goal in ("time", "cost"))
    price = [
        choice.search_result.seconds
        * choice.problem.dollars_per_second(choice.search_result.blocks, choice.search_result.devices)
        for choice in (fast, cheap)
    ]
    assert price[1] < price[0] and cheap.search_result.seconds > fast.search_result.seconds
    assert cheap.search_result.value == pytest.approx(price[1])


@pytest.mark.parametrize("name", few(["ppo", "grpo"], "grpo"))
def test_the_same_input_gives_the_same_bytes(name: str) -> None:
    again = chosen.__wrapped__(name, "2x8:a100-80gb")
    assert again.plan_json() == chosen(name, "2x8:a100-80gb").plan_json()


def test_a_dtype_that_is_not_said() -> None:
    def dtypes(cluster: str, **sets: str) -> set[str]:
        found = rlgraph.compile(
            ALGORITHMS / "sft.rlf", {"base": SMALL["base"], **sets}, cluster=cluster, workload=LENGTHS
        )
        configs: dict[str, ModelConfig] = found.choice.model_configs
        return {config.dtype for config in configs.values()}

    assert dtypes("1x8:a100-80gb") == {"bfloat16"} and dtypes("1x2:cpu(memory=96GiB)") == {"float32"}
    assert dtypes("1x8:a100-80gb", actor='causal_lm(base, dtype="float32")') == {"float32"}


@pytest.mark.parametrize(("accelerated", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_without_a_cluster_the_device_of_a_run_decides_the_dtype(accelerated: bool, expected: str) -> None:
    found = rlgraph.compile(
        ALGORITHMS / "ppo.rlf", {"base": SMALL["base"], "critic": 'value_lm(base, dtype="float64")'}
    ).program
    typed = with_default_dtypes(found, accelerated)
    assert {model.name: typed.dtype_of_model(model) for model in typed.models} == {
        "actor": expected,
        "ref": expected,
        "reward": expected,
        "critic": "float64",
    }
    assert {found.dtype_of_model(model) for model in found.models} == {"float32", "float64"}


# What cannot be


@pytest.mark.parametrize("name", few(["ppo", "sft"], "sft"))
def test_too_large_says_what_where_when_and_what_helps(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, lengths = str(ALGORITHMS / f"{name}.rlf"), ["--prompt-tokens", "300", "--response-tokens", "120"]
    assert run_command(["compile", path, *lengths, "--cluster", "1x1:rtx4090"]) == 1
    error = capsys.readouterr().err
    assert re.search(
        r"error\[E0930\]: `actor` needs at least [\d.]+GB on each rtx4090-24gb during `train actor`", error
    )
    [larger] = set(re.findall(r"--cluster '(.*?)'", error))
    assert run_command(["compile", path, *lengths, "--cluster", larger, "--no-offload"]) == 0, (
        "what is proposed cannot be run"
    )


@pytest.mark.parametrize(
    ("name", "cluster", "models"),
    [
        ("sft", "1x1:h100(host_memory=8GiB)", ["actor"]),
        ("grpo", "1x1:h100(host_memory=8GiB)", ["actor"]),
        ("sft", "1x1:l4(memory=8GiB)", []),
    ],
)
def test_too_large_says_whether_adapters_would_fit(
    name: str, cluster: str, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Three seconds in all. What is proposed is tried, and where nothing is, nothing fits."""
    run = ["compile", str(ALGORITHMS / f"{name}.rlf"), "--cluster", cluster, "--search-seconds", "60"]
    assert run_command(run) == 1
    hint = re.search(r"help: it fits here with adapters, `lora=(.*?)` of (.*); without,", capsys.readouterr().err)
    assert (re.findall(r"`(\w+)`", hint[2]) if hint else []) == models
    adapters = hint[1] if hint else "lora(rank=16)"
    assert run_command([*run, "--set", f"actor=causal_lm(base, lora={adapters})"]) == (0 if models else 1)


@pytest.mark.parametrize(
    ("name", "cluster", "set_", "how", "change"),
    [
        (
            "sft",
            "1x1:h100(host_memory=8GiB)",
            {"actor": 'causal_lm("Qwen/Qwen3-4B", dtype="float32")'},
            {},
            "fewer bytes a weight",
        ),
        ("grpo", "1x1:a100-80gb(memory=37GiB)", SMALL, {"offload": False}, "models that sleep"),
    ],
)
def test_a_refusal_says_the_smallest_change_that_fits(
    name: str, cluster: str, set_: dict[str, str], how: dict[str, bool], change: str
) -> None:
    """What is proposed is done, and then there is a plan."""
    path = ALGORITHMS / f"{name}.rlf"
    set_ = {key: value for key, value in set_.items() if key != "judge"}
    with pytest.raises(ProgramError) as found:
        rlgraph.compile(path, set_, cluster=cluster, workload=LENGTHS, **how)  # type: ignore[arg-type]
    hint = found.value.diagnostics[-1].hint
    assert hint.startswith(f"it fits here with {change}")
    changed = {key: value.replace("float32", "bfloat16") for key, value in set_.items()}
    assert rlgraph.compile(path, changed, cluster=cluster, workload=LENGTHS).plan


def test_sparse_models_that_others_train_have_a_plan() -> None:
    """GRPO of 30B-A3B on eight H100: FSDP, which shards all that is kept, fits where Megatron does not."""
    sparse = {"base": '"Qwen/Qwen3-30B-A3B"'}
    found = rlgraph.compile(ALGORITHMS / "grpo.rlf", sparse, cluster="1x8:h100-80gb", stream=False)
    assert found.plan.group_of_role("actor", "train").engine == "transformers"
    assert all(peak.fits for peak in peak_memory_by_pool(found.choice).values())


def test_a_model_of_which_two_nodes_hold_no_copy_has_a_plan() -> None:
    """GRPO of DeepSeek-V3 on 256 H100: what samples is split over more than two nodes."""
    found = rlgraph.compile(
        ALGORITHMS / "grpo.rlf", {"base": '"deepseek-ai/DeepSeek-V3"'}, cluster="32x8:h100-80gb", stream=False
    )
    assert found.plan.group_of_role("actor", "generate").mesh.replica_size > 16
    assert all(peak.fits for peak in peak_memory_by_pool(found.choice).values())


@pytest.mark.parametrize(
    ("cluster", "schedule", "code"),
    [
        ("1x1:h100", "schedule ppo\npool learn = 4 devices\nplace actor, critic on learn\n", "E0932"),
        (
            "1x8:h100",
            "schedule ppo\npool learn = 2 devices\nplace actor.train on learn(engine=megatron, tp=2, pp=1, dp=1)\n"
            "pool play = 7 devices\nplace ref on play\n",
            "E0932",
        ),
        ("1x4:h100 + 1x8:cpu", "schedule ppo\npool learn = 9 devices\nplace actor, critic on learn\n", "E0932"),
        (
            "1x4:h100 + 1x4:a100",
            "schedule ppo\npool learn = 3 devices\nplace actor on learn\npool play = 3 devices\nplace ref on play\n"
            "pool judge = 2 devices\nplace reward on judge\n",
            "E0932",
        ),
        pytest.param("1x2:l4(memory=4GiB)", None, "E0930", marks=pytest.mark.long),
    ],
)
def test_refusals(cluster: str, schedule: str | None, code: str) -> None:
    assert set(codes(cluster, schedule=schedule)) == {code}


def test_two_lines_that_say_the_same_are_one() -> None:
    pools = "schedule ppo\npool learn = 4 devices\npool play = 4 devices\n"
    apart = "place critic.train on learn(tp=2)\nplace critic.values on learn(tp=2)\n"
    one, two = (chosen("ppo", "1x8:h100", schedule=pools + line) for line in (apart, "place critic on learn(tp=2)\n"))
    assert one.plan == two.plan


LEARN = "schedule grpo\npool learn = 1 devices\nplace actor.train on learn\n"
REFUSED = {
    "a model": ("ppo", "1x1:rtx4090", None, {}),
    "a model on nodes of three": ("ppo", "1x3:l4(memory=12GiB)", None, {}),
    "models together": ("grpo", "1x1:a100-80gb(memory=37GiB)", None, {}),
    "many nodes": ("grpo", "1x8:l4", None, {"base": '"meta-llama/Llama-2-70b-hf"'}),
    "two kinds of nodes": ("grpo", "1x1:l4(memory=16GiB) + 1x1:rtx4090", None, {"base": '"Qwen/Qwen2.5-3B"'}),
    "a pool": ("grpo", "2x8:l4", LEARN, {}),
    "pools that fill the cluster": (
        "ppo",
        "1x2:rtx4090",
        None,
        {"base": '"Qwen/Qwen2.5-7B"', "judge": '"Qwen/Qwen2.5-7B"'},
    ),
    "experts": ("grpo", "1x8:rtx4090", None, {"base": '"Qwen/Qwen3-30B-A3B"'}),
}


@pytest.mark.parametrize(
    "case", few(REFUSED, "models together", "two kinds of nodes", "a pool", "pools that fill the cluster")
)
def test_what_is_proposed_can_be_run_and_is_the_least(case: str) -> None:
    """Each hint is applied: the plan that is found then needs no off-loading, and with one node less there is none."""
    name, cluster, schedule, sets = REFUSED[case]
    path = ALGORITHMS / f"{name}.rlf"
    sets = {**{key: value for key, value in SMALL.items() if f"param {key} " in path.read_text()}, **sets}

    def compiled(cluster: str, schedule: str | None) -> Compiled:
        return rlgraph.compile(path, sets, cluster=cluster, schedule=schedule, workload=LENGTHS, offload=False)

    with pytest.raises(ProgramError) as found:
        compiled(cluster, schedule)
    wrong = found.value.diagnostics
    assert {each.code for each in wrong} == {"E0933" if "together" in case else "E0930"}
    [hint] = {each.hint for each in wrong}
    if schedule:
        assert "`learn`" in hint and not missing_feature_diagnostics(compiled(cluster, None).plan)
        return
    if hint.startswith("more nodes"):
        nodes, _, rest = cluster.partition("x")
        with pytest.raises(ProgramError):
            compiled(f"{MOST_NODES}x{rest}", schedule)
        return
    [larger] = re.findall(r"--cluster '(.*?)'", hint)
    assert not missing_feature_diagnostics(compiled(larger, schedule).plan)
    nodes, _, rest = larger.partition("x")
    with pytest.raises(ProgramError):
        compiled(f"{int(nodes) - 1}x{rest}", schedule)


def test_where_the_preferred_engine_fits_nowhere_another_one_is_taken() -> None:
    """Gemma 2 9B has 16 heads, which the 6 devices of a node do not share out evenly: FSDP shares parameters."""
    sets = {"base": '"google/gemma-2-9b"'}
    found = rlgraph.compile(ALGORITHMS / "grpo.rlf", sets, cluster="2x6:rtx4090")
    assert found.plan.group_of_role("actor", "train").engine == "transformers"
    assert found.plan.group_of_role("actor", "generate").engine == "vllm"
    assert all(peak.fits for peak in peak_memory_by_pool(found.choice).values())
    pinned = "schedule grpo\npool all = 12 devices\nplace actor.train on all(engine=megatron)\n"
    with pytest.raises(ProgramError):
        rlgraph.compile(ALGORITHMS / "grpo.rlf", sets, cluster="2x6:rtx4090", schedule=pinned)


def test_a_refusal_is_of_all_engines() -> None:
    """The least is that of the engine that needs least, and the others' are beside it."""
    with pytest.raises(ProgramError) as found:
        rlgraph.compile(ALGORITHMS / "sft.rlf", {"base": '"Qwen/Qwen2.5-7B"'}, cluster="1x1:h100", offload=False)
    [refusal] = found.value.diagnostics
    said = re.search(r"at least ([\d.]+)GB on .* with (\w+) on .* \(([\d.]+)GB with (\w+) on ", refusal.message)
    assert said and float(said[1]) <= float(said[3]) and {said[2], said[4]} == {"transformers", "megatron"}


def test_products_in_another_dtype_are_planned_on_an_engine_that_has_them() -> None:
    narrow = {"actor": 'causal_lm("Qwen/Qwen2.5-0.5B", dtype="float32", autocast="bfloat16")'}
    found = rlgraph.compile(ALGORITHMS / "sft.rlf", narrow, cluster="1x2:h100", offload=False)
    assert found.plan.group_of_role("actor", "train").engine == "transformers"


def test_what_would_fit_is_searched_for_no_longer_than_was_said() -> None:
    asked = replace(chosen("grpo", "1x8:h100").choice.question, cluster=read_cluster("1x2:l4(memory=8GiB)"))
    for seconds, hint in ((0.0, "the time was over"), (inf, "it fits ")):
        refusals = no_plan_error(replace(asked, search_seconds=seconds)).diagnostics
        assert refusals and all(each.code == "E0930" and each.hint.startswith(hint) for each in refusals)


def test_ctrl_c_while_what_would_fit_is_asked_leaves_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(chosen("grpo", "1x8:h100").choice.question, cluster=read_cluster("1x2:l4(memory=8GiB)"))

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(choose, "any_plan_fits", interrupted)
    refusals = no_plan_error(asked).diagnostics
    assert refusals and all(fault.code == "E0930" and "interrupted" in fault.hint for fault in refusals)


@pytest.mark.parametrize("cluster", few(["2x8:h100-80gb", "1x2:h100-80gb"], "1x2:h100-80gb"))
def test_a_search_ends_at_the_gap_that_was_asked_for(cluster: str) -> None:
    best, near = (chosen("ppo", cluster, search_gap=gap).choice.search_result for gap in (0.0, 0.5))
    assert best.gap == 0 < near.gap <= 0.5 and near.ranges_searched < best.ranges_searched
    assert near.bound <= best.value <= near.value
    assert codes("1x8:h100", search_gap=1.0) == ["E0934"]


def test_ctrl_c_while_a_plan_is_simulated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The seconds are those of the search, and that is said."""
    choice = chosen("async_grpo", "1x8:h100-80gb").choice
    asked = iter(range(3))

    def third(*_: object) -> None:
        if next(asked, None) == 2:
            ctrl_c()

    monkeypatch.setattr(progress.ProgressLine, "show", third)
    told = plan_prediction(choice)
    assert told["seconds"] == choice.search_result.seconds and told["steady_seconds"] is None
    assert re.search(r"interrupted after .* of simulating, .*: what overlaps does not count", capsys.readouterr().err)
    assert plan_prediction(choice)["steady_seconds"] == choice.search_result.seconds


def test_a_model_of_unknown_size() -> None:
    with pytest.raises(ProgramError) as found:
        rlgraph.compile(ALGORITHMS / "grpo.rlf", {"base": '"mine/unknown"'}, cluster="1x8:h100")
    assert {each.code for each in found.value.diagnostics} == {"E0935"} and len(found.value.diagnostics) == 2
    with pytest.raises(ProgramError) as found:
        rlgraph.compile(ALGORITHMS / "ppo.rlf", {"base": '"mine/unknown"', "judge": '"mine/judge"'}, cluster="1x8:h100")
    assert "reward" in str(found.value), "nothing that is trained has a size"


def test_a_reward_model_of_unknown_size_is_as_large_as_what_is_trained() -> None:
    """With the adapters of what is trained it would have other bytes."""
    text = (ALGORITHMS / "ppo.rlf").read_text().replace("_lm(base)", "_lm(base, lora=lora(rank=8))")
    known = rlgraph.compile(text, SMALL | {"judge": SMALL["base"]}, cluster="1x2:h100")
    assumed = rlgraph.compile(text, SMALL | {"judge": '"not-trained-yet"'}, cluster="1x2:h100")
    assert [each.code for each in assumed.diagnostics] == ["W0965"] and "`critic`" in str(assumed.diagnostics[0])
    assert not known.diagnostics and assumed.choice.search_result.seconds == known.choice.search_result.seconds
    shapes = assumed.choice.question.shapes
    assert shapes["reward"] == replace(shapes["critic"], adapters=None) != shapes["critic"]


def test_a_goal_that_is_none() -> None:
    assert codes("1x8:h100", minimize="memory") == ["E0934"]


@pytest.mark.parametrize("by, requests", [("drain", 1), ("keep", 4)])
def test_rows_that_newer_weights_come_to_are_sampled_without_breaks(by: str, requests: int) -> None:
    """Then a plan is chosen by full replicas, and not by the longest row of each step."""
    text = (ALGORITHMS / "async_grpo.rlf").read_text()
    assert "step async(lag=2):" in text
    schedule = f"""schedule async_grpo
pool learn = 4 devices
pool play = 4 devices
place actor.train on learn
place actor.generate on play(engine=vllm)
refresh actor on play(by={by})
"""
    found = rlgraph.compile(
        text.replace("lag=2", "staleness=3, span=token"),
        {"base": SMALL["base"]},
        schedule=schedule,
        cluster="1x8:h100-80gb",
        workload=LENGTHS,
        stream=False,
    ).choice.problem
    [component] = [part for part in found.components if part.work == "generate"]
    assert [batch.requests for task in component.tasks for batch in found.tasks[task].batches] == [requests]
