"""The head of a model with a large vocabulary, from hidden states to log-probabilities and back: bytes that operators
read and write for each logit, and CPU seconds, in tiles and as all logits of some tokens at a time.

    python benchmarks/head.py
    python benchmarks/head.py --dtype bfloat16 --tokens 2048
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[1]))
from rlgraph.backends.engines.chunks import compute_in_chunks
from rlgraph.backends.engines.linear_head import linear_logprobs
from rlgraph.backends.engines.logprobs import token_logprobs
from rlgraph.backends.enginespec.memory import HeadTiles

PRODUCTS = ("mm", "addmm", "addmm_", "linear", "_linear_pointwise")
CHOSEN = ("gather", "scatter_", "scatter_add_", "index_select", "index", "embedding", "select_scatter")
"""Operators that touch a few numbers of what they get."""
MOVED = ("empty", "view", "_unsafe_view", "t", "slice", "split", "detach", "alias", "expand", "unsqueeze", "select")
"""Operators that read and write no numbers."""


class Bytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operators get and give: by products, and `elsewhere`."""

    def __init__(self, least: int = 0) -> None:
        """least: tensors of fewer numbers do not count."""
        super().__init__()
        self.least, self.products, self.elsewhere = least, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        if name in (*MOVED, *CHOSEN) or name.startswith(("new_", "empty")):
            return given
        # A tensor that is written in place, or into `out`, is among the arguments as well.
        read = {id(leaf): leaf for leaf in tree_leaves((args, {k: v for k, v in (kwargs or {}).items() if k != "out"}))}
        if name == "copy_":
            read.pop(id(args[0]), None)
        leaves = [*read.values(), *tree_leaves(given)]
        moved = sum(x.numel() * x.itemsize for x in leaves if isinstance(x, Tensor) and x.numel() >= self.least)
        if name in PRODUCTS:
            self.products += moved
        else:
            self.elsewhere += moved
        return given


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    drawn = torch.Generator().manual_seed(0)
    hidden = torch.randn(options.tokens, options.hidden, generator=drawn).to(dtype).requires_grad_()
    weight = (torch.randn(options.vocabulary, options.hidden, generator=drawn) * 0.05).to(dtype).requires_grad_()
    tokens = torch.randint(0, options.vocabulary, (options.tokens,), generator=drawn)
    upstream = torch.randn(options.tokens, generator=drawn) / options.tokens
    places = max(1, (1 << 25) // options.vocabulary)

    def chunks() -> Tensor:
        def read(part: Tensor, follow: Tensor) -> Sequence[Tensor]:
            return [token_logprobs(torch.nn.functional.linear(part, weight).float(), follow)]

        return compute_in_chunks(read, places, hidden, tokens)[0]

    def tiled(tiles: HeadTiles) -> Callable[[], Tensor]:
        return lambda: linear_logprobs(hidden, weight, tokens, 1.0, tiles)[0]

    ways = {
        "chunks of all logits": chunks,
        "tiles, nothing kept": tiled(HeadTiles(kept=0)),
        "tiles": tiled(HeadTiles()),
        "tiles, all kept": tiled(HeadTiles(kept=1 << 40)),
    }
    logits = options.tokens * options.vocabulary
    print(f"{options.tokens} tokens, hidden size {options.hidden}, {options.vocabulary} logits each, {options.dtype}")
    print("| | bytes a logit, not of products | of products | CPU s | of the first |\n|---|--:|--:|--:|--:|")
    first = 0.0
    for name, logprobs in ways.items():
        with Bytes(least=options.tokens * 64) as moved:
            torch.autograd.grad((logprobs() * upstream).sum(), [hidden, weight])
        began = time.process_time()
        torch.autograd.grad((logprobs() * upstream).sum(), [hidden, weight])
        spent = time.process_time() - began
        first = first or spent
        row = f"{moved.elsewhere / logits:.1f} | {moved.products / logits:.1f} | {spent:.2f} | {spent / first:.2f}"
        print(f"| {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
