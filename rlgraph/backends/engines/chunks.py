"""Applies a head over a vocabulary to a few places at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def compute_in_chunks(read: Callable[..., Sequence[Tensor]], most: int, *columns: Tensor) -> Sequence[Tensor]:
    """Return `read(*columns)`, computed for at most `most` entries at a time.

    columns: [M, ...] each. read: gives tensors of as many entries as it gets, each made of its own entry alone.

    Where a gradient is kept, a chunk keeps its columns only: what is inside of `read` is computed again in the backward
    pass, and exists for one chunk at a time in both passes.
    """
    if columns[0].shape[0] <= most:
        return read(*columns)
    chunks = zip(*(column.split(most) for column in columns), strict=True)
    results = [_checkpointed(read, chunk) for chunk in chunks]
    return [torch.cat(parts) for parts in zip(*results, strict=True)]


def _checkpointed(read: Callable[..., Sequence[Tensor]], chunk: Sequence[Tensor]) -> Sequence[Tensor]:
    if not torch.is_grad_enabled():
        return read(*chunk)
    # Nothing in a model is random here: dropout is off.
    outputs: Sequence[Tensor] = checkpoint(read, *chunk, use_reentrant=False, preserve_rng_state=False)
    return outputs
