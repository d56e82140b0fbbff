"""A program that trains a model of a few hundred weights in a folder of its own: milliseconds a step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """\
algorithm tiny

param n      = 4
param lr     = 1e-3

model actor  = causal_lm(random("qwen2", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, tokenizer=chars("abcd>")))
data prompts = jsonl("prompts.jsonl", batch=2)
func score   = python("rewards.py:score")

step:
    rollout = actor.generate(prompts, n=n, max_tokens=4)
    reward  = score(rollout)
    adv     = center(reward, prompts)
    train actor(lr=lr):
        minimize -mean(actor.logprobs(rollout) * adv)
    report reward = mean(reward)
"""

REWARDS = """\
def score(completions, **columns):
    return [float(answer.count("a")) for answer in completions]
"""

FAILS_AT_THIRD = """\
calls = 0

def score(completions, **columns):
    global calls
    calls += 1
    if calls > 3:  # the first one is on a made-up answer
        raise RuntimeError("the judge is asleep")
    return [0.0 for _ in completions]
"""


def write_tiny(folder: Path, program: str = PROGRAM, rewards: str = REWARDS) -> Path:
    """`tiny.rlf` with its data and rewards."""
    (folder / "prompts.jsonl").write_text("".join(f'{{"prompt": "{letter}>"}}\n' for letter in "abcd"))
    (folder / "rewards.py").write_text(rewards)
    path = folder / "tiny.rlf"
    path.write_text(program)
    return path


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "rlgraph", *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
