"""Makes layers keep their inputs alone, and compute the rest again for their gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rlgraph.backends.engines.errors import EngineError


def use_recomputation(model: nn.Module) -> None:
    """Make the layers of a model be computed again in the backward pass. Raises EngineError for an architecture whose
    layers transformers does not name.

    transformers' own switch works in training mode alone, in which there would be dropout.
    """
    kinds: dict[type[nn.Module], Any] = {}
    for module in model.modules():
        kind = type(module)
        if isinstance(module, GradientCheckpointingLayer) and not isinstance(module, _Recomputed):
            if kind not in kinds:
                kinds[kind] = type(kind.__name__, (_Recomputed, kind), {})
            module.__class__ = kinds[kind]
    if not any(isinstance(module, _Recomputed) for module in model.modules()):
        raise EngineError(f"the layers of {type(model).__name__} cannot be recomputed: transformers does not name them")


class _Recomputed(nn.Module):
    def forward(self, *args: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().forward(*args, **keywords)
        return checkpoint(super().forward, *args, use_reentrant=False, preserve_rng_state=False, **keywords)
