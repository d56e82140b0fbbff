"""Products of float32 models in bfloat16, as torch's autocast computes them, without a cast of every weight each time.

Embedding, norms, the sums between layers and the head stay float32; linear layers and attention are bfloat16. Autocast
by itself would cast all weights for each token that is decoded, which takes as long as their products.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rlgraph.backends.engines.adapters import AdaptedConv1D, AdaptedLinear, product_with_adapter

NARROW = torch.bfloat16


def use_autocast(model: PreTrainedModel) -> None:
    """Make the plain linear layers of a model's backbone multiply in bfloat16 where autocast is on."""
    for module in model.base_model.modules():
        # Subclasses may compute something else: autocast itself casts for them.
        narrow = _NARROW.get(type(module))
        if narrow is not None:
            module.__class__ = narrow
            module.narrow = Bfloat16Copy(shared=not module.weight.requires_grad)  # type: ignore[assignment]


def forget_bfloat16_copies(model: nn.Module, base: bool = False) -> None:
    """Give up the bfloat16 copies of weights that have changed; they are made again when they are needed. base: those
    of an adapters' base, too."""
    for module in model.modules():
        if isinstance(module, _Narrowed) and (base or not module.narrow.shared):
            module.narrow.forget()


def autocast(device: torch.device, enabled: bool) -> AbstractContextManager[Any]:
    """Return a context in which products are bfloat16."""
    return torch.autocast(device.type, NARROW, cache_enabled=False) if enabled else nullcontext()


class Bfloat16Copy:
    """A weight's copy in bfloat16, which lasts until it is forgotten, or another tensor is in the weight's place."""

    def __init__(self, shared: bool = False) -> None:
        """shared: the weight is that of an adapters' base, which copies of the model have in common."""
        self.shared = shared
        self._made: tuple[int, int, Tensor] | None = None
        """The weight's address and version when the copy was made, and the copy. Fused optimizers change weights and
        count no version: whoever lets them calls `forget`."""

    def get_copy(self, weight: Tensor) -> Tensor:
        """Return the copy of a weight, without gradient."""
        made, address, version = self._made, weight.data_ptr(), weight._version
        if made is None or made[:2] != (address, version):
            # What is made in inference mode could not be kept for a gradient.
            with torch.inference_mode(False), torch.no_grad():
                made = address, version, weight.detach().to(NARROW)
            self._made = made
        return made[2]

    def forget(self) -> None:
        """Give up the copy."""
        self._made = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Bfloat16Copy:
        return self if self.shared else Bfloat16Copy()


class _UseBfloat16Copy(torch.autograd.Function):
    """Takes a weight's copy in its place; the gradient is the weight's, in its dtype."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, narrow: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return narrow.view_as(narrow)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].to(ctx.dtype), None


class _Narrowed(nn.Module):
    """A linear layer that multiplies in bfloat16 where autocast is on."""

    narrow: Bfloat16Copy

    @property
    def adds_adapter(self) -> bool:
        """Whether its own product has that of its adapter, so that both are rounded once."""
        return _adds_adapter(self)


class _Linear(_Narrowed, nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return _apply(self, input, self.weight, self.bias, self.narrow, False)


class _Conv1D(_Narrowed, Conv1D):
    def forward(self, x: Tensor) -> Tensor:
        return _apply(self, x, self.weight, self.bias, self.narrow, True)


_NARROW: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: _Linear,
    AdaptedLinear: _Linear,
    Conv1D: _Conv1D,
    AdaptedConv1D: _Conv1D,
}
"""Linear layers, and what they are where autocast is used."""


def _adds_adapter(layer: nn.Module) -> bool:
    return hasattr(layer, "lora_A") and torch.is_autocast_enabled(next(layer.parameters()).device.type)


def _apply(
    layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None, narrow: Bfloat16Copy, transposed: bool
) -> Tensor:
    if _adds_adapter(layer):
        copy = narrow.get_copy(weight)
        return product_with_adapter(
            layer, x, copy.t() if transposed else copy, None if bias is None else bias.to(NARROW)
        )
    if torch.is_autocast_enabled(x.device.type):
        copy = narrow.get_copy(weight)
        differentiated = torch.is_grad_enabled() and weight.requires_grad
        weight = _UseBfloat16Copy.apply(weight, copy) if differentiated else copy  # type: ignore[no-untyped-call]
    return nn.functional.linear(x, weight.t() if transposed else weight, bias)
