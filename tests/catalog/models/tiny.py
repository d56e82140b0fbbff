"""Tiny models of every family and kind, with no two weights alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from rlgraph.catalog.models.config_shape import FAMILIES, SPARSE, shape_of
from rlgraph.catalog.models.shape import Shape

AUTO = {
    "causal_lm": AutoModelForCausalLM,
    "value_lm": AutoModelForTokenClassification,
    "reward_lm": AutoModelForSequenceClassification,
}
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
DENSE = tuple(family for family in FAMILIES if family not in SPARSE)
OWN: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "phi3": {"pad_token_id": 0},
    "gemma2": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8},
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {"num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 12},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "head_dim": 4,
        "n_routed_experts": 6,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 12,
        "n_group": 3,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "q_lora_rank": 12,
        "kv_lora_rank": 10,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 6,
        "v_head_dim": 8,
    },
}
"""What some families have beside `SIZES`."""
KINDS = [
    (family, kind)
    for family in FAMILIES
    for kind, auto in AUTO.items()
    if type(AutoConfig.for_model(family)) in auto._model_mapping
]
"""Families, and what transformers makes of them."""


def tiny(family: str, kind: str = "causal_lm", **fields: Any) -> PreTrainedModel:
    """A model of transformers; its initial weights would hide mistakes: biases of 0, norms of 1."""
    model = AUTO[kind].from_config(AutoConfig.for_model(family, **(SIZES | OWN.get(family, {}) | fields), num_labels=1))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name in model.state_dict():
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return model


def held(model: PreTrainedModel) -> dict[str, Tensor]:
    """What files have of a model, each tensor once: its parameters, and buffers that no gradient reaches."""
    saved = model.state_dict()
    return dict(model.named_parameters()) | {name: each for name, each in model.named_buffers() if name in saved}


def shape_of_model(model: PreTrainedModel) -> Shape:
    return shape_of(model.config.to_dict())


__all__ = ["DENSE", "FAMILIES", "KINDS", "OWN", "SIZES", "SPARSE", "held", "shape_of_model", "tiny"]
