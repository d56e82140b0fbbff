"""Which trainings a schedule can have in one pipeline: the graph says which are independent, the plan what they share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_place import planned, shipped

from rlgraph.dsl.check import check_all
from rlgraph.errors import ProgramError, Source
from rlgraph.ir.plan import Fused
from rlgraph.passes.pipeline import run_passes
from rlgraph.placement.fusing import faults_of

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
    assert plan.fused == (Fused(("actor", "critic"), ("critic",)),)
    assert plan.fused_with("critic") == plan.fused[0] and plan.fused_with("ref") is None
    turned = planned(MODELS + BOTH, SCHEDULE.format(mesh="pp=4", rest="", works="critic.train, actor.train"))
    assert turned.fused == (Fused(("critic", "actor"), ("actor",)),)


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
    found = run_passes(check_all(Source("a.rlf", text)).program)[-1].program
    schedule = SCHEDULE.format(mesh="pp=2", rest="", works="").replace("fuse \n", "")
    fused = Fused(("actor", "critic"), ("critic",))
    plan = replace(planned(text, schedule), fused=(fused,))
    [(message, _)] = faults_of(fused, plan, found)
    assert message == "the training of `actor` waits for what that of `critic` has made"


def test_they_need_one_pipeline() -> None:
    assert said(BOTH, "tp=2").startswith("E0973: `all.megatron` trains `actor` and `critic` on one stage")


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            "place actor.train on all(engine=megatron, pp=2)\nplace critic on all(engine=megatron, pp=4)\n",
            "they share no pipeline",
        ),
        (
            "place actor.train on all(engine=megatron, pp=2)\npool two = 4 devices\n"
            "place critic on two(engine=megatron, pp=2)\n",
            "they share no pipeline",
        ),
        ("place actor.train, critic on all(engine=transformers)\n", "`transformers` trains one model after the other"),
    ],
)
def test_who_shares_no_pipeline_is_told(places: str, message: str) -> None:
    with pytest.raises(ProgramError) as error:
        planned(MODELS + BOTH, f"pool all = 4 devices\n{places}fuse actor.train, critic.train\n")
    [found] = error.value.diagnostics
    assert found.code == "E0973" and message in found.message


def test_rows_that_stream_come_at_another_time() -> None:
    body = inside(ACTOR.format(weight="1.0") + CRITIC)
    rest = "pool play = 2 devices\nplace actor.generate on play(engine=vllm)\nstream rollout(block=4)\n"
    assert said(body, rest=rest).startswith("E0973: `actor` and `critic` take rows as they come")
