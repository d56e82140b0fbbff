"""Tiny random models for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from rlgraph.backends.engines.base import MicroBatch
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.stop_texts import find_stop_texts
from rlgraph.backends.engines.tokenizers import WordTokenizer, build_tokenizer
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.catalog.models.families import ModelKind

FAMILIES = ("qwen2", "llama", "gpt2", "gemma2")
WORDS = WordTokenizer(" ".join(f"t{i}" for i in range(3, 40)))
PAIRS = find_stop_texts(("1 t", "5 t2"), build_tokenizer(WORDS))
"""Texts that two tokens complete: one that ends in 1 and any other, or one that ends in 5 and one that begins with
t2."""

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
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}
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
    "gemma3_text": DECODER
    | {"head_dim": 8, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    "qwen3": DECODER | {"head_dim": 8},
    "phi3": DECODER | {"pad_token_id": 0},
    "mistral": DECODER | {"head_dim": 8, "sliding_window": 5},
    "olmo2": DECODER,
    "granite": DECODER | {"logits_scaling": 2.0, "attention_multiplier": 0.5, "embedding_multiplier": 1.5},
    "gpt_neox": {name: value for name, value in DECODER.items() if name != "num_key_value_heads"},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mixtral": DECODER | EXPERTS | {"num_local_experts": 4},
    "qwen3_moe": DECODER | EXPERTS | {"head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16},
    "qwen2_moe": DECODER
    | EXPERTS
    | {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24},
    "deepseek_v3": DECODER
    | EXPERTS
    | {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 16,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
}


def source(family: str = "qwen2", seed: int = 0) -> RandomWeights:
    return RandomWeights(family, _SHAPES[family], WORDS, seed)


def engine(
    family: str = "qwen2",
    kind: ModelKind = "causal_lm",
    dtype: str = "float64",
    threads: int = 1,
    seed: int = 0,
    recompute: bool = False,
    **limits: int,
) -> TransformersEngine:
    spec = ModelSpec(kind, source(family, seed), dtype)
    return TransformersEngine.open(spec, threads=threads, recompute=recompute, **limits)


def by_hand(loss: Callable[[Any], Tensor]) -> Callable[[Any], MicroBatch]:
    """A micro-batch whose loss asks the model itself."""
    return lambda block: MicroBatch((), lambda answers: loss(block))
