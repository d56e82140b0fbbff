"""Faster matrix products for float32 models on a CPU.

torch multiplies float32 matrices with MKL, which on processors that are not Intel's keeps to narrow vectors; the oneDNN
that torch also carries has no such limit and was 2.2 times as fast on an AMD EPYC with AVX-512. On an Intel Xeon both
are as fast but for gradients: oneDNN copies what is transposed, so that MKL takes 0.5 to 0.9 of the time. Forward it is
oneDNN everywhere: a row of its products is the same to the bit beside any number of others but none, of MKL's only
beside 15 others or more.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlgraph.backends.engines.linear_head import Products

_WORTH = 1 << 20
"""Products with fewer multiplications stay with MKL, which starts sooner."""


def use_onednn_linears(model: nn.Module) -> int:
    """Make the plain linear layers of a float32 CPU model multiply with oneDNN, and return how many were changed.

    Parameters, their names and saved files stay as they are. Nothing is changed where oneDNN is missing or does not
    agree with torch on a small product.
    """
    if not _agrees():
        return 0
    changed = 0
    for module in model.modules():
        # Subclasses may compute something else: only the two plain classes are changed.
        faster = {nn.Linear: _Linear, Conv1D: _Conv1D}.get(type(module))
        if faster is not None and all(p.dtype == torch.float32 and p.device.type == "cpu" for p in module.parameters()):
            module.__class__ = faster
            changed += 1
    return changed


def is_plain_linear(layer: nn.Linear) -> bool:
    """Return whether a layer computes a product with its weight and nothing else, with oneDNN or not."""
    return type(layer) in (nn.Linear, _Linear)


def multiplies_with_onednn(layer: nn.Linear) -> bool:
    """Return whether `use_onednn_linears` changed a layer, and its weight is what it was changed for."""
    return isinstance(layer, _Linear) and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"


class _Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return _apply(input, self.weight, self.bias)


class _Conv1D(Conv1D):
    def forward(self, x: Tensor) -> Tensor:
        return _apply(x, self.weight.t(), self.bias)


class _Product(torch.autograd.Function):
    """Computes x W' + b of a matrix x, forward and backward with oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        if MKL_IS_WIDE:
            to_x = gradient @ weight if wants_x else None
            to_weight = gradient.t() @ x if wants_weight else None
        else:
            to_x = _times(gradient, weight) if wants_x else None
            to_weight = _outer(gradient, x) if wants_weight else None
        return to_x, to_weight, gradient.sum(0) if ctx.has_bias and wants_bias else None


def _apply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if x.numel() * weight.shape[0] < _WORTH or x.dtype != torch.float32 or weight.dtype != torch.float32:
        return nn.functional.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return _multiply(x, weight, bias)
    # With more dimensions this function would return a view, into which nobody may write, as ranks do that sum theirs.
    product: Tensor = _Product.apply(x.reshape(-1, x.shape[-1]), weight, bias)  # type: ignore[no-untyped-call]
    return product.view(*x.shape[:-1], -1)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Return a b, [M, K] and [K, N] to [M, N]."""
    return _multiply(a, b.t(), None)


def _outer(gradient: Tensor, x: Tensor) -> Tensor:
    """Return gradient' x, [M, outputs] and [M, inputs] to [outputs, inputs], laid out as weights are: else autograd
    would copy it, which takes longer than the copy that oneDNN makes of the first argument."""
    return _multiply(gradient.t(), x.t(), None)


def _has_wide_mkl() -> bool:
    """Return whether torch multiplies with MKL, and MKL with all of the processor's vectors."""
    try:
        processor = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        processor = platform.processor()
    return torch.backends.mkl.is_available() and "GenuineIntel" in processor


MKL_IS_WIDE = _has_wide_mkl()
"""Whether gradients are computed with MKL."""


def head_products() -> Products:
    """Return how a head that is one of these layers is multiplied."""
    return Products(_times) if MKL_IS_WIDE else Products(_times, _times, _outer)


def _agrees() -> bool:
    """Return whether oneDNN's product exists and gives what torch's gives, for each layout that is used here."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    x = torch.linspace(-1, 1, 3 * 40 * 24).view(3, 40, 24)
    weight, bias = torch.linspace(-2, 1, 32 * 24).view(32, 24), torch.linspace(0, 1, 32)
    flat, wide = x.view(-1, 24), torch.linspace(-1, 2, 120 * 32).view(120, 32)
    try:
        pairs = [
            (_multiply(x, weight, bias), nn.functional.linear(x, weight, bias)),
            (_multiply(wide, weight.t(), None), wide @ weight),
            (_multiply(wide.t(), flat.t(), None), wide.t() @ flat),
        ]
    except RuntimeError:
        return False
    return all(torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4) for ours, theirs in pairs)
