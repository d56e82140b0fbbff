"""Plans whose rows stream or move are compared by the simulator, others than the best one by whole batches among
them."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import cache
from math import inf
from unittest.mock import patch

import pytest

import rlgraph
from benchmarks.brute_force import EQUAL, FEWER, beside_all, coarse, every, seconds
from rlgraph.api.compiled import Compiled
from rlgraph.passes.compilation import finalists, stream_blocks
from rlgraph.passes.compilation.choose_plan import plan_prediction
from rlgraph.passes.compilation.finalists import choose_by_simulation, refine_block_sizes_and_tail_moves
from rlgraph.passes.compilation.overlap_simulation import SimulationCache, streaming_key
from rlgraph.passes.compilation.stream_blocks import STEPS, with_best_block_sizes
from rlgraph.passes.compilation.target import parse_workload
from rlgraph.passes.cost.task import Task
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.placement.choose import PlacementChoice, choose_placement
from rlgraph.passes.placement.next_best_plans import ideal_streaming_objective_value, next_best_choices

pytestmark = pytest.mark.usefixtures("slow_rows")

PROGRAM = """algorithm t
model actor  = causal_lm("Qwen/Qwen2.5-0.5B")
model reward = frozen(reward_lm("Qwen/Qwen2.5-14B"))
data prompts = jsonl("prompts.jsonl", batch=16)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=512)
    score   = reward.score(rollout)
    minibatch rollout(parts=2):
        train actor(lr=1e-6):
            minimize mean(-actor.logprobs(rollout) * score)
"""
APART = "1x1:a100-80gb + 1x1:h100-80gb"
ROWS = parse_workload("100", "mean=100,p99=250")


@cache
def made(lines: str, cluster: str = APART) -> Compiled:
    return rlgraph.compile(PROGRAM, schedule=f"schedule t\n{lines}", cluster=cluster, workload=ROWS)


@pytest.mark.long
def test_nothing_that_could_be_chosen_is_faster() -> None:
    """Of all plans, with all blocks. `python benchmarks/brute_force.py --streams` does so for random programs."""
    with coarse():
        choice = made.__wrapped__("stream rollout\n").choice
        plans = list(every(choice, FEWER))
        _, own, alone = beside_all(choice, plans, STEPS)
    assert len(plans) > 100 and own <= EQUAL
    assert alone > 3 * EQUAL, "or it shows nothing"


@pytest.mark.parametrize("lines", ["stream rollout\n", "stream rollout(deal=free)\ntail rollout\n"])
def test_a_plan_that_is_slower_by_whole_batches_wins_with_blocks(lines: str) -> None:
    """By whole batches one pool is the best in which one copy samples; where rows stream, two pools are, and with a
    tail two copies. What is proven stays proven of whole batches."""
    found = made(lines).choice
    alone = choose_placement(replace(found.question, read_separately=()))
    assert alone

    def shape(choice: PlacementChoice) -> tuple[int, int]:
        return len(choice.search_result.blocks), choice.plan.group_of_role("actor", "generate").mesh.axis_size("dp")

    assert shape(alone) == (1, 1) and shape(found) == ((1, 2) if "tail" in lines else (2, 1))
    assert seconds(found) < 0.98 * seconds(refine_block_sizes_and_tail_moves(alone))
    assert found.search_result.seconds > alone.search_result.seconds
    assert found.search_result.bound <= alone.search_result.seconds and found.search_result.gap > 0
    told = plan_prediction(found)
    assert told["seconds"] == found.simulated_step_s < told["in_turn_seconds"] == found.search_result.seconds
    assert not found.question.streamed_tables and found.plan.blocks


UNLIKE = PROGRAM.replace("0.5B", "1.5B").replace("14B", "7B").replace("batch=16", "batch=64").replace("n=2", "n=4")
"""Where one of two devices is faster than the other."""


@cache
def unlike(lines: str) -> PlacementChoice:
    rows = parse_workload("100", "mean=100,p99=400")
    return rlgraph.compile(UNLIKE, schedule=f"schedule t\n{lines}", cluster=APART, workload=rows).choice


@pytest.mark.long
def test_with_a_tail_several_copies_sample_that_would_not_without() -> None:
    """Their shares are even, so that by whole batches, and as rows come, the faster device samples alone. With a tail
    the last rows of the slower one move."""
    moved, apart = unlike("stream rollout(deal=free)\ntail rollout\n"), unlike("stream rollout(deal=free)\n")
    counts = [each.plan.group_of_role("actor", "generate").mesh.axis_size("dp") for each in (moved, apart)]
    assert counts == [2, 1] and moved.plan.tails
    assert moved.simulated_step_s and apart.simulated_step_s and moved.simulated_step_s < 0.95 * apart.simulated_step_s


@pytest.mark.long
def test_blocks_are_the_best_beside_the_tail() -> None:
    """Without a tail larger ones are."""
    found = unlike("stream rollout(deal=free)\ntail rollout\n")
    bare = replace(found, plan=replace(found.plan, blocks=(), free=(), tails=()))
    once = with_best_block_sizes(bare, SimulationCache(2))
    assert (
        streaming_key(refine_block_sizes_and_tail_moves(bare)) == streaming_key(found)
        and found.plan.blocks < once.plan.blocks
    )


def test_blocks_that_are_said_are_compared_too() -> None:
    found = made("stream rollout(block=2)\n")
    assert found.plan.blocks == (("rollout", 2),) and len(found.choice.search_result.blocks) == 2


def test_what_is_said_of_pools_is_kept() -> None:
    lines = "pool all = 1 devices\nplace actor, reward on all\nstream rollout\n"
    [block] = made(lines, "1x2:a100-80gb").choice.search_result.blocks
    assert block.name == "all"


def test_others_share_pools_in_other_ways() -> None:
    """The best of each, as if rows were taken as they come; a question that is searched for has them in its order."""
    first = made("stream rollout\n").choice
    choice = choose_placement(replace(first.question, read_separately=(), streamed_tables=("rollout",)))
    assert choice
    found = [choice, *next_best_choices([choice], 3, inf)]
    assert len({each.search_result.blocks for each in found}) == 4
    values = [each.search_result.value for each in found]
    assert values == sorted(values) and values[0] == ideal_streaming_objective_value(
        replace(choice, question=first.question)
    )


def test_what_cannot_be_better_is_not_simulated() -> None:
    first = made("stream rollout\n").choice
    late = replace(first.search_result, options=first.search_result.options)
    slower = replace(first, search_result=late, plan=replace(first.plan, cluster="slower"))
    asked = []
    with (
        patch.object(finalists, "ideal_streaming_objective_value", lambda choice: 3 * first.simulated_step_s),
        patch.object(finalists, "simulate_choice", lambda choice, *_: asked.append(choice) or first),
    ):
        assert choose_by_simulation(first, slower) is first
    assert asked == [first]


def test_ctrl_c_takes_the_best_that_was_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """Amid the blocks of the second plan: the first one is there, and no other is tried."""
    old, plans = stream_blocks._BlockSearch.simulated_step_seconds, []

    def interrupted(self: stream_blocks._BlockSearch, rows: int | None) -> float:
        if self.choice.plan.groups not in plans:
            plans.append(self.choice.plan.groups)
        if len(plans) == 2:
            signal.raise_signal(signal.SIGINT)
        return old(self, rows)

    with patch.object(stream_blocks._BlockSearch, "simulated_step_seconds", interrupted):
        found = made.__wrapped__("stream rollout\n", APART)
    assert "interrupted: the block of `rollout`" in capsys.readouterr().err
    assert found.plan.groups == plans[0] and len(plans) == 2 and found.choice.simulated_step_s


def laid(step: str, *streamed: str) -> dict[str, set[str]]:
    """For each task of a step what it waits for."""
    text = PROGRAM.partition("step:")[0] + "step:\n" + step
    program = rlgraph.compile(text).program
    found: tuple[Task, ...] = phase_tasks(program, main_phase(program), Workload(), {}, streamed)
    return {each.name: {found[number].name for number in each.waits_for} for each in found}


def test_what_takes_rows_as_they_come_begins_with_them() -> None:
    """And what needs all rows waits for all that was done with them."""
    step = "    rollout = actor.generate(prompts, max_tokens=512)\n    score = reward.score(rollout)\n"
    added = step + "    train actor(lr=1e-6):\n        minimize mean(-actor.logprobs(rollout) * score)\n"
    whole, pieces = laid(added), laid(added, "rollout")
    assert whole["score"] == {"rollout"} and {"score", "rollout"} <= whole["train actor"]
    assert pieces["rollout"] == whole["rollout"] and pieces["score"] == pieces["train actor"] == whole["rollout"]
    sliced = step + "    minibatch rollout(parts=2):\n        train actor(lr=1e-6):\n"
    sliced += "            minimize mean(-actor.logprobs(rollout) * score)\n"
    assert {"score", "rollout"} <= laid(sliced, "rollout")["train actor"]
    assert laid(added, "other") == whole
