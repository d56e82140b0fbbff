"""The last rows move, on Ray: two copies of vLLM sample answers of log-normal lengths, and a reward model scores them
on the same two devices. `python benchmarks/tail.py --measured` runs it."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
sys.path[:0] = [str(HERE / "peers"), str(HERE.parent)]

SKIPPED = 1
"""Steps at the beginning: lazy initialisation."""

LONGEST = 240
MEDIAN, SIGMA = 40, 1.0
MARK = 3
"""The token that ends a prompt."""
FIRST = 8
"""The token after which an answer has one more."""

BLOCK = 4
"""An order takes some milliseconds, and a row of these models not many more."""

SHAPES = {
    "small": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4},
    "large": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 8},
}
"""3 million weights, which a core keeps at hand, so that a token takes as long for each row; 64 million, which come
from memory for each token, so that a few rows take hardly longer than one, as they do on a GPU."""

PROGRAM = f"""algorithm moving
param rows = 64
model actor  = causal_lm("actor")
model reward = frozen(reward_lm("judge"))
data prompts = jsonl("prompts.jsonl", batch=rows)
step:
    rollout = actor.generate(prompts, max_tokens={LONGEST + 1}, stop=["t{FIRST}"])
    score   = reward.score(rollout)
    report score = mean(score), length = mean(rollout.length), longest = max(rollout.length)
    report first = mean(rollout.logprobs)
    keep rollout where rollout.length < {MEDIAN // 2}
    train actor(lr=1e-12):
        minimize mean(-actor.logprobs(rollout))
"""
"""It trains, so that a step waits for the one before, and next to nothing, so that lengths stay as they are, with few
rows, since this is not measured."""

SCHEDULE = """schedule moving
pool learn = 1 devices
pool all = 2 devices
place actor.train on learn(engine=transformers)
place actor.generate on all(engine=vllm, dp=2)
place reward on all(engine=transformers, dp=2)
"""
WITHOUT = {
    "whole": "",
    "streamed": f"stream rollout(block={BLOCK})\n",
}


def measured(rows: int, steps: int, tails: list[tuple[float, int]], size: str) -> Iterator[dict[str, Any]]:
    """A run of each plan: seconds of its steps, the median."""
    import rlgraph

    plans = WITHOUT | {
        f"under {under:g}": f"stream rollout(block={BLOCK}, deal=free)\ntail rollout(under={under}, on={on})\n"
        for under, on in tails
    }
    with tempfile.TemporaryDirectory() as name, chdir(name):
        made_here(rows * steps, SHAPES[size])
        first: list[Any] = []
        for plan, lines in plans.items():
            compiled = rlgraph.compile(PROGRAM, set={"rows": rows}, schedule=SCHEDULE + lines)
            run = compiled.run(steps, threads=1, progress=False, trace="trace.json", backend="ray")
            slices = [each for each in json.loads(Path("trace.json").read_text())["traceEvents"] if each["ph"] == "X"]
            took = taken(slices)
            told = [[each[key] for key in ("length", "longest", "score", "first")] for each in run.metrics]
            first = first or told
            apart = max(
                abs(a - b) for one, other in zip(told, first, strict=True) for a, b in zip(one, other, strict=True)
            )
            yield {"plan": plan, "step_s": median(took[SKIPPED:]), "apart": apart}


def taken(slices: list[dict[str, Any]]) -> list[float]:
    """Seconds of each step from the first token until the last row is scored."""
    steps = sorted((each["ts"], each["ts"] + each["dur"]) for each in slices if each["cat"] == "step")
    works = [(each["ts"], each["ts"] + each["dur"]) for each in slices if each["cat"] in ("generate", "score")]
    found = []
    for began, ended in steps:
        inside = [(start, end) for start, end in works if began <= start < ended]
        found.append((max(end for _, end in inside) - min(start for start, _ in inside)) / 1e6)
    return found


def made_here(count: int, shape: dict[str, int]) -> None:
    """Models and prompts."""
    import random

    import torch
    import toy

    tokenizer = toy.make_tokenizer()
    actor, judge = toy.make_model(0, **shape), toy.make_judge(1, **shape)
    countdown(actor, torch)
    for model, folder in ((actor, "actor"), (judge, "judge")):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    chance = random.Random(0)
    with Path("prompts.jsonl").open("w") as file:
        for _ in range(count):
            words = [f"t{chance.randrange(FIRST + LONGEST + 1, toy.VOCAB)}" for _ in range(31)]
            print(json.dumps({"prompt": " ".join([*words, f"t{MARK}"])}), file=file)


def countdown(model: Any, torch: Any) -> None:
    """After a prompt the model says how many tokens come, by a log-normal distribution, and then counts down to the
    token that ends an answer. Its layers are computed, and add nothing."""
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        known = [MARK, *range(FIRST, FIRST + LONGEST + 1)]
        wanted = torch.full((len(known), model.config.vocab_size), -40.0, dtype=torch.float64)
        lengths = torch.arange(1, LONGEST + 1, dtype=torch.float64)
        wanted[0, FIRST : FIRST + LONGEST] = -((lengths.log() - math.log(MEDIAN)) ** 2) / (2 * SIGMA**2) - lengths.log()
        for row, token in enumerate(known[1:], 1):
            wanted[row, max(FIRST, token - 1)] = 0.0
        hidden = model.model.norm(model.model.embed_tokens(torch.tensor(known))).double()
        model.lm_head.weight.copy_(torch.linalg.lstsq(hidden, wanted).solution.T)
