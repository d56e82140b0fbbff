"""Placement: what a schedule pins, what the defaults make of the rest, and what is said where that cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import rlgraph
from rlgraph.backends.enginespec.registry import engine
from rlgraph.dsl.check import check_program_and_schedule
from rlgraph.dsl.parse import parse
from rlgraph.dsl.schedule import check_schedule
from rlgraph.errors import ProgramError, Source
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import HOST, Group, ModelHolding, Plan, Pool, Role
from rlgraph.ops.nodes import mixture_weights
from rlgraph.passes.compilation.default_plan import read_model_shapes
from rlgraph.passes.placement.place import Machine, place
from rlgraph.passes.resharding.group_edges import group_edges
from rlgraph.passes.rewrites.pipeline import run_passes
from rlgraph.user_code.files import SearchFolders
from tests import golden

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
ALL = ("transformers", "megatron", "vllm")
PROGRAM = """\
algorithm a
{models}
data prompts = jsonl("p.jsonl", batch=8)
step:
    rollout = actor.generate(prompts, max_tokens=8)
    train actor(lr=1e-3):
        minimize -mean(actor.logprobs(rollout) * rollout.length)
"""
TINY = """\
model actor = causal_lm(random("qwen2", hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, tokenizer=bytes()){options})"""


def planned(text: str, schedule: str = "", machine: Machine = Machine(), installed: tuple[str, ...] = ALL) -> Plan:  # noqa: B008
    """The plan of a program; `schedule` without its head."""
    found = check_program_and_schedule(Source("a.rlf", text))
    program = run_passes(found.program)[-1].program
    where = found.schedule
    if schedule:
        source = Source("a.rls", f"schedule {program.name}\n{schedule}")
        where = check_schedule(parse(source), program, source, found.scope)
    return place(program, where, machine, read_model_shapes(program, SearchFolders(Path())), installed)


def tiny(schedule: str = "", installed: tuple[str, ...] = ALL, options: str = "", machine: Machine = Machine()) -> Plan:  # noqa: B008
    return planned(PROGRAM.format(models=TINY.format(options=options)), schedule, machine, installed)


def shipped(name: str) -> str:
    return (ALGORITHMS / f"{name}.rlf").read_text("utf-8")


def roles(plan: Plan) -> dict[str, str]:
    return {f"{role.model}.{role.operation}": role.group for role in plan.roles}


# The whole


def test_the_plan_of_the_schedule_that_ships() -> None:
    schedule = (ALGORITHMS / "ppo.rls").read_text("utf-8").partition("schedule ppo\n")[2]
    assert planned(shipped("ppo"), schedule) == Plan(
        "ppo",
        (Pool(HOST, 0), Pool("learn", 8), Pool("play", 8)),
        (
            Group(HOST, HOST, HOST, make_mesh(), ()),
            Group(
                "learn.megatron", "learn", "megatron", make_mesh(dp=1, pp=2, tp=4), tuple(range(8)), ("actor", "critic")
            ),
            Group("play.vllm", "play", "vllm", make_mesh(dp=4, tp=2), tuple(range(8)), ("actor",)),
            Group("play.megatron", "play", "megatron", make_mesh(dp=8), tuple(range(8)), ("ref", "reward")),
        ),
        (
            # The old log-probabilities are the sampler's own: no group computes them anew.
            Role("actor", "generate", "play.vllm"),
            Role("actor", "train", "learn.megatron"),
            Role("critic", "values", "learn.megatron"),
            Role("critic", "train", "learn.megatron"),
            Role("ref", "logprobs", "play.megatron"),
            Role("reward", "score", "play.megatron"),
        ),
        (
            ("actor", "learn.megatron"),
            ("critic", "learn.megatron"),
            ("ref", "play.megatron"),
            ("reward", "play.megatron"),
        ),
        (("rollout", 64),),
    )


@pytest.mark.parametrize("path", sorted(ALGORITHMS.glob("*.rlf")), ids=lambda path: path.stem)
@pytest.mark.parametrize("installed", [ALL, ("transformers",)], ids=["all", "transformers"])
def test_every_algorithm_without_a_schedule(path: Path, installed: tuple[str, ...]) -> None:
    plan = planned(path.read_text("utf-8"), machine=Machine(8), installed=installed)
    assert plan.pools == (Pool(HOST, 0), Pool("all", 8))
    # Nobody says how to split a model: each device has a whole one.
    assert all(group.mesh == make_mesh(dp=8) for group in plan.groups if group.name != HOST)
    assert len({group.engine for group in plan.groups}) == len(plan.groups)
    generating = {role.group for role in plan.roles if role.operation in ("generate", "interact")}
    training = {role.group for role in plan.roles if role.operation == "train"}
    # A mixture of models is sampled where both are, by transformers.
    checked = check_program_and_schedule(Source("a.rlf", path.read_text("utf-8"))).program
    mixes = any(mixture_weights(node) for phase in checked.phases for node in phase.graph.walk())
    samples = "transformers" if mixes or "vllm" not in installed else "vllm"
    assert generating <= {f"all.{samples}"}
    assert training == {f"all.{'megatron' if 'megatron' in installed else 'transformers'}"}
    assert dict(plan.owners).keys() == {role.model for role in plan.roles}


# Defaults


def test_one_device_if_nothing_is_said() -> None:
    assert [(g.engine, g.devices) for g in tiny().groups] == [(HOST, ()), ("vllm", (0,)), ("megatron", (0,))]


@pytest.mark.parametrize(
    ("installed", "options", "kind", "expected"),
    [
        (("transformers",), "", "gpu", {"transformers"}),
        (("transformers", "vllm"), "", "gpu", {"transformers", "vllm"}),
        (("transformers", "megatron"), "", "gpu", {"transformers", "megatron"}),
        (ALL, ', dtype="float64"', "gpu", {"transformers"}),
        (ALL, ', dtype="bfloat16"', "gpu", {"megatron", "vllm"}),
        # On a CPU vLLM has no attention for heads so small.
        (ALL, ', dtype="bfloat16"', "cpu", {"transformers"}),
    ],
)
def test_defaults_take_the_engines_that_are_there_and_fit(
    installed: tuple[str, ...], options: str, kind: str, expected: set[str]
) -> None:
    plan = tiny(installed=installed, options=options, machine=Machine(2, kind))  # type: ignore[arg-type]
    assert {group.engine for group in plan.groups} - {HOST} == expected


def test_an_architecture_that_only_transformers_knows() -> None:
    model = 'model actor = causal_lm(random("gpt2", n_embd=32, n_layer=2, n_head=2, tokenizer=bytes()))'
    assert set(roles(planned(PROGRAM.format(models=model))).values()) == {"all.transformers"}


def test_a_split_that_only_an_engine_can_do_names_it_even_if_it_is_not_there() -> None:
    schedule = "pool one = 4 devices\nplace actor.train on one(pp=2)\nplace actor.generate on one(tp=2)\n"
    plan = tiny(schedule, installed=("transformers",))
    assert roles(plan) == {"actor.generate": "one.transformers", "actor.train": "one.megatron"}
    assert plan.group("one.transformers").mesh == make_mesh(dp=2, tp=2)


def test_work_that_is_not_placed_stays_with_the_model() -> None:
    schedule = (
        "pool play = 2 devices\npool learn = 4 devices\nplace actor.train on learn(engine=megatron, tp=2, pp=2)\n"
    )
    found = roles(planned(shipped("async_grpo"), schedule))
    assert found == {
        "actor.generate": "learn.vllm",
        "actor.logprobs": "learn.megatron",
        "actor.train": "learn.megatron",
    }


def test_scoring_stays_where_the_model_trains_and_generating_if_it_is_the_same_engine() -> None:
    schedule = "pool one = 4 devices\nplace actor.train on one(engine=transformers, dp=2)\n"
    home, sampler = "one.transformers", "one.vllm"
    found = roles(planned(shipped("async_grpo"), schedule))
    assert found == {"actor.generate": sampler, "actor.logprobs": home, "actor.train": home}
    alone = planned(shipped("async_grpo"), schedule, installed=("transformers",))
    assert set(roles(alone).values()) == {home}


def test_a_model_that_is_shared_out_generates_with_whole_copies() -> None:
    schedule = "pool one = 4 devices\nplace actor.train on one(engine=transformers, fsdp=2)\n"
    plan = planned(shipped("async_grpo"), schedule, installed=("transformers",))
    meshes = {role.operation: plan.group(role.group).mesh for role in plan.roles if role.model == "actor"}
    assert meshes == {
        "generate": make_mesh(dp=4),
        "logprobs": make_mesh(dp=2, fsdp=2),
        "train": make_mesh(dp=2, fsdp=2),
    }


def test_transformers_splits_layers_where_it_can() -> None:
    """And says of the model and the line why it cannot."""
    schedule = "pool one = 4 devices\nplace actor.train on one(engine=transformers, {})\n"
    assert tiny(schedule.format("tp=2")).group_of_role("actor", "train").mesh == make_mesh(dp=2, tp=2)
    assert tiny(schedule.format("tp=2, fsdp=2")).group_of_role("actor", "train").mesh == make_mesh(fsdp=2, tp=2)
    with pytest.raises(ProgramError) as found:
        tiny(schedule.format("tp=4"))
    [said] = found.value.diagnostics
    assert said.code == "E0911" and "key-value heads" in said.message and said.span.covered_text.split("=")[0] == "tp"
    other = PROGRAM.format(models=TINY.format(options="").replace('"qwen2"', '"gpt2"'))
    with pytest.raises(ProgramError) as found:
        planned(other, schedule.format("tp=2"))
    assert [said.code for said in found.value.diagnostics] == ["E0911"]


def test_how_a_model_is_worked_with_is_said_where_it_is_placed() -> None:
    """Of what is trained, recomputation and how parameters are gathered; attention of all that the line places."""
    how = "recompute=true, attention=eager, fsdp=4, gather=update"
    schedule = (
        f"pool one = 4 devices\nplace actor.train, ref on one(engine=transformers, {how})\n"
        "place actor.generate on one(engine=vllm)\n"
    )
    plan = planned(shipped("grpo"), schedule)
    group = "one.transformers"
    assert plan.holdings == (
        ModelHolding("actor", group, recompute=True, attention="eager", gather="update"),
        ModelHolding("ref", group, attention="eager"),
    )


def test_a_model_has_one_way_to_compute_attention() -> None:
    schedule = (
        "pool one = 4 devices\nplace actor.train, actor.generate on one(engine=transformers, attention=eager)\n"
        "place actor.logprobs on one(engine=transformers, attention=sdpa)\n"
    )
    with pytest.raises(ProgramError) as found:
        planned(shipped("async_grpo"), schedule)
    [said] = found.value.diagnostics
    assert said.code == "E0905" and said.span.covered_text == "attention=sdpa"


def test_a_copy_that_is_not_placed_is_in_the_pool_of_its_original_and_others_in_the_first() -> None:
    schedule = "pool play = 2 devices\npool learn = 4 devices\nplace actor, critic on learn\n"
    plan = planned(shipped("ppo"), schedule)
    assert plan.owner("ref").pool == "learn"
    assert plan.owner("reward").pool == "play"


def test_devices_that_a_split_leaves_free() -> None:
    group = tiny("pool one = 8 devices\nplace actor.train on one(engine=megatron, tp=2, dp=1)\n").group_of_role(
        "actor", "train"
    )
    assert (group.mesh, group.devices) == (make_mesh(tp=2), (0, 1))


# Groups


def test_work_with_one_pool_engine_and_mesh_is_done_by_one_group() -> None:
    schedule = "pool one = 4 devices\nplace actor, critic, ref, reward on one(engine=transformers)\n"
    plan = planned(shipped("ppo"), schedule)
    assert [(group.name, group.models) for group in plan.groups[1:]] == [
        ("one.transformers", ("actor", "critic", "ref", "reward"))
    ]
    assert plan.syncs() == ()


def test_groups_of_one_engine_with_other_meshes_have_names_of_their_own() -> None:
    schedule = (
        "pool one = 4 devices\nplace actor.train on one(engine=megatron, tp=4)\nplace critic on one(engine=megatron, tp=2, pp=2)\n"
        "place ref, reward on one(engine=megatron, dp=1)\nplace actor.generate on one(engine=vllm)\n"
    )
    plan = planned(shipped("ppo"), schedule)
    assert {group.name: str(group.mesh) for group in plan.groups[1:]} == {
        "one.vllm": "dp4",
        "one.megatron.tp4": "tp4",
        "one.megatron.tp2pp2": "pp2 x tp2",
        "one.megatron.one": "1 device",
    }
    assert plan.syncs() == (("actor", "one.megatron.tp4", "one.vllm"),)


def test_a_model_that_only_follows_another_is_where_that_one_is() -> None:
    models = f"{TINY.format(options='')}\nmodel smooth = actor"
    plan = planned(PROGRAM.format(models=models) + "    update smooth from actor(ema=0.9)\n")
    assert plan.owner("smooth") == plan.owner("actor")
    assert "smooth" in plan.owner("actor").models


# Edges


def test_the_values_that_travel() -> None:
    schedule = (ALGORITHMS / "ppo.rls").read_text("utf-8").partition("schedule ppo\n")[2]
    program = run_passes(check_program_and_schedule(Source("ppo.rlf", shipped("ppo"))).program)[-1].program
    found = [(edge.value, edge.source, edge.target) for edge in group_edges(program, planned(shipped("ppo"), schedule))]
    assert found == [
        ("prompts", HOST, "play.vllm"),
        ("rollout", "play.vllm", "play.megatron"),
        ("rollout", "play.vllm", "learn.megatron"),
        ("score", "play.megatron", HOST),
        ("rollout.end", "play.vllm", HOST),
        ("old_logp", "play.vllm", HOST),
        ("ref_logp", "play.megatron", HOST),
        ("value", "learn.megatron", HOST),
        ("target", HOST, "learn.megatron"),
        ("critic.loss.rollout.token.size", HOST, "learn.megatron"),
        ("old_logp", "play.vllm", "learn.megatron"),
        ("adv_w", HOST, "learn.megatron"),
        ("actor.loss.rollout.token.size", HOST, "learn.megatron"),
    ]


# What cannot be


def said(text: str) -> str:
    """What is said about models and a schedule, between which stands `## schedule`."""
    models, _, schedule = text.partition("\n## schedule\n")
    try:
        compiled = rlgraph.compile(PROGRAM.format(models=models), name="a.rlf", schedule=f"schedule a\n{schedule}\n")
    except ProgramError as error:
        return "\n\n".join(d.render() for d in error.diagnostics)
    return "\n\n".join(d.render() for d in compiled.diagnostics)


def test_what_is_said_about_schedules_that_models_do_not_fit(request: pytest.FixtureRequest) -> None:
    path = Path(__file__).parent / "wrong" / "placements.txt"
    golden.check(path, said, update=request.config.getoption("--update-golden"))


def test_generation_on_the_devices_of_training_gets_the_ranks_that_find_most_of_their_weights_there() -> None:
    """HybridFlow's figure 8: training with 4 tensor ranks, generation with 2, in groups {1,3}, {2,4}, {5,7}, {6,8}."""
    schedule = "pool all = 8 devices\nplace actor.train on all(engine=megatron, tp=4)\nplace actor.generate on all(engine=vllm, tp=2)\n"
    plan = planned(
        PROGRAM.format(models=TINY.format(options="").replace("num_key_value_heads=2", "num_key_value_heads=4")),
        schedule,
    )
    assert plan.group_of_role("actor", "train").devices == tuple(range(8))
    play = plan.group_of_role("actor", "generate")
    assert [[play.devices[rank] + 1 for rank in ranks] for ranks in play.replica_ranks()] == [
        [1, 3],
        [2, 4],
        [5, 7],
        [6, 8],
    ]


JUDGED = """\
algorithm a
{models}
data prompts = jsonl("p.jsonl", batch=8)
func correct = python("r.py:correct")
func style   = python("r.py:style")
step:
    rollout = actor.generate(prompts, max_tokens=8)
    score   = correct(rollout) + style(rollout)
    train actor(lr=1e-3):
        minimize -mean(actor.logprobs(rollout) * score)
"""


def test_who_takes_new_weights_while_it_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    text = PROGRAM.format(models=TINY.format(options="")).replace("step:", "step async(staleness=1, span=token):")
    apart = "pool one = 2 devices\npool two = 2 devices\nplace actor.train on one\nplace actor.generate on two\n"
    held = {by: planned(text, f"{apart}refresh actor on two(by={by})").holdings for by in ("drain", "reread", "keep")}
    assert held == {
        "drain": (),
        "reread": (ModelHolding("actor", "two.vllm", reread=True),),
        "keep": (ModelHolding("actor", "two.vllm", keep=True),),
    }
    monkeypatch.setattr(
        "rlgraph.passes.placement.unfollowed_lines.spec_of", lambda name: replace(engine(name), rereads=False)
    )
    planned(text, f"{apart}refresh actor on two")
    with pytest.raises(ProgramError, match="E0918.*`vllm` takes no new weights"):
        planned(text, f"{apart}refresh actor on two(by=reread)")


def test_functions_on_a_pool_of_cpus() -> None:
    text = JUDGED.format(models=TINY.format(options=""))
    plan = planned(text, "pool judges = 6 cpus\nplace correct on judges\n", Machine(2), ("transformers",))
    assert plan.pools == (Pool(HOST, 0), Pool("all", 2), Pool("judges", 0, cpus=6)), "no devices are taken for them"
    judges = Group("judges.python", "judges", "python", make_mesh(dp=6), tuple(range(6)), code=("correct",))
    assert plan.groups[-1] == judges
    assert plan.group_of_code("correct") == judges and plan.group_of_code("style") is None
    assert plan.group_for("", "call", "style").name == HOST
    program = run_passes(check_program_and_schedule(Source("a.rlf", text)).program)[-1].program
    sent = {(edge.value, edge.source, edge.target) for edge in group_edges(program, plan)}
    assert ("rollout", "all.transformers", "judges.python") in sent
    assert any(edge[1:] == ("judges.python", HOST) for edge in sent), "and the scores go to the host"
