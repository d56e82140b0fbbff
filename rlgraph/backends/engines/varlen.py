"""Attention over rows of different lengths that lie one behind the other, without padding."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint


def _varlen_attention() -> Callable[..., Any] | None:
    """Return torch's attention of rows of different lengths, where it is public and has all that is asked of it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"scale", "window_size", "enable_gqa"} <= known.keys() else None


_VARLEN = _varlen_attention()
QUERIES = 512
"""Queries of a row whose scores or mask exist at a time, where these are needed."""


@dataclass(frozen=True)
class AttentionOptions:
    """The options of a layer's attention, where not as usual."""

    scale: float | None = None
    """The factor of scores; None: 1 by the root of the size of a head."""
    window: int | None = None
    """How many tokens a token sees, itself included."""
    score_cap: float | None = None
    """Scores are kept between the cap and its negative: cap * tanh(score / cap)."""


def row_bounds(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Return where rows begin that lie one behind the other, and where the last one ends, int32 [N + 1]: made once for
    all layers, because it travels to the device."""
    return torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)


def takes_one_call(query: Tensor, rows: int, how: AttentionOptions) -> bool:
    """Return whether torch attends to several rows in one call: for narrow numbers on a GPU, whose scores nothing
    caps. query: [..., size]."""
    return (
        _VARLEN is not None
        and query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
        and rows > 1
        and how.score_cap is None
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    how: AttentionOptions | None = None,
    bounds: Tensor | None = None,
) -> Tensor:
    """Return the causal attention of each row to itself, [T, heads, size].

    query: [T, heads, size]. key, value: [T, groups, size]; heads of a group lie next to each other. lengths: tokens of
    each row, T together. bounds: `row_bounds` of them. Torch's kernel is called once where it can be, else for each
    row, and keeps no scores.
    """
    how = how or AttentionOptions()
    if bounds is not None and takes_one_call(query, len(lengths), how):
        assert _VARLEN is not None
        longest = max(lengths)
        window = (-1 if how.window is None else how.window - 1, 0)
        grouped = query.shape[1] != key.shape[1]
        options = {"scale": how.scale, "window_size": window, "enable_gqa": grouped}
        attended: Tensor = _VARLEN(query, key, value, bounds, bounds, longest, longest, **options)
        return attended
    key, value = repeat_kv_heads(query, key), repeat_kv_heads(query, value)
    rows = zip(*(tensor.transpose(0, 1)[None].split(list(lengths), 2) for tensor in (query, key, value)), strict=True)
    outputs = [causal_attention(q, k, v, how) for q, k, v in rows]
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2))[0].transpose(0, 1)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, how: AttentionOptions) -> Tensor:
    """Return the causal attention of rows of equal length, from queries, [N, heads, T, size], and keys and values, [N,
    groups, T, size], to [N, heads, T, size]. Masks and scores exist for no more than a part of a row at a time, and
    none are kept."""
    length = query.shape[2]
    if how.score_cap is None and (how.window is None or length <= how.window):
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=how.scale, enable_gqa=True)

    def attend_part(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = causal_mask(query.shape[2], key.shape[2], how.window, query.device)
        if how.score_cap is None:
            return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=how.scale, enable_gqa=True)
        scale = query.shape[-1] ** -0.5 if how.scale is None else how.scale
        return capped_attention(query, key.contiguous(), value.contiguous(), mask, scale, how.score_cap)

    outputs = attend_in_query_chunks(attend_part, query, key, value, how.window, torch.is_grad_enabled())
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)


def attend_in_query_chunks(
    part: Callable[[Tensor, Tensor, Tensor], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int | None,
    recompute: bool,
) -> list[Tensor]:
    """Return the causal attention of rows in parts: what `part` gives for `QUERIES` queries at a time, [N, heads, T,
    size], and the keys and values that these see, [N, groups, S, size]. The last query belongs to the last key.

    recompute: no part keeps anything for the gradient; else keys would be kept once for each part that sees them, or
    scores.
    """
    outputs, end = [], key.shape[2] - query.shape[2]
    for queries in query.split(QUERIES, 2):
        start, end = end, end + queries.shape[2]
        first = 0 if window is None else max(0, start - window + 1)
        parts = queries, key[:, :, first:end], value[:, :, first:end]
        outputs.append(
            checkpoint(part, *parts, use_reentrant=False, preserve_rng_state=False) if recompute else part(*parts)
        )
    return outputs


def causal_mask(queries: int, places: int, window: int | None, device: torch.device) -> Tensor:
    """Return which places each query sees, bool [queries, places]; the last query belongs to the last place. window:
    as in `AttentionOptions`."""
    mask = torch.ones(queries, places, dtype=torch.bool, device=device).tril(places - queries)
    return mask if window is None else mask.triu(places - queries - window + 1)


def capped_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, cap: float) -> Tensor:
    """Return attention written out, with scores between the cap and its negative, [N, heads, T, size]. mask: bool,
    which places a query sees."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (states if repeats == 1 else states.repeat_interleave(repeats, 1) for states in (key, value))
    scores = cap_scores(query @ key.transpose(2, 3) * scale, cap)
    # Not -inf: padding on the left sees nothing, and has to stay a number.
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
