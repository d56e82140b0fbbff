"""Attention for one new token a row: what decoding spends most of its time in on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

_NAME = "rlgraph_sdpa"


def use_fast_decoding(model: PreTrainedModel) -> bool:
    """Let a model that uses torch's attention kernel decode with two batched products instead; whether it
    could be done.

    The kernel is made for long queries: for one query a row the products are about 1.6 times as fast on a
    CPU.
    """
    if model.config._attn_implementation != "sdpa" or model.device.type != "cpu":
        return False
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    try:
        model.set_attn_implementation(_NAME)
    except (ValueError, ImportError):
        model.set_attn_implementation("sdpa")
        return False
    return True


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [N, heads, T, size], key and value [N, groups, S, size] to [N,
    T, heads, size]."""
    plain = query.shape[2] == 1 and more.get("position_bias") is None and query.dtype != torch.bfloat16
    if not plain or torch.is_grad_enabled() or not _per_row(attention_mask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **more)
    rows, heads, _, size = query.shape
    groups, places = key.shape[1], key.shape[2]
    scale = size**-0.5 if scaling is None else scaling
    # A group's heads share its keys: they are the rows of one small product.
    grouped = query.reshape(rows * groups, heads // groups, size) * scale
    logits = torch.bmm(grouped, key.flatten(0, 1).transpose(1, 2))
    if attention_mask is not None:
        hidden = ~attention_mask[..., :places].expand(rows, groups, heads // groups, places)
        logits = logits.masked_fill(hidden.reshape(logits.shape), -torch.inf)
    weighted = torch.bmm(logits.softmax(-1), value.flatten(0, 1))
    return weighted.view(rows, 1, heads, value.shape[-1]), None


def _per_row(mask: Tensor | None) -> bool:
    """No mask, or one that says for each row which places may be seen."""
    return mask is None or (mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[1] == mask.shape[2] == 1)
