"""Tiny random models for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from rlgraph.engines.base import Micro
from rlgraph.engines.sources import ModelSpec, RandomSource
from rlgraph.engines.tokenizers import Words
from rlgraph.engines.transformers.engine import TransformersEngine
from rlgraph.models.families import ModelKind

FAMILIES = ("qwen2", "llama", "gpt2", "gemma2")
WORDS = Words(" ".join(f"t{i}" for i in range(3, 40)))

DECODER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    # Larger than usual: the next token is then far from uniform and mistakes show.
    "initializer_range": 0.3,
}
_SHAPES: dict[str, dict[str, Any]] = {
    "qwen2": DECODER,
    "llama": DECODER,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.3},
    "gemma2": DECODER
    | {
        "head_dim": 8,
        # Shorter than the rows of the tests, so that the window matters.
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "final_logit_softcapping": 3.0,
        "attn_logit_softcapping": 2.0,
    },
}


def source(family: str = "qwen2", seed: int = 0) -> RandomSource:
    return RandomSource(family, _SHAPES[family], WORDS, seed)


def engine(
    family: str = "qwen2",
    kind: ModelKind = "causal_lm",
    dtype: str = "float64",
    threads: int = 1,
    seed: int = 0,
    **limits: int,
) -> TransformersEngine:
    return TransformersEngine.open(ModelSpec(kind, source(family, seed), dtype), threads=threads, **limits)


def by_hand(loss: Callable[[Any], Tensor]) -> Callable[[Any], Micro]:
    """A micro-batch whose loss asks the model itself."""
    return lambda block: Micro((), lambda answers: loss(block))
