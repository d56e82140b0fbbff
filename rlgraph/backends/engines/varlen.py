"""Attention over rows of different lengths that lie one behind the other, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

QUERIES = 512
"""Queries of a row whose scores or mask exist at a time, where these are needed."""


@dataclass(frozen=True)
class AttentionOptions:
    """The options of a layer's attention, where not as usual."""

    scale: float | None = None
    """The factor of scores; None: 1 by the root of the size of a head."""
    window: int | None = None
    """How many tokens a token sees, itself included."""
    cap: float | None = None
    """Scores are kept between the cap and its negative: cap * tanh(score / cap)."""


def attend(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], how: AttentionOptions | None = None
) -> Tensor:
    """Return the causal attention of each row to itself, [T, heads, size].

    query: [T, heads, size]. key, value: [T, groups, size]; heads of a group lie next to each other. lengths: tokens of
    each row, T together. Torch's kernel is called for each row, and keeps no scores.
    """
    how = how or AttentionOptions()
    key, value = repeat_kv_heads(query, key), repeat_kv_heads(query, value)
    rows = zip(*(tensor.transpose(0, 1)[None].split(list(lengths), 2) for tensor in (query, key, value)), strict=True)
    outputs = [causal(q, k, v, how) for q, k, v in rows]
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2))[0].transpose(0, 1)


def causal(query: Tensor, key: Tensor, value: Tensor, how: AttentionOptions) -> Tensor:
    """Return the causal attention of rows of equal length, from queries, [N, heads, T, size], and keys and values, [N,
    groups, T, size], to [N, heads, T, size]. Masks and scores exist for no more than a part of a row at a time, and
    none are kept."""
    length = query.shape[2]
    if how.cap is None and (how.window is None or length <= how.window):
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=how.scale, enable_gqa=True)

    def part(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _masked(query, key, value, how)

    outputs, end = [], 0
    for queries in query.split(QUERIES, 2):
        start, end = end, end + queries.shape[2]
        first = 0 if how.window is None else max(0, start - how.window + 1)
        parts = queries, key[:, :, first:end], value[:, :, first:end]
        # Without checkpointing keys would be kept for the gradient once for each part that sees them, or scores.
        recompute = torch.is_grad_enabled()
        outputs.append(
            checkpoint(part, *parts, use_reentrant=False, preserve_rng_state=False) if recompute else part(*parts)
        )
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)


def _masked(query: Tensor, key: Tensor, value: Tensor, how: AttentionOptions) -> Tensor:
    """Return the attention of some queries, of which the last one belongs to the last key."""
    count, places = query.shape[2], key.shape[2]
    mask = torch.ones(count, places, dtype=torch.bool, device=query.device).tril(places - count)
    if how.window is not None:
        mask = mask.triu(places - count - how.window + 1)
    if how.cap is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=how.scale, enable_gqa=True)
    key, value = (tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1) for tensor in (key, value))
    scale = query.shape[-1] ** -0.5 if how.scale is None else how.scale
    scores = cap_scores(query @ key.transpose(2, 3) * scale, how.cap)
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) @ value


def cap_scores(scores: Tensor, cap: float) -> Tensor:
    """Return the scores between a number and its negative, and unchanged near 0."""
    return cap * torch.tanh(scores / cap)


def pad_width(x: Tensor, width: int) -> Tensor:
    """Return x, [..., size], with zeros behind it if it is narrower: kernels that keep no scores want queries, keys and
    values of one width."""
    return x if x.shape[-1] == width else pad(x, (0, width - x.shape[-1]))


def repeat_kv_heads(query: Tensor, key: Tensor) -> Tensor:
    """Return keys, or values, as the kernel takes them: for wide numbers CUDA's only kernel that shares them among
    heads keeps scores. All are [tokens, heads, size]."""
    if query.is_cuda and query.element_size() > 2:
        return key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    return key
