"""Bytes that training reads and writes for each weight beside matrix products, as operators get and give tensors: in
each micro-batch, and in the optimizer's step. The cost model has them as `gradient` and `stepped`. And those of each
logit from which `transformers` samples a token: `logit` of `generate`.

    python benchmarks/step_bytes.py

The model is small and has bfloat16 weights; only tensors as large as one of its parameters, or as all of them, count.
What a rank that is alone sends to itself does not.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.gpu.measure import engine
from benchmarks.head import MOVED, PRODUCTS
from rlgraph.backends.engines.base import MicroBatch, ModelCall, TrainOptions
from rlgraph.backends.engines.records import Sampling
from rlgraph.backends.engines.sampling import choose_tokens, draw_uniforms
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.head import wide
from rlgraph.passes.cost.optimizer import optimizer_bytes_per_weight

MODEL = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
ROWS = ("embedding", "embedding_dense_backward", "searchsorted", "gather")
"""Operators that touch a few rows of what they get."""
ITEM = 2
"""Bytes of a weight."""
WRITTEN = {"_fused_adamw_": (0, 2, 3)}
"""Which arguments operators write that return nothing: else the first."""


class WeightBytes(TorchDispatchMode):
    """Counts the bytes of tensors of some sizes that operators read and write."""

    def __init__(self, sizes: Collection[int]) -> None:
        super().__init__()
        self.sizes, self.moved = sizes, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        if name in (*MOVED, *PRODUCTS, *ROWS) or name.startswith(("new_", "empty")) or "scatter_tensor" in name:
            return given
        if "into_tensor" in name or name == "copy_" and args[0].dtype == args[1].dtype:
            return given
        read = {(leaf.data_ptr(), leaf.numel()): leaf for leaf in self._counted((args, kwargs))}
        if name in ("copy_", "zero_", "fill_"):
            read.pop((args[0].data_ptr(), args[0].numel()), None)
        written = self._counted(given) or [
            leaf for place in WRITTEN.get(name, (0,)) if name.endswith("_") for leaf in self._counted(args[place])
        ]
        self.moved += sum(leaf.numel() * leaf.itemsize for leaf in (*read.values(), *written))
        return given

    def _counted(self, tree: Any) -> list[Tensor]:
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.numel() in self.sizes]


def weight_bytes(made: Any, kept: int) -> tuple[float, float]:
    """Return the bytes of each weight in a micro-batch, and in a step beside the `kept` that it takes at least."""
    sizes = [weight.numel() for weight in made.model.parameters()]
    sequences = Sequences.from_lists([list(range(1, 9))], [[place > 2 for place in range(8)]])
    micro = MicroBatch((ModelCall("logprobs", sequences),), lambda said: -1e3 * said[0].sum())
    options, counted = TrainOptions(1e-6, clip_norm=1.0), list[float]()
    made.train_step([0], lambda _: micro, options, 0)
    for blocks in (1, 2):
        with WeightBytes({*sizes, sum(sizes)}) as mode:
            made.train_step([*range(blocks)], lambda _: micro, options, blocks)
        counted.append(mode.moved / sum(sizes))
    once, twice = counted
    return twice - once, 2 * once - twice - kept


def sampled_logit_bytes() -> float:
    """Return the bytes of each logit, bfloat16, from which a token of each row is sampled."""
    rows, vocab = 16, 5003
    logits, keys = torch.randn(rows, vocab).to(torch.bfloat16), torch.arange(rows)
    with WeightBytes({logits.numel()}) as mode:
        choose_tokens(wide(logits), draw_uniforms(keys, torch.zeros(1, dtype=torch.long)), Sampling(max_tokens=1), None)
    return float(mode.moved / logits.numel())


def engines() -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the engines that are installed, and their bytes."""
    step = optimizer_bytes_per_weight(item=ITEM)
    yield (
        "transformers",
        weight_bytes(engine(MODEL, "cpu", "bfloat16"), step.gradient + step.memory_traffic_bytes),
    )
    if find_spec("megatron"):
        from benchmarks.gpu.megatron import alone, opened

        with alone():
            yield (
                "megatron",
                weight_bytes(opened(MODEL, "bfloat16"), step.gradient + ITEM + step.memory_traffic_bytes),
            )


def main() -> None:
    print("| engine | bytes of a weight, a micro-batch | a step, beside what it keeps |\n|---|--:|--:|")
    for name, (gradient, stepped) in engines():
        print(f"| {name} | {gradient:.1f} | {stepped:.1f} |")
    print(f"\na logit from which transformers samples: {sampled_logit_bytes():.1f} bytes")


if __name__ == "__main__":
    main()
