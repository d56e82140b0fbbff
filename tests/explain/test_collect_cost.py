"""What `collect` costs: what follows it works on the rows that were asked for, of however many batches."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlgraph
from rlgraph.explain.simulate import simulate
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.cost.workload import Workload

TEXT = """algorithm picky
model actor  = causal_lm("Qwen/Qwen2.5-1.5B")
data prompts = jsonl("prompts.jsonl", batch=64)
func correct = python("rlgraph.rewards:exact_match", over=row)
step:
    collect prompts(OPTIONS):
        rollout = actor.generate(prompts, n=4, max_tokens=1024)
        hit     = correct(rollout)
        keep prompts where std(hit, by=prompts) > 0
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout) * hit)
"""

SCHEDULE = """schedule picky
pool learn = 4 devices
pool play  = 4 devices
place actor.train on learn(engine=megatron)
place actor.generate on play(engine=vllm)
"""

CLUSTER = "1x8:h100-80gb"


@pytest.mark.parametrize("options", ["64", "32, rest=drop", "64, ahead=2, rest=drop"])
def test_compiling_and_simulating_agree(options: str, tmp_path: Path) -> None:
    program = tmp_path / "picky.rlf"
    program.write_text(TEXT.replace("OPTIONS", options))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    workload = Workload(Lengths((300.0,)), Lengths.lognormal(mean=400, p99=1000), kept=0.5)
    made = rlgraph.compile(program, schedule=SCHEDULE, cluster=CLUSTER, workload=workload)
    found = simulate(made, CLUSTER, steps=4, workload=workload)
    assert found.seconds == pytest.approx(made.plan_file_sections["predicted"]["seconds"], rel=0.03)
    [trained] = [task for task in phase_tasks(made.program, main_phase(made.program), workload) if task.op == "train"]
    wanted = 4 * int(options.split(",")[0])
    assert trained.batches[0].rows == wanted == found.trained / found.steps
