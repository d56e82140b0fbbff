"""Why a plan, and what if: what is told is what the search finds, and it adds up."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.api.summary import summary_text
from rlgraph.backends.sim.steady_state import simulate_steps
from rlgraph.catalog.clusters.devices import known_devices
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.errors import ProgramError
from rlgraph.explain.critical_path import BOUNDS, KINDS, critical_path, seconds_by_kind
from rlgraph.explain.evaluated_change import COARSE, evaluate_change
from rlgraph.explain.explain import Explanation, explain
from rlgraph.explain.placement_strategies import OVER, placement_strategies, pool_components
from rlgraph.explain.simulate import simulate
from rlgraph.explain.variants import ONE_STEP_OFF, next_better_device, possible_variants
from rlgraph.explain.whatif import Sweep, what_if
from rlgraph.passes.compilation.overlap_simulation import make_simulator
from rlgraph.passes.compilation.stream_blocks import STEPS, streaming_gains
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.lengths import parse_lengths
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.placement.choose import SPARE, candidate_partitions, choose_placement
from tests.suites import few

pytestmark = pytest.mark.usefixtures("slow_rows")

ROOT = Path(rlgraph.__file__).parent.parent

MODEL = """random("qwen2", hidden_size=1024, intermediate_size=4096, num_hidden_layers=8, num_attention_heads=8,
                    num_key_value_heads=8, tokenizer=bytes())"""

PPO = f"""
algorithm small
model actor   = causal_lm({MODEL})
model critic  = value_lm({MODEL})
model ref     = frozen(actor)
data prompts  = jsonl("prompts.jsonl", batch=512)
step:
    rollout  = actor.generate(prompts, max_tokens=512)
    old_logp = actor.logprobs(rollout)
    ref_logp = ref.logprobs(rollout)
    value    = critic.values(rollout)
    adv      = whiten(gae(rollout.end - 0.1 * k1(old_logp, ref_logp), value, 1.0, 0.95))
    minibatch rollout(parts=4, epochs=2):
        train critic(lr=1e-5):
            minimize mean((critic.values(rollout) - (adv + value))**2)
        train actor(lr=1e-6):
            minimize -mean(exp(actor.logprobs(rollout) - old_logp) * adv)
    report length = mean(rollout.length)
"""

ALONE = f"""
algorithm alone
model actor  = causal_lm({MODEL})
data prompts = jsonl("prompts.jsonl", batch=64)
step:
    rollout = actor.generate(prompts, max_tokens=128)
    train actor(lr=1e-6):
        minimize -mean(actor.logprobs(rollout))
    report length = mean(rollout.length)
"""

SMALL = "2x2:a100-80gb(memory=8GiB)"


@cache
def compiled(program: str, cluster: str, minimize: str = "time") -> Compiled:
    return rlgraph.compile(program, cluster=cluster, minimize=minimize)


@pytest.fixture(scope="module", name="ppo")
def _ppo() -> Compiled:
    return compiled(PPO, SMALL)


@pytest.fixture(scope="module")
def alone() -> Compiled:
    return compiled(ALONE, SMALL)


@pytest.fixture(scope="module", name="told")
def _told(ppo: Compiled) -> Explanation:
    return explain(ppo)


# What the step goes to


CLUSTERS = ["1x1:a100-80gb", "1x4:a100-80gb", SMALL, "1x2:a100-80gb(memory=6GiB) + 1x2:h20-96gb"]


@pytest.mark.parametrize(
    "program, cluster",
    few(
        product([PPO, ALONE], CLUSTERS),
        (PPO, CLUSTERS[0]),
        (PPO, SMALL),
        (ALONE, SMALL),
        (ALONE, CLUSTERS[3]),
    ),
    ids=[f"{name}-{cluster}" for name in ("ppo", "alone") for cluster in CLUSTERS],
)
def test_the_critical_path_is_the_step(program: str, cluster: str) -> None:
    choice = compiled(program, cluster).choice
    for strategy in placement_strategies(choice):
        if strategy.found is None:
            continue
        path = critical_path(choice.problem, strategy.found)
        assert path[0].start == 0
        assert sum(each.seconds for each in path) == pytest.approx(strategy.found.seconds, rel=1e-9)
        for before, after in zip(path, path[1:], strict=False):
            assert after.start == pytest.approx(before.start + before.seconds, rel=1e-9)
        for each in path:
            assert each.kind in KINDS and set(each.parts) <= set(BOUNDS)
            assert sum(each.parts.values()) == pytest.approx(each.seconds, rel=1e-6, abs=1e-9), each.name
        assert sum(seconds_by_kind(path).values()) == pytest.approx(strategy.found.seconds)


OVERLAPPING = ["1x1:a100-80gb", "1x4:a100-80gb", "1x2:a100-80gb + 1x2:h20-96gb ~ 10Mb/s, 1ms"]


@pytest.mark.parametrize("cluster", few(OVERLAPPING, OVERLAPPING[0], OVERLAPPING[2]))
def test_where_steps_overlap_the_path_is_what_holds_them_up(cluster: str) -> None:
    """The work of the fullest pool, or a step from its weights to its update, as long as all that are under way."""
    compiled = rlgraph.compile(ALONE.replace("step:", "step async(lag=1):"), cluster=cluster)
    choice = compiled.choice
    path = critical_path(choice.problem, choice.search_result)
    whole = sum(each.seconds for each in path)
    assert whole in (pytest.approx(choice.search_result.seconds), pytest.approx(2 * choice.search_result.seconds))
    assert path[0].start == 0
    for before, after in zip(path, path[1:], strict=False):
        assert after.start >= before.start + before.seconds * (1 - 1e-9)
    under_way = "of which 2 are under way" in str(explain(compiled))
    assert under_way == (whole > 1.5 * choice.search_result.seconds)


def test_one_step_off_is_what_such_a_program_takes(told: Explanation) -> None:
    older = same_as_async(PPO, SMALL, told)
    assert not any(each.name == ONE_STEP_OFF for each in possible_variants(older.choice))


def test_one_step_off_with_the_same_plan_is_simulated() -> None:
    plain = rlgraph.compile(ALONE, cluster=SMALL, schedule=APART, stream=False)
    [other] = [each for each in possible_variants(plain.choice) if each.name == ONE_STEP_OFF]
    older = rlgraph.compile(ALONE.replace("step:", "step async(lag=1):"), cluster=SMALL, schedule=APART, stream=False)
    assert older.plan == plain.plan, "or the test shows nothing"
    simulated = older.plan_file_sections["predicted"]["seconds"]
    assert evaluate_change(plain.choice, other).seconds == simulated != older.choice.search_result.seconds


@pytest.mark.long
def test_one_step_off_is_what_such_a_program_takes_on_a_node() -> None:
    cluster, program = "1x8:h100-80gb", GRPO.read_text("utf-8").replace("batch=512", "batch=64")
    older = same_as_async(program, cluster, explain(rlgraph.compile(program, cluster=cluster)))
    assert not any(each.name == ONE_STEP_OFF for each in explain(older).changes)


def same_as_async(program: str, cluster: str, told: Explanation) -> Compiled:
    """Gives the program whose weights are a step old."""
    [change] = [each for each in told.changes if each.name == ONE_STEP_OFF]
    older = rlgraph.compile(program.replace("step:", "step async(lag=1):"), cluster=cluster)
    # Of a search that ends 3% from the best, but the simulator may like one of its plans better.
    # Models sleep where that saves 1% at least, and the bound is of plans without.
    predicted = older.plan_file_sections["predicted"]
    assert 0.99 * predicted["bound_seconds"] <= change.seconds <= 1.03 * predicted["seconds"]
    assert change.saves > 0.1 and change not in told.most_helpful
    assert f"{ONE_STEP_OFF} (`step async(lag=1)`, another algorithm) would save" in str(told)
    return older


@pytest.mark.long
def test_one_step_off_is_told_beside_what_the_step_takes() -> None:
    """Of ReMax the search lays out one after the other what a copy samples together."""
    found = rlgraph.compile(ALGORITHMS / "remax.rlf", cluster="2x8:h100-80gb")
    told = found.plan_file_sections["predicted"]
    assert told["seconds"] < 0.95 * told["in_turn_seconds"]
    [change] = [each for each in explain(found).changes if each.name == ONE_STEP_OFF]
    assert change.beside == told["seconds"]
    assert change.saves == pytest.approx(1 - change.seconds / told["seconds"])


def test_off_loading_is_told() -> None:
    """Three models that fit on a device only one after the other."""
    choice = rlgraph.compile(PPO, cluster="1x1:a100-80gb(memory=7GiB)").choice
    assert any(option.offload for option in choice.search_result.options)
    path = critical_path(choice.problem, choice.search_result)
    assert any(each.parts.get("offload") for each in path)


# Other ways to share devices


def test_the_ways_are_what_they_are_called(ppo: Compiled) -> None:
    names = [component.name for component in ppo.choice.problem.components]
    found = {
        strategy.name: {frozenset(names[number] for number in own) for own in pool_components(strategy.found.blocks)}
        for strategy in placement_strategies(ppo.choice)
        if strategy.found and strategy.name != "what was chosen"
    }
    everything = {"actor", "actor.generate", "critic", "ref"}
    assert found["all colocated"] == {frozenset(everything)}
    assert found["split"] == {frozenset(everything - {"critic"}), frozenset({"critic"})}
    assert found["standalone"] == {frozenset({"actor", "actor.generate"}), frozenset({"critic"}), frozenset({"ref"})}
    assert found["disaggregated"] == {frozenset({"actor.generate"}), frozenset(everything - {"actor.generate"})}


@pytest.mark.parametrize("minimize", few(["time", "cost"], "time"))
def test_no_way_beats_the_chosen_plan(minimize: str) -> None:
    choice = compiled(PPO, SMALL, minimize).choice
    found = placement_strategies(choice)
    assert [strategy.found for strategy in found if strategy.chosen] == [choice.search_result]
    others = [strategy.found for strategy in found if not strategy.chosen and strategy.found]
    assert others and all(each.value >= choice.search_result.value for each in others)


@pytest.mark.parametrize(
    ("program", "cluster", "way", "pools"),
    few(
        [
            (PPO, "1x2:a100-80gb(memory=7GiB)", "standalone", "3 pools on 2 devices"),
            (ALONE, "1x1:a100-80gb", "disaggregated", "2 pools on 1 devices"),
        ],
        ALONE,
    ),
    ids=["several models", "one model"],
)
def test_a_way_that_does_not_fit_says_what_lacks(program: str, cluster: str, way: str, pools: str) -> None:
    told = explain(rlgraph.compile(program, cluster=cluster))
    refused = {each.name: each.refused for each in told.alternatives if each.seconds is None}
    assert refused[way] == f"does not fit: {pools}"
    assert f"does not fit: {pools}" in str(told)


def test_pools_that_are_too_small_are_told() -> None:
    # Adam's states of a model need two devices: two trained models with a pool each need four of them.
    large = PPO.replace("num_hidden_layers=8", "num_hidden_layers=64")
    [split] = [
        each
        for each in placement_strategies(rlgraph.compile(large, cluster="1x2:a100-80gb(memory=18GB)").choice)
        if each.name == "split"
    ]
    assert split.refused == "does not fit: 4 devices are needed (2 for `actor`, `ref`, 2 for `critic`), and there are 2"


def test_one_model_has_two_ways() -> None:
    told = explain(compiled(ALONE, SMALL))
    assert {each.name for each in told.alternatives} == {"all colocated", "disaggregated"}


@pytest.mark.parametrize(
    ("program", "first", "last", "name"),
    few(
        [
            (PPO, "place actor, ref on a", "place critic on b(tp=1, pp=1, dp=1)", "split"),
            (ALONE, "place actor.train on a", "place actor.generate on b(tp=2)", "disaggregated"),
        ],
        ALONE,
    ),
    ids=["several models", "one model"],
)
def test_a_schedule_is_kept(program: str, first: str, last: str, name: str) -> None:
    # With 8 GiB models would sleep if nothing were said, which changes do not try.
    roomy = SMALL.replace("8GiB", "16GiB")
    schedule = re.findall(r"algorithm (\w+)", program)[0]
    lines = [f"schedule {schedule}", "pool a = 2 devices", "pool b = 2 devices", first, last]
    told = explain(rlgraph.compile(program, schedule="\n".join(lines) + "\n", cluster=roomy))
    refused = {each.name: each.refused for each in told.alternatives if each.seconds is None}
    assert refused["all colocated"] == "the schedule says otherwise"
    [way] = [each for each in told.alternatives if each.name == name]
    assert way.chosen
    without = {
        f"`{last}` left out": "\n".join(lines[:-1]) + "\n",
        "a schedule without pools and placements": None,
    }
    for less, otherwise in without.items():
        [change] = [change for change in told.changes if change.name == less]
        free = rlgraph.compile(program, schedule=otherwise, cluster=roomy).choice.search_result.seconds
        assert change.seconds * (1 - COARSE) <= free <= change.seconds / (1 - SPARE)
        assert change.saves > COARSE, "or the test shows nothing"


# Changes


@pytest.mark.parametrize("number", few(range(4), 0))
def test_a_change_saves_what_is_told(ppo: Compiled, told: Explanation, number: int) -> None:
    """Applied as a user would apply it, from the text that is told."""
    before = told.seconds
    tried = [change for change in told.changes if ":" in change.detail or change.name == "half as long answers"]
    assert len(tried) == 4
    change = sorted(tried, key=lambda each: each.name)[number]
    if ":" in change.detail:
        after = rlgraph.compile(PPO, cluster=change.detail).choice.search_result.seconds
    else:
        half = [each for each in possible_variants(ppo.choice) if each.name == change.name][0].question.workload
        after = rlgraph.compile(PPO, cluster=SMALL, workload=half).choice.search_result.seconds
    assert change.saves == pytest.approx(1 - change.seconds / before)
    assert change.seconds * (1 - COARSE) <= after <= change.seconds / (1 - SPARE), change.name


APART = """schedule alone
pool learn = 2 devices
pool play = 2 devices
place actor.train on learn
place actor.generate on play(engine=vllm)
"""


def test_what_streaming_saves_is_what_the_line_saves() -> None:
    """And a table that streams already is not told of."""
    plain = rlgraph.compile(ALONE, cluster=SMALL, schedule=APART, stream=False)
    [change] = [each for each in plain.explain().changes if "stream" in each.name]
    streamed = rlgraph.compile(ALONE, cluster=SMALL, schedule=APART + change.name.strip("`") + "\n")
    after, before = (simulate_steps(make_simulator(each.choice), STEPS).mean_step_seconds for each in (streamed, plain))
    assert (change.seconds, change.beside) == (after, before)
    assert change.saves == 1 - after / before > 0.05
    # Other devices may help more, and are not to be had by a line.
    told = replace(
        plain.explain(), changes=(*[replace(change, name=f"{n} more", saves=0.9, said=False) for n in "123"], change)
    )
    assert told.most_helpful[-1] is change and len(told.most_helpful) == 4
    assert not [each for each in streamed.explain().changes if "stream" in each.name]
    assert not list(streaming_gains(plain.choice, 0.0))


def test_what_can_only_help_never_harms(ppo: Compiled, told: Explanation) -> None:
    saves = {change.name: change.saves for change in told.changes}
    helping = [other.name for other in possible_variants(ppo.choice) if other.helps]
    assert {"one more node", "a network twice as fast", "twice the memory on each device"} <= set(helping)
    assert all(saves[name] >= 0 for name in helping)
    assert saves["one more node"] > 0.01, "or the test shows nothing"
    assert saves["one node less"] < 0
    assert list(saves.values()) == sorted(saves.values(), reverse=True)


def test_what_was_chosen_would_still_do(ppo: Compiled) -> None:
    """Where a coarse search finds nothing better."""
    [more] = [other for other in possible_variants(ppo.choice) if other.name == "one more node"]
    kept = evaluate_change(ppo.choice, more, set())
    assert (kept.seconds, kept.saves) == (ppo.choice.search_result.seconds, 0.0)
    assert evaluate_change(ppo.choice, replace(more, helps=False), set()).seconds is None


def test_half_as_long_answers(ppo: Compiled) -> None:
    [half] = [each for each in possible_variants(ppo.choice) if each.name == "half as long answers"]
    workload = half.question.workload
    assert workload.response is not None
    assert workload.response.mean == pytest.approx(Workload().answer_lengths(512).mean / 2)


ALGORITHMS = ROOT / "rlgraph" / "algorithms"
GRPO = ALGORITHMS / "grpo.rlf"


@pytest.mark.long
def test_what_the_host_takes_is_told_and_a_pool_of_cpus_takes_it_over() -> None:
    """On many devices half of GRPO's step is one process that calls the reward function."""
    cluster, pool = "64x8:h100-80gb", "schedule grpo\npool judges = 64 cpus\nplace correct on judges\n"
    made = rlgraph.compile(GRPO, cluster=cluster)
    told, seconds = explain(made), made.choice.search_result.seconds
    host = default_constants("gpu").host
    calls = 8192 * host.function_row + host.node
    assert told.host_work.function_seconds == {"correct": pytest.approx(calls)} and calls > 0.4 * seconds
    [line] = [line for line in str(told).splitlines() if line.startswith("the host works")]
    assert "of it in `correct`: `place correct on judges`, a pool of cpus" in line and line in summary_text(made)
    # What it would save is what is found with that schedule; the function is not told then.
    [change] = [each for each in told.changes if "on cpus of their own" in each.name]
    apart = rlgraph.compile(GRPO, schedule=pool, cluster=cluster)
    assert change.seconds == pytest.approx(apart.choice.search_result.seconds, rel=COARSE)
    assert change.saves == pytest.approx(1 - apart.choice.search_result.seconds / seconds, abs=COARSE)
    told = explain(apart)
    assert "of it in" not in str(told) and not told.host_work.function_seconds
    # The simulator says the same of its plan.
    found = simulate(made)
    assert found.host_seconds(calls=True) == pytest.approx(calls, rel=0.01)
    assert "the host calls functions for 8.2 s of a step" in str(found)
    assert "the host calls functions" not in str(simulate(apart))


def test_devices_of_the_table_are_better() -> None:
    table = {name: listed.device for name, listed in known_devices().items()}
    found = {
        name: better.device.name if (better := next_better_device(device)) else None for name, device in table.items()
    }
    assert (
        found["a100-40gb"] == "a100-80gb" and found["a100-80gb"] == "h100-80gb" and found["h100-80gb"] == "h200-141gb"
    )
    assert next_better_device(replace(table["a100-80gb"], memory=64 * 10**9)).device.name == "h100-80gb", (
        "it is to be faster"
    )
    assert found["b200-180gb"] == "gb300-278gb" and found["gb300-278gb"] is None
    assert found["cpu"] is None


def test_a_change_keeps_what_was_said_of_links() -> None:
    text = "1x2:a100-80gb + 1x2:h20-96gb ~ 1GB/s, 5ms"
    compiled = rlgraph.compile(ALONE, cluster=text)
    for other in possible_variants(compiled.choice):
        cluster = other.question.cluster
        assert (cluster.between, cluster.between_latency) == (1e9, 5e-3)
        assert read_cluster(cluster.text) == cluster


def test_the_largest_cluster_gets_no_larger(ppo: Compiled) -> None:
    question = replace(ppo.choice.question, cluster=read_cluster("16384x8:a100-80gb"))
    names = [other.name for other in possible_variants(replace(ppo.choice, question=question))]
    assert "one node less" in names and "one more node" not in names


# Shown


def test_the_text(told: Explanation) -> None:
    text = str(told)
    lines = text.splitlines()
    assert len(lines) <= 45 and max(map(len, lines)) <= 150
    kind, seconds = next(iter(told.seconds_by_kind.items()))
    assert f"what the step goes to: {kind} {seconds / told.seconds:.0%}" in text
    assert f"{kind} is {seconds / told.seconds:.0%} of the step; what would help most:" in text
    assert any("one more node (3x2:a100-80gb(memory=8GiB)) would save" in line for line in lines)
    for each in told.alternatives:
        assert any(line.startswith(each.name) for line in lines)
    assert len(told.most_helpful) <= 3 and all(change.saves > 0.01 for change in told.most_helpful)


def test_nothing_helps() -> None:
    """What the host does takes no less time on more devices."""
    tiny = 'random("qwen2", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, tokenizer=bytes())'
    text = ALONE.replace(MODEL, tiny).replace("batch=64", "batch=1").replace("max_tokens=128", "max_tokens=1")
    told = explain(rlgraph.compile(text, cluster="1x1:b200-180gb"))
    assert told.most_helpful == [] and "nothing that was tried saves more than 1%:" in str(told)


def test_plain_data(told: Explanation) -> None:
    data = json.loads(json.dumps(told.to_json(), allow_nan=False))
    assert data["seconds"] == told.seconds and data["cluster"] == SMALL
    assert sum(data["goes_to"].values()) == pytest.approx(data["seconds"])
    assert [each["name"] for each in data["changes"]] == [change.name for change in told.changes]
    less = explain(rlgraph.compile(ALONE, cluster="2x1:a100-80gb(memory=5.2GB)"))
    assert [each["saves"] for each in less.to_json()["changes"] if each["name"] == "one node less"] == [None]


def test_the_picture(told: Explanation) -> None:
    bundle = told._repr_mimebundle_()
    assert set(bundle) == {"image/svg+xml", "text/html", "text/plain"}
    svg = ET.fromstring(bundle["image/svg+xml"])
    tips = [tip.text or "" for tip in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert any(tip.startswith("all colocated, training:") for tip in tips)
    assert bundle["text/html"].endswith("</pre>")


# What if


def swept(compiled: Compiled, text: str) -> Sweep:
    found = what_if(compiled, text)
    json.dumps(found.to_json(), allow_nan=False)
    ET.fromstring(found.to_svg())
    return found


def test_more_devices_are_never_slower(alone: Compiled) -> None:
    found = swept(alone, "devices=2, 4,6,8,16")
    seconds = [point.seconds for point in found.points]
    assert all(seconds) and seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 1.5 * seconds[-1]
    assert found.points[1].seconds == pytest.approx(alone.choice.search_result.seconds, rel=1e-12), (
        "these are the devices it has"
    )
    assert [point.devices for point in found.points][0] == 2
    nodes = swept(alone, "nodes=1,2,3,4,8")
    assert [point.seconds for point in nodes.points] == seconds


def test_a_sweep_adds_up(ppo: Compiled) -> None:
    [point] = swept(ppo, "devices=4").points
    price = known_devices()["a100-80gb"].device.price
    assert point.price == pytest.approx(point.seconds * point.devices * price / 3600)
    assert point.tokens_per_second == pytest.approx(point.tokens / point.seconds)
    assert point.price_per_million == pytest.approx(point.price / point.tokens * 1e6)
    # 512 rows with a prompt of 256 tokens and an answer of less than that on average.
    assert 512 * 384 < point.tokens < 512 * 512


def test_each_parameter_changes_what_it_says(alone: Compiled) -> None:
    def seconds(text: str) -> list[float]:
        return [point.seconds or float("inf") for point in swept(alone, text).points]

    slow, fast = seconds("device=a100-80gb,H100")
    assert fast < slow
    small, large = seconds("memory=4GiB,80GB")
    assert large < small
    narrow, broad = seconds("network=10MB/s,400Gb/s")
    assert broad < narrow
    short, long = seconds("prompt_tokens=128,1024")
    assert short < long
    mean, fixed = seconds("response_tokens=mean=50,p99=400; 512")
    assert mean < fixed
    assert seconds("response_tokens=mean=50,p99=400") == [mean], "one value with a comma"
    given = Workload(response=parse_lengths("512"))
    assert fixed == pytest.approx(rlgraph.compile(ALONE, cluster=SMALL, workload=given).choice.search_result.seconds)


def test_kept_rows() -> None:
    """Half as many that are kept are twice as many batches."""
    again = """    collect prompts(64):
        rollout = actor.generate(prompts, max_tokens=128)
        keep prompts where rollout.length > 3
"""
    text = ALONE.replace("    rollout = actor.generate(prompts, max_tokens=128)\n", again)
    half, whole = swept(rlgraph.compile(text, cluster=SMALL), "kept=0.5,1").points
    assert half.seconds > whole.seconds * 1.1


def test_what_does_not_fit(ppo: Compiled) -> None:
    found = swept(ppo, "memory=2.5GB,8GiB")
    assert [point.seconds is None for point in found.points] == [True, False]
    lines = str(found).splitlines()
    assert lines[0].startswith("small, compiled for 2x2") and lines[2].split()[:2] == ["memory", "seconds"]
    assert lines[3].split()[0] == "2.5GB" and lines[3].endswith("does not fit")
    assert found.to_json()["points"][0]["fits"] is False


def test_devices_beside_other_groups() -> None:
    compiled = rlgraph.compile(ALONE, cluster="1x2:a100-80gb + 1x2:h20-96gb")
    one, two = swept(compiled, "devices=4,6").points
    assert one.seconds == pytest.approx(compiled.choice.search_result.seconds) and two.seconds <= one.seconds
    with pytest.raises(ProgramError, match="2 devices are no whole nodes"):
        what_if(compiled, "devices=2")


def test_without_a_cluster() -> None:
    compiled = rlgraph.compile(ALONE)
    for ask in (compiled.explain, lambda: compiled.what_if("devices=4")):
        with pytest.raises(ProgramError, match="E0895.*without a cluster no plan is chosen"):
            ask()


@pytest.mark.parametrize(
    ("text", "under", "said"),
    [
        ("devics=3", "devics", "did you mean `devices`?"),
        ("=3", "=", "what is to be changed is missing"),
        ("devices=", "", "a value of `devices` is missing"),
        ("devices=2,,4", ",", "a value of `devices` is missing"),
        ("devices=2, 3", "3", "a node has 2: 4 for example"),
        ("nodes=0", "0", "a whole number, at least 1"),
        ("nodes=100000", "100000", "at most 131,072"),
        ("device=h10", "h10", "did you mean `h100`?"),
        ("device=cpu", "cpu", "cannot take the place of"),
        ("memory=80", "80", "has no unit"),
        ("network=0GB/s", "0GB/s", "more than 0"),
        ("kept=1.5", "1.5", "up to 1"),
        ("response_tokens=12; mean=9", "mean=9", "p99"),
        ("prompt_tokens=nowhere.txt", "nowhere.txt", "nowhere.txt"),
    ],
)
def test_wrong_values(ppo: Compiled, text: str, under: str, said: str) -> None:
    with pytest.raises(ProgramError) as error:
        what_if(ppo, text)
    [told] = error.value.diagnostics
    assert told.code == "E0936" and said in told.render()
    assert told.span.covered_text == under


def test_all_searches_have_one_limit(ppo: Compiled) -> None:
    """What is not reached does not count as what does not fit."""
    told, found = explain(ppo, 0.0), what_if(ppo, "nodes=2,4", 0.0)
    assert {each.refused for each in told.alternatives if not each.chosen} == {OVER}
    assert told.changes and all(each.over and each.seconds is None for each in told.changes)
    assert f"{OVER} before these were searched: {told.changes[0].name}" in str(told)
    assert [(each.over, each.seconds) for each in found.points] == [(True, None)] * 2
    assert [point["fits"] for point in found.to_json()["points"]] == [None, None]
    assert all("not fit" not in text and OVER in text for text in (str(told), str(found)))


def test_the_best_plan_is_the_same_after_all(ppo: Compiled) -> None:
    """Explaining changes nothing of what was chosen."""
    again = choose_placement(replace(ppo.choice.question))
    assert again is not None and again.plan == ppo.choice.plan
    assert len(candidate_partitions(ppo.choice.problem, ppo.choice.question)) == 15, "partitions of four parts"
