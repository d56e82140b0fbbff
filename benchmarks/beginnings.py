"""Seconds of one core to sample 8 tokens behind each of 16 prompts that begin alike: what they have in common is read
once, and as it was read before, with each prompt, in turns.

    python benchmarks/beginnings.py
    python benchmarks/beginnings.py --common 300 --own 60

The model has SmolLM2-135M's sizes, and random weights.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.gpu.measure import engine
from rlgraph.backends.engines.base import Sampling
from rlgraph.backends.engines.sequences import Sequences

MODEL = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
}
PROMPTS, TOKENS, TIMES = 16, 8, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--common", type=int, default=80, help="tokens that all prompts begin with")
    parser.add_argument("--own", type=int, default=20, help="tokens of each prompt behind these, and up to 4 more")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    made = engine(MODEL, "cpu", "float32")
    assert made._network.can_read_on
    beginning = list(range(5, 5 + asked.common))
    prompts = Sequences.from_lists(
        [[*beginning, *range(5 + row, 5 + row + asked.own + row % 5)] for row in range(PROMPTS)]
    )
    keys = np.arange(PROMPTS, dtype=np.uint64)

    def seconds() -> float:
        began = time.process_time()
        made.generate(prompts, 1, Sampling(TOKENS), keys)
        return time.process_time() - began

    once, each = list[float](), list[float]()
    seconds()
    for _ in range(TIMES):
        once.append(seconds())
        with patch.object(made._network, "can_read_on", False):
            each.append(seconds())
    ratio = median(each) / median(once)
    print(f"{asked.common} tokens in common, {asked.own} of its own: {median(once):.2f} s read once, ", end="")
    print(f"{median(each):.2f} s read with each, {ratio:.2f} times")


if __name__ == "__main__":
    main()
