"""Root-mean-square normalization that keeps little for its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight along the last dimension, in the dtype of `x`: float32 or wider, as
    sums of narrower ones need more. Its gradient is computed by hand, from one copy of `x` in normal form."""
    normalized: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return normalized


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        # The formula's own sums, so that a model in training gives what it gives without gradients, to the bit.
        scale: Tensor = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        normal = x * scale
        ctx.save_for_backward(normal, weight, scale)
        return normal * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients
        normal, weight, scale = ctx.saved_tensors
        product = (gradient * normal).flatten(0, -2)
        mean = torch.mv(product, weight).view(scale.shape).mul_(-1 / normal.shape[-1])
        to_x = torch.addcmul(gradient * weight, normal, mean).mul_(scale)
        return to_x, product.sum(0), None
