"""Updates of two copies of a model that share Megatron's optimizer out, one process each: where new weights come from
the other copy while the next pass is computed, beside where each update waits for them.

    python benchmarks/arrival.py
    python benchmarks/arrival.py --updates 8 --times 3 --json

Columns:
    tokens    of a copy's rows in an update, one micro-batch
    waiting   seconds of an update that waits, the median of all times, both ways in turns
    later     of one that does not, its weights read after the last of several
    faster    waiting by later, the median of the ratios of neighbours

Random weights: 6 layers of 512 columns, 14 million parameters in float32. Over gloo, through the machine's memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

from rlgraph.backends.engines.base import MicroBatch, ModelCall, TrainOptions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.tokenizers import WordTokenizer
from rlgraph.ir.mesh import Mesh, make_mesh
from tests.backends.engines.ranks import Ranks

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}


def micro(tokens: int) -> MicroBatch:
    half = torch.randint(0, 60, (2, 1, tokens // 2), generator=torch.Generator().manual_seed(tokens)).tolist()
    call = ModelCall("logprobs", Sequences.from_pairs(*half))
    return MicroBatch((call,), lambda answers: (answers[0] ** 2).sum())


def job(mesh: Mesh, tokens: int, updates: int, times: int) -> list[list[float]]:
    """Seconds of an update, of either way, each time."""
    from rlgraph.backends.engines.megatron import training
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    # A layer or two at a time, as in models whose layers are larger.
    training.BUCKET = 2_000_000
    spec = ModelSpec("causal_lm", RandomWeights("llama", SIZES, WordTokenizer(" ".join(f"t{at}" for at in range(60)))))
    engines = [MegatronEngine.open(spec, mesh, later=later) for later in (False, True)]
    seconds: list[list[float]] = [[], []]
    # The first time of either makes connections.
    for turn in range(2 * (times + 1)):
        engine = engines[turn % 2]
        dist.barrier()
        began = time.perf_counter()
        for step in range(updates):
            engine.train_step([tokens], micro, TrainOptions(lr=1e-4), step)
        engine.tensors()
        dist.barrier()
        if turn >= 2:
            seconds[turn % 2].append((time.perf_counter() - began) / updates)
    return seconds


def measured(sizes: list[int], updates: int, times: int) -> list[dict[str, Any]]:
    ranks, found = Ranks(2), []
    try:
        for tokens in sizes:
            waiting, later = ranks.run(make_mesh(dp=2), job, tokens, updates, times)[0]
            ratio = statistics.median(one / other for one, other in zip(waiting, later, strict=True))
            middle = statistics.median(waiting), statistics.median(later)
            found.append({"tokens": tokens, "waiting": middle[0], "later": middle[1], "faster": ratio})
    finally:
        ranks.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--times", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measured(asked.tokens, asked.updates, asked.times)
    if asked.json:
        print(json.dumps({"what": "arrival", "rows": found}))
        return
    print(f"{'tokens':>6}  {'waiting':>8}  {'later':>8}  faster")
    for row in found:
        print(f"{row['tokens']:>6}  {row['waiting']:>7.3f}s  {row['later']:>7.3f}s  {row['faster']:.2f}x")


if __name__ == "__main__":
    main()
