"""Tiny models that vLLM's kernels for a CPU take, for the tests of its engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.vllm.engine import VllmEngine
from rlgraph.backends.engines.weights import fill_tensors, tensors_for_file
from rlgraph.ir.layout import Box
from tests.backends.engines.models import WORDS

_SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Larger than usual: the next token is then far from uniform and mistakes show.
    "initializer_range": 0.1,
}
_WINDOWS = {"head_dim": 64, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_CAPPED = _WINDOWS | {"final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0}
_LATENT = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    # Windows shorter than rows of the tests.
    "mistral": ("mistral", {"sliding_window": 8}),
    "granite": ("granite", {"logits_scaling": 2.0, "attention_multiplier": 0.5, "embedding_multiplier": 1.5}),
    "phi3": ("phi3", {"pad_token_id": 0}),
    "gemma2": ("gemma2", _CAPPED),
    "gemma3_text": ("gemma3_text", _WINDOWS),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    # Its heads together are wider than the model.
    "qwen3": ("qwen3", {"head_dim": 64}),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    # Columns that vLLM's kernel fills up, and an expert that all tokens take.
    "qwen2_moe": (
        "qwen2_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 64,
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "head_dim": 64,
            "norm_topk_prob": True,
        },
    ),
    # Numbers for which vLLM has a kernel on a CPU.
    "deepseek_v3": (
        "deepseek_v3",
        _LATENT
        | {"q_lora_rank": 48, "num_hidden_layers": 3, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2},
    ),
    "moonlight": (
        "deepseek_v3",
        _LATENT | {"q_lora_rank": None, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "v_head_dim": 64},
    ),
}


def spec(model: str = "qwen2", seed: int = 0) -> ModelSpec:
    family, more = MODELS[model]
    return ModelSpec("causal_lm", RandomWeights(family, _SHAPE | more, WORDS, seed))


class Numbered:
    """Global tensors in which each number says where it is."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        start = 1
        saved = model.state_dict()
        buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in saved]
        for name, parameter in [*model.named_parameters(), *buffers]:
            stop = start + parameter.numel()
            self.tensors[name] = torch.arange(start, stop, dtype=torch.float32).view(parameter.shape)
            start = stop
        assert start < 1 << 24, "float32 counts no further"

    def stored(self, family: str) -> Iterator[tuple[str, torch.Tensor]]:
        """As files have them."""
        for name, tensor in self.tensors.items():
            yield from tensors_for_file(family, name, tensor)

    def read(self, name: str, box: Box) -> torch.Tensor:
        return self.tensors[name][tuple(slice(*part) for part in box)]


def misplaced(engine: VllmEngine, hugging_face: torch.nn.Module) -> list[str]:
    """The tensors in which what vLLM itself loads from a checkpoint is not what the layout says."""
    numbered = Numbered(hugging_face)
    held = engine.tensors()
    live = {name: parameter for name, parameter in engine.model.named_parameters() if name in held}
    for name, parameter in live.items():
        # Those that are packed as they were before.
        parameter.data = torch.zeros_like(held[name])
    engine.model.load_weights(numbered.stored(hugging_face.config.model_type))
    described = {name: torch.full_like(tensor, -1) for name, tensor in live.items()}
    fill_tensors(described, engine.layout(), numbered)
    return [name for name in live if not live[name].equal(described[name])]
