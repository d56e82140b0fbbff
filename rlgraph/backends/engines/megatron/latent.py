"""Attention to a few numbers a token, of which each head makes its keys and values, in a layer of Megatron-core:
DeepSeek's multi-head latent attention."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel import (
    gather_from_sequence_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from rlgraph.backends.engines.megatron.modules import Norm, PackedRows, Turn, rotate
from rlgraph.backends.engines.megatron.parameters import replicated_parameter, split_parameter
from rlgraph.backends.engines.varlen import AttentionOptions, attend, pad_width
from rlgraph.catalog.models.shape import Shape

_EPS = 1e-6
"""The epsilon of the norms of what queries and keys are made of, whatever that of a layer's norms is."""


class LatentAttention(nn.Module):
    """Multi-head latent attention. Ranks along tp have some heads each. Each computes what heads share for its own
    tokens, and they gather that: it is less than the hidden states are."""

    def __init__(self, config: TransformerConfig, *, shape: Shape, **_: Any) -> None:
        super().__init__()
        assert shape.latent is not None
        self._latent, tp = shape.latent, config.tensor_model_parallel_size
        self._split, self._heads = tp > 1, shape.heads // tp
        size, query_size = self._latent.plain + self._latent.turned, self._latent.queries
        # All get the largest width: torch's kernels that keep no scores want queries, keys and values of one width.
        self._width = max(size, self._latent.values)
        self._how = AttentionOptions(shape.score_scale or size**-0.5)
        if query_size:
            self.queries_down = replicated_parameter(query_size, shape.hidden, self._split)
            self.queries_norm = Norm(config, query_size, _EPS)
        self.queries_up = split_parameter((self._heads * size, query_size or shape.hidden), 0)
        self.keys_down = replicated_parameter(self._latent.cached_numbers_per_token, shape.hidden, self._split)
        self.keys_norm = Norm(config, self._latent.keys, _EPS)
        self.keys_up = split_parameter((self._heads * (self._latent.plain + self._latent.values), self._latent.keys), 0)
        self.linear_proj = split_parameter((shape.hidden, self._heads * self._latent.values), 1)

    def forward(self, hidden: Tensor, *, packed_seq_params: PackedRows, **_: Any) -> tuple[Tensor, None]:
        """hidden: [tokens / tp, 1, hidden]."""
        x, latent, share = hidden[:, 0], self._latent, packed_seq_params.token_shard
        low, turned = (x @ self.keys_down.t()).split([latent.keys, latent.turned], -1)
        queries = self.queries_norm(x @ self.queries_down.t()) if latent.queries else x
        low = self.keys_norm(low)
        if self._split:
            sizes = [part.shape[1] for part in (queries, low, turned)]
            gathered = gather_from_sequence_parallel_region(torch.cat([queries, low, turned], 1))
            queries, low, turned = gathered.split(sizes, 1)
        query, key, value = self._read(queries, low, turned, packed_seq_params.rotations[0])
        if share:
            attended = share.attend(query, key, value, self._how)
        else:
            lengths, bounds = packed_seq_params.lengths, packed_seq_params.bounds
            attended = attend(query, key, value, lengths, self._how, bounds)
        projected = (attended[..., : latent.values].flatten(1) @ self.linear_proj.t())[:, None]
        return reduce_scatter_to_sequence_parallel_region(projected) if self._split else projected, None

    def _read(self, queries: Tensor, low: Tensor, turned: Tensor, turn: Turn) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of this rank's heads, [tokens, heads, size] each, all of the same width."""
        latent = self._latent
        query = (queries @ self.queries_up.t()).unflatten(1, (self._heads, -1))
        keys_values = (low @ self.keys_up.t()).unflatten(1, (self._heads, -1))
        key, value = keys_values.split([latent.plain, latent.values], -1)
        plain, to_rotate = query.split([latent.plain, latent.turned], -1)
        shared_part = _rotate(turned[:, None], turn).expand(-1, self._heads, -1)
        query = torch.cat([plain, _rotate(to_rotate, turn)], -1)
        key = torch.cat([key, shared_part], -1)
        return pad_width(query, self._width), pad_width(key, self._width), pad_width(value, self._width)


def _rotate(x: Tensor, turn: Turn) -> Tensor:
    """Rotate neighbouring numbers together; the first of each two rotated numbers come before all second ones, in
    queries as in keys."""
    return rotate((x[..., 0::2], x[..., 1::2]), turn)
