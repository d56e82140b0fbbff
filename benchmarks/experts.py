"""Training and reading a small mixture of experts: all experts of a layer in one product, and one after the other as
transformers does it. Both in one process, in turns; seconds are the best of some rounds.

    python benchmarks/experts.py
    python benchmarks/experts.py --experts 64 --chosen 8 --width 128
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from rlgraph.backends.engines.base import MicroBatch, ModelCall
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.tokenizers import WordTokenizer
from rlgraph.backends.engines.transformers.engine import TransformersEngine

WORDS = WordTokenizer(" ".join(f"t{i}" for i in range(512)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--chosen", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def opened(options: argparse.Namespace, way: str) -> TransformersEngine:
    """A model with random weights, of four layers, that multiplies its experts in a way of transformers'."""
    config = {
        "hidden_size": 256,
        "intermediate_size": options.width,
        "moe_intermediate_size": options.width,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": options.experts,
        "num_experts_per_tok": options.chosen,
        "experts_implementation": way,
    }
    return TransformersEngine.open(ModelSpec("causal_lm", RandomWeights("qwen3_moe", config, WORDS), options.dtype))


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    drawn = torch.Generator().manual_seed(0)
    shape = options.rows, options.tokens
    rows = Sequences.from_lists(
        torch.randint(3, 500, shape, generator=drawn).tolist(), [[False] + [True] * (options.tokens - 1)] * options.rows
    )
    models = {"one after the other": opened(options, "eager"), "in one product": opened(options, "grouped_mm")}

    def train(model: TransformersEngine) -> None:
        model.add_gradients(
            [rows], lambda block: MicroBatch((ModelCall("logprobs", block),), lambda said: -said[0].mean())
        )
        model.clear_gradients()

    def read(model: TransformersEngine) -> None:
        with torch.no_grad():
            model.logprobs(rows)

    def read_one_token(model: TransformersEngine) -> None:
        with torch.no_grad():
            model._network.hidden_states(torch.tensor([[5]]))

    works: dict[str, Callable[[TransformersEngine], None]] = {
        "training": train,
        "reading": read,
        "one token": read_one_token,
    }
    for name, work in works.items():
        best = dict.fromkeys(models, float("inf"))
        for number in range(options.rounds + 1):
            for way, model in models.items():
                start = time.perf_counter()
                work(model)
                # The first round of each is left out.
                if number:
                    best[way] = min(best[way], time.perf_counter() - start)
        loop, grouped = best.values()
        times = ", ".join(f"{way} {1000 * seconds:.1f} ms" for way, seconds in best.items())
        print(f"{name:10}{times}, {loop / grouped:.2f} times as fast")


if __name__ == "__main__":
    main()
