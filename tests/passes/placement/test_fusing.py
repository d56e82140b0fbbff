"""Which trainings a schedule can have in one pipeline: the graph says which are independent, the plan what they share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_place import planned, shipped

from rlgraph.dsl.check import check_program_and_schedule
from rlgraph.errors import ProgramError, Source
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import FusedTraining
from rlgraph.ir.shared_pipelines import shared_stages, stage_misfit
from rlgraph.passes.placement.fused_pipelines import fused_training_faults
from rlgraph.passes.rewrites.pipeline import run_passes

MODELS = """algorithm a
model actor  = causal_lm("Qwen/Qwen2.5-7B")
model critic = value_lm("Qwen/Qwen2.5-7B")
data prompts = jsonl("p.jsonl", batch=8)
step:
    rollout = actor.generate(prompts, max_tokens=8)
"""
ACTOR = """train actor(lr=1e-3):
    minimize -mean(actor.logprobs(rollout) * {weight})
"""
CRITIC = """train critic(lr=1e-3):
    minimize mean((critic.values(rollout) - 1.0)**2)
"""
LOOP = "minibatch rollout(parts={parts}):\n"
SCHEDULE = """pool all = 4 devices
place actor.train, critic on all(engine=megatron, {mesh})
{rest}fuse {works}
"""


def inside(text: str, depth: int = 1) -> str:
    return "".join(f"{'    ' * depth}{line}\n" for line in text.splitlines())


def said(body: str, mesh: str = "pp=2", rest: str = "", works: str = "actor.train, critic.train") -> str:
    schedule = SCHEDULE.format(mesh=mesh, rest=rest, works=works)
    with pytest.raises(ProgramError) as error:
        planned(MODELS + body, schedule)
    [found] = error.value.diagnostics
    assert found.span.source.path == "a.rls" and found.span.line >= 4, "the caret is in the schedule"
    return f"{found.code}: {found.message}"


BOTH = inside(LOOP.format(parts=2)) + inside(ACTOR.format(weight="1.0") + CRITIC, 2)


def test_every_other_one_goes_the_other_way() -> None:
    plan = planned(MODELS + BOTH, SCHEDULE.format(mesh="pp=2", rest="", works="actor.train, critic.train"))
    assert plan.fused == (FusedTraining(("actor", "critic"), ("critic",)),)
    assert plan.fused_with("critic") == plan.fused[0] and plan.fused_with("ref") is None
    turned = planned(MODELS + BOTH, SCHEDULE.format(mesh="pp=4", rest="", works="critic.train, actor.train"))
    assert turned.fused == (FusedTraining(("critic", "actor"), ("actor",)),)


def test_the_schedule_that_ships_can_be_fused() -> None:
    text = "pool learn = 8 devices\npool play = 8 devices\nplace actor.generate, ref, reward on play\n"
    text += "place actor.train, critic on learn(engine=megatron, tp=4, pp=2)\nfuse critic.train, actor.train\n"
    assert planned(shipped("ppo"), text).fused


def test_one_that_reads_what_the_other_has_made_waits_for_it() -> None:
    """The critic's new values weigh the actor's loss."""
    after = inside(CRITIC) + "    v = critic.values(rollout)\n" + inside(ACTOR.format(weight="v"))
    assert said(after).startswith("E0972: the training of `actor` waits for what that of `critic` has made")


def test_a_model_is_trained_after_those_who_read_it_as_it_was() -> None:
    """The critic as it was reads what the new actor says, so it cannot be trained with it."""
    again = "    again = actor.generate(prompts, max_tokens=8)\n    w = critic.values(again)\n"
    report = "    report w = mean(w)\n"
    waits = inside(ACTOR.format(weight="1.0")) + again + inside(CRITIC) + report
    assert said(waits).startswith("E0972: the training of `critic` waits for what that of `actor` has made")


def test_trainings_of_other_steps_are_apart() -> None:
    apart = "E0972: `actor` and `critic` are not trained in the same steps"
    loops = inside(LOOP.format(parts=2)) + inside(ACTOR.format(weight="1.0"), 2)
    assert said(loops + inside(LOOP.format(parts=4)) + inside(CRITIC, 2)).startswith(apart)
    assert said(loops + inside(CRITIC)).startswith(apart)


def test_a_plan_that_was_changed_by_hand_is_asked_the_same() -> None:
    """Trainings of which one waits for the other would wait for ever."""
    text = MODELS + inside(CRITIC) + "    v = critic.values(rollout)\n" + inside(ACTOR.format(weight="v"))
    found = run_passes(check_program_and_schedule(Source("a.rlf", text)).program)[-1].program
    schedule = SCHEDULE.format(mesh="pp=2", rest="", works="").replace("fuse \n", "")
    fused = FusedTraining(("actor", "critic"), ("critic",))
    plan = replace(planned(text, schedule), fused=(fused,))
    [(message, _)] = fused_training_faults(fused, plan, found)
    assert message == "the training of `actor` waits for what that of `critic` has made"


def test_they_need_one_pipeline() -> None:
    assert said(BOTH, "tp=2").startswith("E0973: `all.megatron` trains `actor` and `critic` on one stage")


def placed(actor: str, critic: str, devices: int = 8) -> str:
    lines = "".join(
        f"place {model}.train on all(engine=megatron, {split})\n"
        for model, split in (("actor", actor), ("critic", critic))
    )
    return f"pool all = {devices} devices\n{lines}fuse actor.train, critic.train\n"


def test_models_that_are_split_unlike_lie_on_the_same_stages() -> None:
    """With copies behind each other, side by side, and both: each device is on one stage of the pipeline."""
    for actor, critic, devices in (
        ("pp=4, tp=2", "pp=2, tp=2", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("pp=4, tp=2", "pp=4, tp=1", (0, 2, 4, 6, 1, 3, 5, 7)),
        ("pp=4, tp=2", "pp=2, tp=1", (0, 2, 1, 3, 4, 6, 5, 7)),
        ("pp=4, tp=2", "pp=1, tp=1", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("pp=2, cp=2", "pp=2, tp=4", (0, 1, 4, 5, 2, 3, 6, 7)),
    ):
        plan = planned(MODELS + BOTH, placed(actor, critic))
        found = {plan.group_of_role(model, "train").devices for model in ("actor", "critic")}
        assert found == {tuple(range(8)), devices}
        assert plan.fused == (FusedTraining(("actor", "critic"), ("critic",)),)
    # The ranks of a stage of one copy are on the devices of one stage of the other model.
    for mine, other in (
        (make_mesh(pp=4, tp=2), make_mesh(dp=4, pp=2)),
        (make_mesh(dp=2, pp=4, tp=2), make_mesh(dp=4, pp=2, cp=2)),
    ):
        assert stage_misfit([mine, other]) == ""
        whole = shared_stages([mine, other])
        for split in (mine, other):
            places = whole.rank_device_positions(split)
            assert sorted(places) == list(range(split.rank_count))
            for copy in range(split.axis_size("dp")):
                stages = [
                    [whole.block_and_stage(places[r]) for r in split.ranks_at(dp=copy, pp=s)]
                    for s in range(split.axis_size("pp"))
                ]
                assert all(len({*own}) == 1 for own in stages), "the ranks of a stage are on one"
                (first, *_), *_ = stages
                assert [own[0] for own in stages] == [(first[0], first[1] + at) for at in range(len(stages))]


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (placed("pp=4", "pp=7", 28), "they share no pipeline, 4 stages do not divide 7"),
        (placed("pp=4", "pp=1, tp=4", 4), "they share no pipeline, 4 stages of 4 devices are not among 4"),
        (placed("pp=2, tp=2, cp=3", "pp=2, tp=4", 24), "they share no pipeline, 4 devices for a stage do not divide 6"),
        (
            "pool all = 4 devices\nplace actor.train on all(engine=megatron, pp=2)\npool two = 4 devices\n"
            "place critic on two(engine=megatron, pp=2)\nfuse actor.train, critic.train\n",
            "they share no pipeline, they are not on the same devices",
        ),
        (
            "pool all = 4 devices\nplace actor.train, critic on all(engine=transformers)\nfuse actor.train, critic.train\n",
            "`transformers` trains one model after the other",
        ),
    ],
)
def test_who_shares_no_pipeline_is_told(places: str, message: str) -> None:
    with pytest.raises(ProgramError) as error:
        planned(MODELS + BOTH, places)
    [found] = error.value.diagnostics
    assert found.code == "E0973" and message in found.message and found.hint
    assert found.span.line == places.count("\n") + 1, "the caret is under the line"


def test_ranks_that_a_hand_has_moved_share_no_stages() -> None:
    text = MODELS + BOTH
    plan = planned(text, placed("pp=4, tp=2", "pp=4, tp=1"))
    found = run_passes(check_program_and_schedule(Source("a.rlf", text)).program)[-1].program
    group = plan.group_of_role("critic", "train")
    moved = replace(group, devices=tuple(range(8)))
    wrong = replace(plan, groups=tuple(moved if each.name == group.name else each for each in plan.groups))
    assert not [*fused_training_faults(plan.fused[0], plan, found)]
    [(message, hint)] = fused_training_faults(plan.fused[0], wrong, found)
    assert message.endswith("their ranks do not lie on the same stages") and "make the plan anew" in hint


def test_rows_that_stream_come_at_another_time() -> None:
    body = inside(ACTOR.format(weight="1.0") + CRITIC)
    rest = "pool play = 2 devices\nplace actor.generate on play(engine=vllm)\nstream rollout(block=4)\n"
    assert said(body, rest=rest).startswith("E0973: `actor` and `critic` take rows as they come")
