"""Torch's attention of rows of different lengths where there is no GPU: plain products, which refuse what it does."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from rlgraph.backends.engines import varlen
from rlgraph.backends.engines.varlen import AttentionOptions


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """As `torch.nn.attention.varlen` says, in any dtype; `window_size`: so many more tokens to the left, -1 for all."""
    for tensor in (query, key, value):
        assert tensor.dim() == 3 and tensor.stride(-1) == 1 and tensor.shape[2] == query.shape[2] <= 256
    assert query.shape[2] % 8 == 0 and key.shape == value.shape
    assert query.shape[1] == key.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0)
    for bounds in (cu_seq_q, cu_seq_k):
        assert bounds.dtype == torch.int32 and bounds.device == query.device and bounds.is_contiguous()
        assert int(bounds[0]) == 0 and int(bounds[-1]) == len(query)
    sizes = cu_seq_q.diff()
    assert max_q == max_k == int(sizes.max()) and cu_seq_k.equal(cu_seq_q) and window_size[1] == 0
    row = torch.arange(len(sizes)).repeat_interleave(sizes)
    place = torch.arange(len(query))
    back = place[:, None] - place
    seen = (row[:, None] == row) & (back >= 0)
    if window_size[0] >= 0:
        seen &= back <= window_size[0]
    key, value = (states.repeat_interleave(query.shape[1] // key.shape[1], 1) for states in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * (query.shape[2] ** -0.5 if scale is None else scale)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), value)


class OneCall:
    """While it lasts rows are attended to in one call, as on a GPU, wherever scores are not capped."""

    calls = 0

    def __enter__(self) -> OneCall:
        def counted(*args: Any, **options: Any) -> Tensor:
            self.calls += 1
            return varlen_attn(*args, **options)

        def takes(query: Tensor, rows: int, how: AttentionOptions) -> bool:
            return rows > 1 and how.score_cap is None

        self._patches = [patch.object(varlen, "_VARLEN", counted), patch.object(varlen, "takes_one_call", takes)]
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._patches:
            each.stop()
