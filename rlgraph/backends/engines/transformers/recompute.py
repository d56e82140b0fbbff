"""Makes layers keep their inputs alone, and compute the rest again for their gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.transformers.routing import Routing


def recompute_with_routes(model: nn.Module, routing: Routing | None) -> None:
    """Let layers that are computed again have the experts that were replayed."""
    for module in model.modules():
        if isinstance(module, _Recomputed):
            # Not a part of the module: layers are copied with it.
            object.__setattr__(module, "routing", routing)


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
    routing: Routing | None = None
    """The routers of the model, where their choice can be replayed."""

    def forward(self, *args: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().forward(*args, **keywords)
        # The experts that are replayed are those of this pass, whichever is computed meanwhile.
        contexts: dict[str, Any] = {} if self.routing is None else {"context_fn": self.routing.contexts_of_pass}
        return checkpoint(super().forward, *args, use_reentrant=False, preserve_rng_state=False, **contexts, **keywords)
