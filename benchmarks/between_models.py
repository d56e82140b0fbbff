"""Seconds of the mathematics between models along tokens: what PPO does with the tokens of all rows.

    python benchmarks/between_models.py
    python benchmarks/between_models.py --rows 8192 --tokens 4096 --threads 2

Rows have between half and all of `--tokens`, drawn evenly, in float32. `doubling` is how scans were computed before:
each pass over all tokens doubles how many a sum covers. Least of `--rounds`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rlgraph.ops.reference import REFERENCE


def shifted(x: Tensor, index: Tensor, step: int) -> Tensor:
    """x[t + step], 0 where that is not in the row."""
    return torch.cat((torch.where(index[step:] == index[:-step], x[step:], 0), x.new_zeros(step)))


def doubling(x: Tensor, decay: float, index: Tensor) -> Tensor:
    """`discount` as it was."""
    step, longest = 1, int(torch.bincount(index).max())
    while step < longest:
        x = x + decay * shifted(x, index, step)
        decay, step = decay * decay, 2 * step
    return x


def seconds(rounds: int, work: Callable[[], Tensor]) -> float:
    """The least seconds of some rounds."""
    spent = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return min(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=4096, help="of the longest row")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(options.tokens // 2, options.tokens + 1, (options.rows,), generator=generator)
    index = torch.repeat_interleave(torch.arange(options.rows), lengths)
    x = torch.randn(len(index), generator=generator)
    print(f"{options.rows} rows, {len(index) / 1e6:.1f} million tokens, {options.threads} threads")
    works: dict[str, Callable[[], Tensor]] = {
        "discount by doubling": lambda: doubling(x, 0.95, index),
        "discount": lambda: REFERENCE["discount"](x, 0.95, index),
        "cumsum": lambda: REFERENCE["cumsum"](x, index),
        "next by comparing rows": lambda: shifted(x, index, 1),
        "next": lambda: REFERENCE["next"](x, index),
        "mean of a row": lambda: REFERENCE["mean"](x, index, options.rows),
        "variance of all": lambda: REFERENCE["var"](x, None, 1),
    }
    for name, work in works.items():
        print(f"{name:>24}{seconds(options.rounds, work):>9.3f} s", flush=True)


if __name__ == "__main__":
    main()
