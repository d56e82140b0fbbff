"""What the host does for a decoding step of our vLLM engine, and for each row of it: milliseconds and microseconds.

    python benchmarks/vllm_host.py
    python benchmarks/vllm_host.py --rows 1 512

On a GPU the host does this for the next step while the device works (`async_scheduling`), so that the longer of the
two counts; on a CPU, where it is measured, one after the other. What a device does is taken off: the model, the
logits, what is chosen of them. Seconds are CPU time, so that a busy machine changes them little; medians of the steps
are shown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from rlgraph.backends.engines.records import Sampling
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.tokenizers import ByteTokenizer
from rlgraph.backends.engines.vllm import sampling
from rlgraph.backends.engines.vllm.engine import VllmEngine

SMALL = {
    **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"num_key_value_heads": 1, "max_position_embeddings": 256},
}
TOKENS = 64


class Spent:
    """CPU seconds of functions, which are replaced by themselves with a clock around them."""

    def __init__(self) -> None:
        self.each: list[float] = []

    def time(self, owner: Any, name: str) -> None:
        """Take the seconds of each call."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            begun = time.thread_time()
            try:
                return inner(*args, **options)
            finally:
                self.each.append(time.thread_time() - begun)

        setattr(owner, name, timed)

    def taken(self) -> float:
        """The median of a call, from here on with others."""
        median = statistics.median(self.each)
        self.each.clear()
        return median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256])
    options = parser.parse_args()
    torch.set_num_threads(1)
    step, model, chosen = Spent(), Spent(), Spent()
    step.time(VllmEngine, "_step")
    model.time(GPUModelRunner, "_model_forward")
    chosen.time(sampling, "draw_tokens")
    weights = RandomWeights("qwen2", SMALL, ByteTokenizer())
    engine = VllmEngine.open(ModelSpec("causal_lm", weights), rows=max(options.rows), row_tokens=TOKENS + 8)
    how, found = Sampling(max_tokens=TOKENS, min_tokens=TOKENS), list[tuple[int, float]]()
    print("rows  ms a step  us a row")
    for rows in options.rows:
        engine.generate(Sequences.from_lists([[1, 2, 3]] * rows), 1, how, np.arange(rows, dtype=np.uint64))
        found.append((rows, step.taken() - model.taken() - chosen.taken()))
        few, least = found[0]
        each = (found[-1][1] - least) / (rows - few) if rows > few else 0.0
        print(f"{rows:4d}  {1e3 * found[-1][1]:9.2f}  {1e6 * each:8.1f}", flush=True)


if __name__ == "__main__":
    main()
