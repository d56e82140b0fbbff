"""Attention over rows of different lengths that lie one behind the other, without padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
    """Causal attention of each row to itself, [T, heads, size].

    query: [T, heads, size]. key, value: [T, groups, size]; heads of a group lie next to each other. lengths: tokens of
    each row, T together. Torch's kernel is called for each row, and keeps no scores.
    """
    key, value = shared_heads(query, key), shared_heads(query, value)
    rows = zip(*(each.transpose(0, 1)[None].split(list(lengths), 2) for each in (query, key, value)), strict=True)
    done = [scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) for q, k, v in rows]
    return (done[0] if len(done) == 1 else torch.cat(done, 2))[0].transpose(0, 1)


def shared_heads(query: Tensor, key: Tensor) -> Tensor:
    """Keys, or values, as the kernel takes them: of wide numbers CUDA has none that shares them among heads but one
    that keeps scores. All are [tokens, heads, size]."""
    if query.is_cuda and query.element_size() > 2:
        return key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    return key
