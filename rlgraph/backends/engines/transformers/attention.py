"""Attention of models that use torch's kernel: of rows that lie one behind the other, and of one new token a row."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.engines.transformers.packing import Span
from rlgraph.backends.engines.varlen import as_wide

_NAME = "rlgraph_sdpa"
_QUERIES = 512
"""Of a row with a window, or with capped scores, so many are taken at a time."""
_GROUPED = torch.__version__ >= "2.13"
"""Whether torch's kernel for CPUs takes a mask where several heads share keys; with older ones this was not tried."""
_KINDS = {"full_attention", "sliding_attention"}
"""Kinds of layers, as transformers calls them, that look at a row from a token back to its start or over a window."""


@dataclass(frozen=True)
class Causal:
    """Takes the place of a mask where whole rows are read: a token sees those before it, of its own row."""

    spans: tuple[Span, ...] | None
    """Of rows that lie one behind the other, as `Packing` says; None: each is a row of the tensor."""
    window: int | None
    """How many tokens a token sees, itself included; None: all before it."""
    masks: dict[int, Tensor] = field(default_factory=dict, compare=False)
    """For rows that go on behind so many tokens, once for all layers: what is added to scores, [T, S]."""

    def mask(self, before: int, count: int, most: int, like: Tensor) -> Tensor:
        """0 where the i-th of so many queries sees a key, else -inf, [count, before + count]. most: queries that are
        asked for of rows like these."""
        found = self.masks.get(before)
        if found is None or found.shape[0] < count:
            seen = torch.ones(most, before + most, dtype=torch.bool, device=like.device).tril(before)
            if self.window is not None:
                seen = seen.triu(before - self.window + 1)
            found = torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, -torch.inf)
            self.masks[before] = found
        return found[:count, : before + count]


class _Packing(threading.local):
    spans: tuple[Span, ...] | None = None


_packing = _Packing()


@contextmanager
def packed(spans: Sequence[Span]) -> Iterator[None]:
    """What this thread feeds to a model meanwhile is one row, in which rows of their own lie as `Packing` says."""
    _packing.spans = tuple(spans)
    try:
        yield
    finally:
        _packing.spans = None


def use_attention(model: PreTrainedModel, wanted: str) -> None:
    """Let a model compute attention in the way that transformers calls so; empty: as it does by itself. Raises
    EngineError where it cannot."""
    now = model.config._attn_implementation
    if wanted and wanted != ("sdpa" if now == _NAME else now):
        try:
            model.set_attn_implementation(wanted)
        except (ValueError, ImportError) as error:
            first = (str(error).strip().splitlines() or [""])[0]
            raise EngineError(f"{type(model).__name__} cannot compute attention by {wanted}: {first}") from error
    use_own_attention(model)


def use_own_attention(model: PreTrainedModel) -> bool:
    """Let a model that uses torch's attention kernel read packed rows, and decode on a CPU with two batched products;
    whether it could be done.

    The kernel is made for long queries: for one query a row the products are about 1.6 times as fast on a CPU. It also
    does not cap scores, which is done here for models that want it, and keeps them where values are not as wide as
    keys: they get zeros behind them then.
    """
    if model.config._attn_implementation != "sdpa":
        return False
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, _mask)
    try:
        model.set_attn_implementation(_NAME)
    except (ValueError, ImportError):
        model.set_attn_implementation("sdpa")
        return False
    return True


def knows_layers(model: PreTrainedModel) -> bool:
    """Whether the model uses this attention, and all its layers are of kinds that packed rows are known for."""
    config = model.config.get_text_config()
    return config._attn_implementation == _NAME and _known(config)


def _known(config: Any) -> bool:
    return set(getattr(config, "layer_types", None) or ()) <= _KINDS


def _mask(*, config: Any, local_size: int | None = None, **more: Any) -> Causal | Tensor | None:
    """What transformers calls for the mask of a kind of layers; local_size: of a window."""
    if _packing.spans is not None:
        return Causal(_packing.spans, local_size)
    # Of a window torch would get a mask for each pair of tokens of a row.
    whole = more["attention_mask"] is None and more["q_length"] == more["kv_length"]
    if whole and local_size is not None and more["q_length"] > local_size and _known(config) and not more["use_vmap"]:
        return Causal(None, local_size)
    mask: Tensor | None = sdpa_mask(config=config, local_size=local_size, **more)
    return mask


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Causal | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [N, heads, T, size], key and value [N, groups, S, size] to [N,
    T, heads, size]."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.shape[2] > 1 and value.shape[-1] != query.shape[-1]:
        width, size = max(value.shape[-1], query.shape[-1]), value.shape[-1]
        query, key, value = as_wide(query, width), as_wide(key, width), as_wide(value, width)
        return _attend(module, query, key, value, attention_mask, dropout, scale, softcap, **more)[0][..., :size], None
    if isinstance(attention_mask, Causal):
        if more.get("position_bias") is not None:
            raise NotImplementedError("a bias by position")
        if attention_mask.spans is not None:
            parts = (query, key, value)
            return _packed(module, parts, attention_mask, attention_mask.spans, scale, softcap, more), None
        return _rows(module, (query, key, value), attention_mask.window, scale, softcap, more), None
    one = query.shape[2] == 1 and query.device.type == "cpu" and query.dtype != torch.bfloat16
    if one and more.get("position_bias") is None and not torch.is_grad_enabled() and _per_row(attention_mask):
        return _decode(query, key, value, attention_mask, scale, softcap), None
    if softcap is not None:
        if attention_mask is None and query.shape[2] == key.shape[2]:
            return _rows(module, (query, key, value), None, scale, softcap, more), None
        return _capped(query, key, value, attention_mask, scale, softcap), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **more)


def _decode(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    rows, heads, _, size = query.shape
    groups, places = key.shape[1], key.shape[2]
    # A group's heads share its keys: they are the rows of one small product.
    grouped = query.reshape(rows * groups, heads // groups, size) * scale
    logits = _cap(torch.bmm(grouped, key.flatten(0, 1).transpose(1, 2)), softcap)
    if mask is not None:
        hidden = ~mask[..., :places].expand(rows, groups, heads // groups, places)
        logits = logits.masked_fill(hidden.reshape(logits.shape), -torch.inf)
    weighted = torch.bmm(logits.softmax(-1), value.flatten(0, 1))
    return weighted.view(rows, 1, heads, value.shape[-1])


def _capped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float) -> Tensor:
    """Attention written out, with scores between -softcap and softcap. mask: bool [N or 1, 1, T, S], None: causal."""
    repeats, queries, places = query.shape[1] // key.shape[1], query.shape[2], key.shape[2]
    scores = _cap(query @ repeat_kv(key, repeats).transpose(2, 3) * scale, softcap)
    if mask is None:
        mask = torch.ones(queries, places, dtype=torch.bool, device=query.device).tril(places - queries)
    # Not -inf: padding on the left sees nothing, and has to stay a number.
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return (weights @ repeat_kv(value, repeats)).transpose(1, 2)


def _cap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _per_row(mask: Tensor | None) -> bool:
    """No mask, or one that says for each row which places may be seen."""
    return mask is None or (mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[1] == mask.shape[2] == 1)


def _packed(
    module: nn.Module,
    parts: Sequence[Tensor],
    causal: Causal,
    spans: Sequence[Span],
    scale: float,
    softcap: float | None,
    more: dict[str, Any],
) -> Tensor:
    """Queries, keys and values, [1, heads, T, size] each, to [1, T, heads, size]. Rows that are alike are one call."""
    beginnings = [span.families * span.beginning for span in spans]
    ends = [span.families * rows * length for span in spans for rows, length in span.ends]
    split = [part[0].split([*beginnings, *ends], 1) for part in parts]
    begun = [[each[at] for each in split] for at in range(len(spans))]
    ended = iter([each[at] for each in split] for at in range(len(spans), len(split[0])))
    found, more_found = [], []
    for span, own in zip(spans, begun, strict=True):
        whole = [each.unflatten(1, (span.families, span.beginning)).transpose(0, 1) for each in own]
        if span.ends:
            # Else all keys and values would be kept for the gradient, of which these are a part.
            whole[1:] = [each.contiguous() for each in whole[1:]]
        found.append(_rows(module, whole, causal.window, scale, softcap, more).flatten(0, 1))
        for rows, length in span.ends:
            query, *states = next(ended)
            count = span.families * rows
            # Each row of a family sees what the family begins with, and then itself.
            seen = [
                torch.cat(
                    [
                        common[:, None].expand(-1, rows, -1, -1, -1),
                        state.unflatten(1, (span.families, rows, length)).permute(1, 2, 0, 3, 4),
                    ],
                    3,
                ).flatten(0, 1)
                for common, state in zip(whole[1:], states, strict=True)
            ]
            asking = query.unflatten(1, (count, length)).transpose(0, 1)
            mask = None
            if softcap is None and length <= _QUERIES:
                mask = causal.mask(span.beginning, length, min(span.ends[-1][1], _QUERIES), query)
            more_found.append(_rows(module, [asking, *seen], causal.window, scale, softcap, more, mask).flatten(0, 1))
    done = [*found, *more_found]
    return torch.cat(done)[None] if len(done) > 1 else done[0][None]


def _rows(
    module: nn.Module,
    rows: Sequence[Tensor],
    window: int | None,
    scale: float,
    softcap: float | None,
    more: dict[str, Any],
    mask: Tensor | None = None,
) -> Tensor:
    """Causal attention of equal rows: queries, keys and values, [N, heads, T or S, size] each, to [N, T, heads, size];
    the queries are those of the last T of S places. No mask and no scores are there for more than a part of a row.
    mask: of all of it, [T, S], where it is there already."""
    query, key, value = rows
    before = key.shape[2] - query.shape[2]
    if softcap is None and not before and (window is None or key.shape[2] <= window):
        return sdpa_attention_forward(module, query, key, value, None, 0.0, scale, **more)[0]

    def part(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Of some queries, of which the last one belongs to the last key."""
        count, places = query.shape[2], key.shape[2]
        seen = mask
        if seen is None:
            seen = torch.ones(count, places, dtype=torch.bool, device=query.device).tril(places - count)
            seen = seen if window is None else seen.triu(places - count - window + 1)
        elif places < seen.shape[1]:
            seen = seen[:, -places:]
        seen = seen[None, None]
        if softcap is not None:
            return _capped(query, key, value, seen, scale, softcap)
        if _GROUPED and query.device.type == "cpu" and key.shape[-1] == value.shape[-1]:
            # transformers would copy keys and values for each head of a group.
            grouped = query.shape[1] != key.shape[1]
            return sdpa(query, key, value, attn_mask=seen, scale=scale, enable_gqa=grouped).transpose(1, 2)
        return sdpa_attention_forward(module, query, key, value, seen, 0.0, scale, **more)[0]

    # What is inside would be kept for the gradient: keys once for each part that sees them, or scores.
    again = torch.is_grad_enabled() and (softcap is not None or window is not None or query.shape[2] > _QUERIES)
    done, end = [], before
    for queries in query.split(_QUERIES, 2):
        start, end = end, end + queries.shape[2]
        first = 0 if window is None else max(0, start - window + 1)
        parts = queries, key[:, :, first:end], value[:, :, first:end]
        done.append(checkpoint(part, *parts, use_reentrant=False, preserve_rng_state=False) if again else part(*parts))
    return torch.cat(done, 1) if len(done) > 1 else done[0]
