"""Attention for models that use torch's kernel: over rows that lie one behind the other, and for one new token a
row."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from rlgraph.backends.engines import varlen
from rlgraph.backends.engines.errors import EngineError, first_line
from rlgraph.backends.engines.transformers.packing import PackedSpan
from rlgraph.backends.engines.varlen import (
    AttentionOptions,
    attend_in_query_chunks,
    cap_scores,
    capped_attention,
    causal_mask,
    pad_width,
)

_NAME = "rlgraph_sdpa"
_GROUPED = torch.__version__ >= "2.13"
"""Whether torch's kernel for CPUs takes a mask where several heads share keys; older versions were not tried."""
_KINDS = {"full_attention", "sliding_attention"}
"""Kinds of layers, as transformers calls them, that look at a row from a token back to its start or over a window."""


@dataclass(frozen=True)
class CausalMask:
    """Stands in for a mask where whole rows are read: a token sees those before it, of its own row."""

    spans: tuple[PackedSpan, ...] | None
    """The spans of rows that lie one behind the other, as in `Packing`; None: each is a row of the tensor."""
    window: int | None
    """How many tokens a token sees, itself included; None: all before it."""
    masks: dict[int, Tensor] = field(default_factory=dict, compare=False)
    """What is added to scores, [T, S], by how many tokens come before; made once for all layers."""
    known_bounds: list[Tensor] = field(default_factory=list, compare=False)

    @cached_property
    def lengths(self) -> list[int] | None:
        """The tokens of rows that lie one behind the other; None where some have a beginning in common."""
        spans = self.spans or ()
        if any(span.suffixes for span in spans):
            return None
        return [span.prefix_tokens for span in spans for _ in range(span.family_count)]

    def bounds(self, lengths: Sequence[int], device: torch.device) -> Tensor:
        """Return `row_bounds` of these rows, made once for all layers."""
        if not self.known_bounds:
            self.known_bounds.append(varlen.row_bounds(lengths, device))
        return self.known_bounds[0]

    def mask(self, before: int, count: int, most: int, like: Tensor) -> Tensor:
        """Return 0 where the i-th of so many queries sees a key, else -inf, [count, before + count]. most: the most
        queries of such rows."""
        mask = self.masks.get(before)
        if mask is None or mask.shape[0] < count:
            visible = causal_mask(most, before + most, self.window, like.device)
            mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device).masked_fill_(~visible, -torch.inf)
            self.masks[before] = mask
        return mask[:count, : before + count]


class _Current(threading.local):
    spans: tuple[PackedSpan, ...] | None = None


_current = _Current()


@contextmanager
def reading_packed_rows(spans: Sequence[PackedSpan]) -> Iterator[None]:
    """Make what this thread feeds to a model meanwhile one row, in which rows lie as `Packing` says."""
    _current.spans = tuple(spans)
    try:
        yield
    finally:
        _current.spans = None


def use_attention(model: PreTrainedModel, wanted: str) -> None:
    """Make a model compute attention in the way that transformers calls so; empty: its default. Raises EngineError
    where it cannot."""
    now = model.config._attn_implementation
    if wanted and wanted != ("sdpa" if now == _NAME else now):
        try:
            model.set_attn_implementation(wanted)
        except (ValueError, ImportError) as error:
            reason = first_line(error)
            raise EngineError(f"{type(model).__name__} cannot compute attention by {wanted}: {reason}") from error
    use_packing_attention(model)


def use_packing_attention(model: PreTrainedModel) -> bool:
    """Make a model that uses torch's attention kernel read packed rows, and decode on a CPU with two batched products;
    return whether that is possible.

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


def supports_packed_rows(model: PreTrainedModel) -> bool:
    """Return whether the model uses this attention, and all its layers are of kinds that packed rows are supported
    for."""
    config = model.config.get_text_config()
    return config._attn_implementation == _NAME and _known_layers(config)


def _known_layers(config: Any) -> bool:
    return set(getattr(config, "layer_types", None) or ()) <= _KINDS


def _mask(*, config: Any, local_size: int | None = None, **more: Any) -> CausalMask | Tensor | None:
    """The function that transformers calls for the mask of a kind of layers; local_size: of a window."""
    if _current.spans is not None:
        return CausalMask(_current.spans, local_size)
    # For a window torch would be given a mask with each pair of tokens of a row.
    prefill = more["attention_mask"] is None and more["q_length"] == more["kv_length"]
    if (
        prefill
        and local_size is not None
        and more["q_length"] > local_size
        and _known_layers(config)
        and not more["use_vmap"]
    ):
        return CausalMask(None, local_size)
    mask: Tensor | None = sdpa_mask(config=config, local_size=local_size, **more)
    return mask


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: CausalMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: query [N, heads, T, size], key and value [N, groups, S, size] to
    [N, T, heads, size]."""
    if torch.is_autocast_enabled(query.device.type):
        narrow = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(narrow), key.to(narrow), value.to(narrow)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.shape[2] > 1 and value.shape[-1] != query.shape[-1]:
        width, size = max(value.shape[-1], query.shape[-1]), value.shape[-1]
        query, key, value = pad_width(query, width), pad_width(key, width), pad_width(value, width)
        return _attend(module, query, key, value, attention_mask, dropout, scale, softcap, **more)[0][..., :size], None
    if isinstance(attention_mask, CausalMask):
        if more.get("position_bias") is not None:
            raise NotImplementedError("a bias by position")
        if attention_mask.spans is not None:
            parts = (query, key, value)
            return _attend_packed(module, parts, attention_mask, attention_mask.spans, scale, softcap, more), None
        return _attend_rows(module, (query, key, value), attention_mask.window, scale, softcap, more), None
    if query.shape[2] == 1 and more.get("position_bias") is None and _per_row(attention_mask):
        on_cpu = query.device.type == "cpu"
        if on_cpu and query.dtype != torch.bfloat16 and not torch.is_grad_enabled():
            return _decode(query, key, value, attention_mask, scale, softcap), None
        if not on_cpu and softcap is None and attention_mask is not None:
            return decode_with_mask(query, key, value, attention_mask, scale), None
    if softcap is not None:
        if attention_mask is None and query.shape[2] == key.shape[2]:
            return _attend_rows(module, (query, key, value), None, scale, softcap, more), None
        if attention_mask is None:
            attention_mask = causal_mask(query.shape[2], key.shape[2], None, query.device)
        return capped_attention(query, key, value, attention_mask, scale, softcap).transpose(1, 2), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **more)


def _decode(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    rows, heads, _, size = query.shape
    groups, places = key.shape[1], key.shape[2]
    # A group's heads share its keys: they are the rows of one small product.
    grouped = query.reshape(rows * groups, heads // groups, size) * scale
    logits = torch.bmm(grouped, key.flatten(0, 1).transpose(1, 2))
    if softcap is not None:
        logits = cap_scores(logits, softcap)
    if mask is not None:
        hidden = ~mask[..., :places].expand(rows, groups, heads // groups, places)
        logits = logits.masked_fill(hidden.reshape(logits.shape), -torch.inf)
    weighted = torch.bmm(logits.softmax(-1), value.flatten(0, 1))
    return weighted.view(rows, 1, heads, value.shape[-1])


def decode_with_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return the attention of one query a row, [N, 1, heads, size], where a mask, bool [N or 1, 1, 1, S], says which
    places it sees. transformers would copy keys and values for each head of a group: here these are its queries."""
    rows, heads, _, size = query.shape
    groups, places = key.shape[1], key.shape[2]
    grouped = query.view(rows, groups, heads // groups, size)
    seen = mask[..., :places].expand(rows, 1, heads // groups, places)
    return sdpa(grouped, key, value, attn_mask=seen, scale=scale).reshape(rows, 1, heads, value.shape[-1])


def _per_row(mask: Tensor | None) -> bool:
    """Return whether there is no mask, or one that says for each row which places may be seen."""
    return mask is None or (mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[1] == mask.shape[2] == 1)


def _attend_packed(
    module: nn.Module,
    parts: Sequence[Tensor],
    causal: CausalMask,
    spans: Sequence[PackedSpan],
    scale: float,
    softcap: float | None,
    more: dict[str, Any],
) -> Tensor:
    """Return the attention of packed queries, keys and values, [1, heads, T, size] each, as [1, T, heads, size]. Rows
    that are alike are one call."""
    how, lengths = AttentionOptions(scale, causal.window, softcap), causal.lengths
    if lengths is not None and varlen.takes_one_call(parts[0], len(lengths), how):
        query, key, value = (part[0].transpose(0, 1) for part in parts)
        return varlen.attend(query, key, value, lengths, how, causal.bounds(lengths, query.device))[None]
    beginnings = [span.family_count * span.prefix_tokens for span in spans]
    ends = [span.family_count * rows * length for span in spans for rows, length in span.suffixes]
    split = [part[0].split([*beginnings, *ends], 1) for part in parts]
    begin_parts = [[part[at] for part in split] for at in range(len(spans))]
    end_parts = iter([part[at] for part in split] for at in range(len(spans), len(split[0])))
    begin_outputs, end_outputs = [], []
    for span, tensors in zip(spans, begin_parts, strict=True):
        families = [tensor.unflatten(1, (span.family_count, span.prefix_tokens)).transpose(0, 1) for tensor in tensors]
        if span.suffixes:
            # Views would keep all keys and values for the gradient.
            families[1:] = [tensor.contiguous() for tensor in families[1:]]
        begin_outputs.append(_attend_rows(module, families, causal.window, scale, softcap, more).flatten(0, 1))
        for rows, length in span.suffixes:
            query, *states = next(end_parts)
            count = span.family_count * rows
            # Each row of a family sees what the family begins with, and then itself.
            states_seen = [
                torch.cat(
                    [
                        common[:, None].expand(-1, rows, -1, -1, -1),
                        state.unflatten(1, (span.family_count, rows, length)).permute(1, 2, 0, 3, 4),
                    ],
                    3,
                ).flatten(0, 1)
                for common, state in zip(families[1:], states, strict=True)
            ]
            queries = query.unflatten(1, (count, length)).transpose(0, 1)
            mask = None
            if softcap is None and length <= varlen.QUERIES:
                mask = causal.mask(span.prefix_tokens, length, min(span.suffixes[-1][1], varlen.QUERIES), query)
            end_outputs.append(
                _attend_rows(module, [queries, *states_seen], causal.window, scale, softcap, more, mask).flatten(0, 1)
            )
    outputs = [*begin_outputs, *end_outputs]
    return torch.cat(outputs)[None] if len(outputs) > 1 else outputs[0][None]


def _attend_rows(
    module: nn.Module,
    rows: Sequence[Tensor],
    window: int | None,
    scale: float,
    softcap: float | None,
    more: dict[str, Any],
    mask: Tensor | None = None,
) -> Tensor:
    """Return the causal attention of equal rows: queries, keys and values, [N, heads, T or S, size] each, to [N, T,
    heads, size]; the queries are those of the last T of S places. Masks and scores exist for no more than a part of a
    row. mask: all of it, [T, S], where it exists already."""
    query, key, value = rows
    if softcap is None and key.shape[2] == query.shape[2] and (window is None or key.shape[2] <= window):
        return sdpa_attention_forward(module, query, key, value, None, 0.0, scale, **more)[0]

    def attend_part(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attention of some queries, of which the last one belongs to the last key."""
        places = key.shape[2]
        visible = causal_mask(query.shape[2], places, window, query.device) if mask is None else mask[:, -places:]
        visible = visible[None, None]
        if softcap is not None:
            return capped_attention(query, key, value, visible, scale, softcap).transpose(1, 2)
        if _GROUPED and query.device.type == "cpu" and key.shape[-1] == value.shape[-1]:
            # transformers would copy keys and values for each head of a group.
            grouped = query.shape[1] != key.shape[1]
            return sdpa(query, key, value, attn_mask=visible, scale=scale, enable_gqa=grouped).transpose(1, 2)
        return sdpa_attention_forward(module, query, key, value, visible, 0.0, scale, **more)[0]

    keeps = softcap is None and window is None and query.shape[2] <= varlen.QUERIES
    outputs = attend_in_query_chunks(attend_part, query, key, value, window, torch.is_grad_enabled() and not keeps)
    return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]
