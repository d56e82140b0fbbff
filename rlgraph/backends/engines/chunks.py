"""A head over a vocabulary, a few places at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def in_chunks(read: Callable[..., Sequence[Tensor]], most: int, *columns: Tensor) -> Sequence[Tensor]:
    """`read(*columns)`, for at most `most` entries at a time.

    columns: [M, ...] each. read: gives tensors of as many entries as it gets, each made of its own entry alone.

    Where a gradient is kept, a chunk keeps its columns only: what is inside of `read` is computed again in the backward
    pass, and is there for one chunk at a time in both passes.
    """
    if columns[0].shape[0] <= most:
        return read(*columns)
    chunks = zip(*(column.split(most) for column in columns), strict=True)
    done = [_one(read, chunk) for chunk in chunks]
    return [torch.cat(parts) for parts in zip(*done, strict=True)]


def _one(read: Callable[..., Sequence[Tensor]], chunk: Sequence[Tensor]) -> Sequence[Tensor]:
    if not torch.is_grad_enabled():
        return read(*chunk)
    # Nothing in a model is random here: dropout is off.
    found: Sequence[Tensor] = checkpoint(read, *chunk, use_reentrant=False, preserve_rng_state=False)
    return found
