"""Chooses how a model of transformers multiplies tokens with their experts."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from rlgraph.backends.engines.grouped import can_group

_GROUPED, _LOOP = "grouped_mm", "eager"
"""What transformers calls a product of all experts in one call, and one after the other."""


def use_grouped_experts(model: PreTrainedModel) -> None:
    """Make a model multiply its experts in one call where torch can, on a CPU too, which is no slower there, and else
    one after the other. What its configuration says otherwise stays.

    transformers groups whatever it is given, and fails in float64. On a GPU the loop waits for the host twice for each
    expert. Ranks call it when they have their part.
    """
    if getattr(model.config, "_experts_implementation", None) == _GROUPED and not can_group(_expert_weights(model)):
        model.set_experts_implementation(_LOOP)


def _expert_weights(model: PreTrainedModel) -> list[nn.Parameter]:
    """Return the matrices of modules that transformers can compute in several ways, which it marks so."""
    modules = [module for module in model.modules() if hasattr(module, "is_transposed")]
    return [weight for module in modules for weight in module.parameters(recurse=False) if weight.dim() == 3]
