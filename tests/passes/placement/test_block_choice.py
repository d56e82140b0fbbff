"""How many rows travel together, where a schedule leaves that to the plan."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.backends.sim.steady_state import simulate_steps
from rlgraph.ir.schedule import StreamLine
from rlgraph.passes.compilation import stream_blocks
from rlgraph.passes.compilation.overlap_simulation import SimulationCache, make_simulator
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.placement.place import BLOCK
from rlgraph.passes.placement.search.progress import ProgressLine

PROGRAM = """algorithm t
model actor  = causal_lm("Qwen/Qwen2.5-1.5B")
model reward = frozen(reward_lm("Qwen/Qwen2.5-7B"))
data prompts = jsonl("prompts.jsonl", batch=48)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=512)
    score   = reward.score(rollout)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout) * score)
"""
APART = """schedule t
pool all   = 2 devices
pool judge = 2 devices
place actor on all
place reward on judge
"""
LONG = Lengths.lognormal(mean=200, p99=500)


def made(folder: Path, line: str, schedule: str = APART, cluster: str | None = "1x4:a100-80gb") -> Compiled:
    path = folder / "t.rlf"
    path.write_text(PROGRAM)
    return rlgraph.compile(
        path, schedule=schedule + line, cluster=cluster, workload=cluster and Workload(response=LONG)
    )


def test_no_other_block_that_is_tried_is_better(folder: Path) -> None:
    found = made(folder, "stream rollout\n")
    [(table, rows)] = found.plan.blocks
    assert table == "rollout" and not found.diagnostics

    def seconds(size: int | None) -> float:
        blocks_ = () if size is None else ((table, size),)
        return simulate_steps(
            make_simulator(replace(found.choice, plan=replace(found.plan, blocks=blocks_))), stream_blocks.STEPS
        ).mean_step_seconds

    taken = {size: seconds(size) for size in (None, 2, 8)}
    assert taken[rows] == min(taken.values()) < 0.97 * taken[None]
    # What is said is kept.
    assert made(folder, "stream rollout(block=24)\n").plan.blocks == (("rollout", 24),)
    assert made(folder, "stream rollout(deal=free)\n").plan.free in ((), ("rollout",))


def test_a_table_that_gets_its_block_leaves_the_others_theirs(folder: Path) -> None:
    found = made(folder, "stream rollout(block=24)\n").choice
    kept = replace(found, plan=replace(found.plan, blocks=(("other", 6), ("rollout", 24))))
    search = stream_blocks._BlockSearch(
        kept, StreamLine("rollout"), ProgressLine("choosing blocks"), SimulationCache(stream_blocks.STEPS)
    )
    assert search.choice_with_candidate(8).plan.blocks == (("other", 6), ("rollout", 8))
    assert search.choice_with_candidate(None).plan.blocks == (("other", 6),)


def test_where_no_block_saves_anything_the_batch_stays_whole(folder: Path) -> None:
    """All is done on one device, one work after the other."""
    schedule = "schedule t\npool all = 1 devices\nplace actor, reward on all\n"
    found = made(folder, "stream rollout\n", schedule, "1x1:h200-141gb")
    assert found.plan.blocks == () and found.plan.free == ()
    [warning] = found.diagnostics
    assert warning.code == "W0905" and "`rollout` stays a whole batch" in warning.message


def test_without_a_cluster_it_is_a_number(folder: Path) -> None:
    assert made(folder, "stream rollout\n", cluster=None).plan.blocks == (("rollout", BLOCK),)


def test_a_table_with_a_tail_streams_in_any_case(folder: Path) -> None:
    schedule = APART.replace("actor on all", "actor.train on all\nplace actor.generate on all(engine=vllm, tp=1)")
    found = made(folder, "stream rollout(deal=free)\ntail rollout(under=0.2, on=1)\n", schedule)
    assert [table for table, _ in found.plan.blocks] == ["rollout"] and found.plan.free == ("rollout",)
    assert found.plan.tail_of("rollout")


def test_ctrl_c_takes_what_was_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[int | None] = []
    old = stream_blocks._BlockSearch.simulated_step_seconds

    def second(self: stream_blocks._BlockSearch, rows: int | None) -> float:
        if len(asked) == 2:
            signal.raise_signal(signal.SIGINT)
        asked.append(rows)
        return old(self, rows)

    with patch.object(stream_blocks._BlockSearch, "simulated_step_seconds", second):
        found = made(folder, "stream rollout\n")
    assert asked[:2] == [None, 2]
    assert found.plan.blocks in ((), (("rollout", 2),))
    assert "interrupted: the block of `rollout` is the best that was tried" in capsys.readouterr().err
