"""One GRPO step on the transformers engine alone, on the toy task of peers/: samples a second, and the time
of its parts.

    python benchmarks/engine_grpo.py --threads 1
    python benchmarks/engine_grpo.py --threads 1 --profile 5
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "peers")]
import clock
import toy
from operators import Operators


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--n", type=int, default=4, help="samples a prompt")
    parser.add_argument("--new", type=int, default=32, help="tokens a sample")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--block-tokens",
        type=int,
        default=0,
        help="padded tokens in a training block; 0: the engine's choice",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", type=int, default=0, help="so many steps more, and what their operators cost")
    parser.add_argument("--out", default="", help="append the result to this file")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    import torch

    # The engine's own threads do the rest: one for each block of rows.
    torch.set_num_threads(1)
    from rlgraph.backends.engines.base import MicroBatch, Sampling, TrainOptions
    from rlgraph.backends.engines.sequences import Sequences
    from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
    from rlgraph.backends.engines.tokenizers import WordTokenizer
    from rlgraph.backends.engines.transformers.engine import TransformersEngine

    shape = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    words = WordTokenizer(" ".join(f"t{i}" for i in range(3, toy.VOCAB)))
    engine = TransformersEngine.open(
        ModelSpec("causal_lm", RandomWeights("qwen2", shape, words, options.seed)), threads=options.threads
    )
    prompts = Sequences.from_lists(toy.prompt_ids(options.prompts))
    sampling = Sampling(options.new, min_tokens=options.new)
    train = TrainOptions(options.lr, clip_norm=1.0)
    rows = options.prompts * options.n
    hit = torch.zeros(toy.VOCAB)
    hit[list(toy.TARGETS)] = 1
    counted = Operators()
    cpu_of: dict[str, list[float]] = {"generation": [], "training": []}
    spans: dict[str, list[float]] = {"generate": [], "forward": [], "backward_and_update": []}

    def step(number: int) -> float:
        start, before, counted.part = time.perf_counter(), clock.cpu_s(), "generation"
        keys = np.arange(rows, dtype=np.uint64) + np.uint64(number * rows)
        rollout = engine.generate(prompts, options.n, sampling, keys)
        generated, between, counted.part = time.perf_counter(), clock.cpu_s(), "training"
        sequences = rollout.sequences
        reward = hit[sequences.tokens[sequences.scored]].view(rows, options.new).mean(1)
        group = reward.view(options.prompts, options.n)
        advantage = ((group - group.mean(1, keepdim=True)) / (group.std(1, keepdim=True) + 1e-4)).view(rows)
        forward = [0.0]
        olds = rollout.logprobs.view(rows, options.new)

        def loss(index: torch.Tensor) -> torch.Tensor:
            begin = time.perf_counter()
            logp = engine.logprobs(sequences.take(index)).view(-1, options.new)
            ratio = (logp - olds[index]).exp()
            adv = advantage[index, None]
            value = -torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv).sum() / (rows * options.new)
            forward[0] += time.perf_counter() - begin
            return value

        blocks = engine.plan_micro_batches(sequences.lengths, options.block_tokens or None)
        engine.train_step(blocks, lambda index: MicroBatch((), lambda _: loss(index)), train, number)
        end = time.perf_counter()
        cpu_of["generation"].append(between - before)
        cpu_of["training"].append(clock.cpu_s() - between)
        spans["generate"].append(generated - start)
        spans["forward"].append(forward[0] / options.threads)
        spans["backward_and_update"].append(end - generated - forward[0] / options.threads)
        return float(reward.mean())

    times, cpu, busy, rewards = [], [], [], []
    for number in range(options.steps):
        began, used, host = time.perf_counter(), clock.cpu_s(), clock.host_busy()
        rewards.append(step(number))
        times.append(time.perf_counter() - began)
        cpu.append(clock.cpu_s() - used)
        now = clock.host_busy()
        busy.append((now[0] - host[0]) / max(1, now[1] - host[1]))
    median = clock.med(times[3:])
    result: dict[str, Any] = {
        "what": "rlgraph-engine",
        "algo": "grpo",
        "threads": options.threads,
        "samples_per_step": rows,
        "new_tokens": options.new,
        "steps": options.steps,
        "step_s": median,
        "samples_per_s": rows / median,
        "cpu_s_per_step": clock.med(cpu[3:]),
        "generate_s": clock.med(spans["generate"][3:]),
        "rest_s": median - clock.med(spans["generate"][3:]),
        "spans": {name: round(clock.med(seconds[3:]), 4) for name, seconds in spans.items()},
        "step_min": min(times[3:]),
        "step_max": max(times[3:]),
        "host_busy": clock.med(busy[3:]),
        "reward_curve": [round(reward, 4) for reward in rewards],
        "env": clock.stamp(),
    }
    print(json.dumps(result))
    if options.out:
        with open(options.out, "a") as file:
            file.write(json.dumps(result) + "\n")
    if options.profile:
        parts = {name: clock.med(seconds[3:]) for name, seconds in cpu_of.items()}
        for number in range(options.profile):
            with counted:
                step(options.steps + number)
            counted.steps += 1
        print(counted.table(parts))


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    main()
