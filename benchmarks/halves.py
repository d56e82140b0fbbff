"""Whether a backward pass can be computed in two halves: first the gradients of inputs, for which the stage before
waits, and later those of weights.

    python benchmarks/halves.py

Four layers of Megatron-core as the engine has them, on one process without a GPU, by torch's own halves
(`torch.distributed.pipelining`, as its zero-bubble schedules use them), beside the pass as a whole.

    GFLOP     of products
    seconds   medians of five
    error     the largest difference of a gradient to that of the whole pass
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.one_pipeline import SIZES
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.tokenizers import WordTokenizer
from rlgraph.ir.mesh import Mesh, make_mesh
from tests.backends.engines.ranks import Ranks

ROWS, TOKENS, TIMES = 4, 64, 5


def job(over: Mesh) -> dict[str, Any]:
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
    from torch.utils.flop_counter import FlopCounterMode

    from rlgraph.backends.engines.megatron.engine import MegatronEngine
    from rlgraph.backends.engines.megatron.shim import redirect_cuda_to_cpu

    words = WordTokenizer(" ".join(f"t{number}" for number in range(60)))
    engine = MegatronEngine.open(ModelSpec("causal_lm", RandomWeights("llama", SIZES, words)), over)
    layers = engine.model.decoder.layers
    packed = engine._pipeline._angles.packed_rows([TOKENS] * ROWS, None, None, torch.device("cpu"))
    start, gradient = torch.randn(2, ROWS * TOKENS, 1, SIZES["hidden_size"])
    found: dict[str, list[tuple[int, float]]] = {"whole": [], "inputs": [], "weights": []}

    def counted(name: str, do: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        with FlopCounterMode(display=False) as counter:
            made = do()
        found[name].append((counter.get_total_flops(), time.perf_counter() - began))
        return made

    def ahead() -> tuple[Tensor, Tensor]:
        came = made = start.clone().requires_grad_()
        for layer in layers:
            made, _ = layer(hidden_states=made, attention_mask=None, packed_seq_params=packed)
        return came, made

    def gradients() -> list[Tensor]:
        own = [weight.grad.clone() for weight in layers.parameters()]
        layers.zero_grad()
        return own

    with redirect_cuda_to_cpu(), torch.enable_grad():
        for _ in range(TIMES):
            came, made = ahead()
            counted("whole", lambda made=made: torch.autograd.backward(made, gradient))
            whole = [came.grad, *gradients()]
            came, made = ahead()
            (before, *_), left = counted(
                "inputs",
                lambda came=came, made=made: stage_backward_input([made], [gradient], [came], layers.parameters()),
            )
            counted("weights", lambda left=left: stage_backward_weight(layers.parameters(), left))
            halves = [before, *gradients()]
    told = {
        name: (each[-1][0] / 1e9, statistics.median(seconds for _, seconds in each)) for name, each in found.items()
    }
    return {**told, "error": max(float((a - b).abs().max()) for a, b in zip(whole, halves, strict=True))}


def main() -> None:
    ranks = Ranks(1)
    try:
        [found] = ranks.run(make_mesh(), job)
    finally:
        ranks.close()
    error = found.pop("error")
    told = {name: {"gflop": flops, "seconds": seconds} for name, (flops, seconds) in found.items()}
    print(json.dumps({"what": "halves", **told, "error": error}))


if __name__ == "__main__":
    main()
