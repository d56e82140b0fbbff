"""Makes parameters of layers that Megatron-core has otherwise, or not at all, with the attributes that it reads."""

from __future__ import annotations

import torch
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from torch import nn


def replicated_parameter(rows: int, columns: int, split: bool) -> nn.Parameter:
    """Return a parameter that each tensor-parallel rank has all of. Each rank has gradients of its own columns or
    tokens: they are added up in the end."""
    weight = nn.Parameter(torch.zeros(rows, columns))
    weight.sequence_parallel = split  # type: ignore[attr-defined]
    return weight


def split_parameter(size: tuple[int, ...], dim: int) -> nn.Parameter:
    """Return a parameter of which each rank has a part, along a dimension."""
    weight = nn.Parameter(torch.zeros(size))
    set_tensor_model_parallel_attributes(weight, True, dim, 1)
    return weight
