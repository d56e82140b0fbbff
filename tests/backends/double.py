"""transformers' Qwen2 in the precision of its weights.

It computes norms, angles and the literal attention's softmax in float32, whatever the dtype of the model. Their last
digits are those of a processor and of a row's place in memory, and stand at 1e-8 of a number: no two ways to compute a
thing could be compared to more than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen2 import modeling_qwen2 as qwen2


@contextmanager
def in_double() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qwen2.Qwen2RMSNorm, "forward", _norm)
        patch.setattr(qwen2.Qwen2RotaryEmbedding, "forward", _rotation)
        patch.setattr(qwen2, "eager_attention_forward", _attention)
        yield


def _norm(self: Any, x: Tensor) -> Tensor:
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def _rotation(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    angles = (position_ids[..., None] * self.inv_freq.to(x.dtype)).repeat(1, 1, 2)
    return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    groups: Any = module.num_key_value_groups
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * scaling
    shares = (scores if mask is None else scores + mask).softmax(-1)
    return (shares @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), shares
