"""The search beside brute force over the simulator: all plans of small problems are stepped in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlgraph
from benchmarks.brute_force import coarse, every, simulated
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.workload import Workload
from tests.suites import few

ONLINE = """algorithm small
model actor  = causal_lm("Qwen/Qwen2.5-1.5B")
data prompts = jsonl("prompts.jsonl", batch=16)
func correct = python("rlgraph.rewards:exact_match", over=row)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=256)
    score   = correct(rollout)
    minibatch prompts(parts=2):
        train actor(lr=1e-6):
            minimize mean(-actor.logprobs(rollout) * score)
"""
COLLECTED = """algorithm small
model actor  = causal_lm("Qwen/Qwen2.5-1.5B")
data prompts = jsonl("prompts.jsonl", batch=16)
func correct = python("rlgraph.rewards:exact_match", over=row)
step:
    collect prompts(16, rest=drop):
        rollout = actor.generate(prompts, n=4, max_tokens=256)
        hit     = correct(rollout)
        keep prompts where std(hit, by=prompts) > 0
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout) * hit)
"""
WITH_A_REFERENCE = (
    ONLINE.replace("data", "model ref = frozen(actor)\ndata", 1)
    .replace("    score ", "    old = ref.logprobs(rollout)\n    score ", 1)
    .replace("* score)", "* score + old * 0)")
)
SUPERVISED = """algorithm small
model actor = causal_lm("Qwen/Qwen2.5-1.5B")
data texts  = jsonl("prompts.jsonl", batch=64)
step:
    answer = encode(texts.prompt, texts.answer)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(answer))
"""
READ_AGAIN = ONLINE + "    report moved = mean(actor.logprobs(rollout) - rollout.logprobs)\n"
SLOW = "1x2:h100-80gb + 1x1:h200-141gb ~ 2Gb/s, 100ms"
ROWS = Workload(Lengths((200.0,)), Lengths.lognormal(mean=100, p99=250), kept=0.5)

PROBLEMS = {
    "one device": (ONLINE, "1x1:h100-80gb"),
    "one device, with a reference": (WITH_A_REFERENCE, "1x1:h100-80gb"),
    "an uneven node": (ONLINE, "1x3:h100-80gb"),
    "uneven nodes": (SUPERVISED, "2x3:rtx4090"),
    "a slow link": (ONLINE, SLOW),
    "optimizers shared out": (ONLINE, "1x2:rtx4090"),
    "read by whom one likes": (READ_AGAIN, "1x1:h100-80gb + 1x1:h200-141gb ~ 2Gb/s, 100ms"),
    "collect": (COLLECTED, "1x2:h100-80gb"),
    "a slow link, one step off": (ONLINE.replace("step:", "step async(lag=1):"), SLOW),
}


@pytest.mark.parametrize("name", few(PROBLEMS, "one device, with a reference", "uneven nodes", "optimizers shared out"))
def test_no_plan_is_simulated_to_be_faster(name: str, tmp_path: Path) -> None:
    """`benchmarks/brute_force.py` does the same for random ones."""
    text, cluster = PROBLEMS[name]
    program = tmp_path / "small.rlf"
    program.write_text(text)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    with coarse():
        choice = rlgraph.compile(program, cluster=cluster, workload=ROWS, stream=False).choice
        tried = [simulated(each) for each in every(choice)]
        assert max(tried) > 1.05 * min(tried)
        assert simulated(choice) <= 1.03 * min(tried)
