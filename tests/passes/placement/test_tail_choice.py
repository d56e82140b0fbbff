"""How many rows move to how many copies, where a schedule leaves that to the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.errors import ProgramError
from rlgraph.explain.simulate import model_configs, simulate, simulate_plan
from rlgraph.ir.plan import TailMove
from rlgraph.passes.compilation import overlap_simulation
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.predict import Predictor
from rlgraph.passes.cost.workload import Workload

PROGRAM = """algorithm t
model actor  = causal_lm("Qwen/Qwen2.5-3B")
model reward = frozen(reward_lm("Qwen/Qwen2.5-7B"))
data prompts = jsonl("prompts.jsonl", batch=24)
step:
    rollout = actor.generate(prompts, max_tokens=512)
    score   = reward.score(rollout)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout) * score)
"""
SCHEDULE = """schedule t
pool all = 4 devices
place actor.train on all(engine=megatron, tp=2)
place actor.generate on all(engine=vllm, tp=1)
place reward on all(engine=transformers, dp=4)
stream rollout(block=1, deal=free)
"""
TAILED = Lengths.lognormal(mean=200, p99=500)


def made(folder: Path, line: str, lengths: Lengths = TAILED, schedule: str = SCHEDULE) -> Compiled:
    path = folder / "t.rlf"
    path.write_text(PROGRAM)
    return rlgraph.compile(path, schedule=schedule + line, cluster="1x4:a100-80gb", workload=Workload(response=lengths))


@pytest.mark.long
def test_no_other_tail_that_is_tried_is_better(folder: Path) -> None:
    chosen = made(folder, "tail rollout\n")
    found = simulate(chosen, workload=Workload(response=TAILED))
    [tail] = chosen.plan.tails

    def seconds(*tails: TailMove) -> float:
        plan = replace(found.plan, tails=tails)
        predictor = Predictor(plan, model_configs(chosen), found.cluster, chosen.target.constants)
        return simulate_plan(chosen, plan, found.cluster, predictor, Workload(response=TAILED), 2).seconds

    best = seconds(tail)
    assert best < 0.99 * seconds()
    others = [TailMove("rollout", under, on) for under in (0.1, 0.3, 0.5) for on in (1, 2, 3)]
    assert best <= 1.02 * min(seconds(other) for other in others)
    assert best < 0.99 * max(seconds(other) for other in others), "it matters which"


def test_what_is_said_is_kept(folder: Path) -> None:
    [tail] = made(folder, "tail rollout(on=3)\n").plan.tails
    assert tail.on == 3
    [tail] = made(folder, "tail rollout(under=17)\n").plan.tails
    assert tail.under == 17


def test_no_tail_where_none_saves_anything(folder: Path) -> None:
    one = SCHEDULE.replace("4 devices", "1 devices").replace("tp=2", "tp=1").replace("dp=4", "dp=1")
    alone = made(folder, "tail rollout\n", schedule=one)
    assert not alone.plan.tails
    assert [each.code for each in alone.diagnostics] == ["W0905"]
    with pytest.raises(ProgramError, match="E0970"):
        made(folder, "tail rollout(on=1)\n", schedule=one)


def test_without_a_cluster(folder: Path) -> None:
    (folder / "t.rlf").write_text(PROGRAM)
    [tail] = rlgraph.compile(folder / "t.rlf", schedule=SCHEDULE + "tail rollout\n").plan.tails
    assert (tail.under, tail.on) == (0.2, 1)


def test_an_interrupt_leaves_the_best_so_far(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, count = overlap_simulation.simulate_steps, 0

    def some(*args: object) -> object:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return run(*args)  # type: ignore[arg-type]

    with patch.object(overlap_simulation, "simulate_steps", some):
        compiled = made(folder, "tail rollout\n")
    assert "interrupted: the tail of `rollout`" in capsys.readouterr().err
    assert compiled.plan.tails == () or compiled.plan.tails[0].on == 1
