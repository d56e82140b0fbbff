"""The products of experts: each matrix with the tokens that chose it, all in one call where torch has that."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_GROUPED = getattr(torch.nn.functional, "grouped_mm", None)
"""Torch's product of groups of rows, each with a matrix of its own; older versions have none that is public."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ALIGNED_BYTES = 16
"""Rows of both matrices, and of their gradients, begin at multiples of so many bytes."""
_OLDEST_GPU = (8, 0)


def can_group(weights: Iterable[Tensor]) -> bool:
    """Return whether one call multiplies all of these experts, [E, outputs, inputs] each, and computes their gradients.

    On a CPU it is a loop within torch, to the bit what `grouped_product` gives otherwise.
    """
    return _GROUPED is not None and all(
        weight.dtype in _DTYPES
        and all(size * weight.element_size() % _ALIGNED_BYTES == 0 for size in weight.shape[1:])
        and (not weight.is_cuda or torch.cuda.get_device_capability(weight.device) >= _OLDEST_GPU)
        for weight in weights
    )


def sort_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Return the order in which the entries of `chosen`, int64 [N], are sorted by expert, int64 [N], and where each
    expert's end in it, int32 [experts]. The host waits for nothing."""
    ranked, order = chosen.sort(stable=True)
    numbers = torch.arange(experts, device=chosen.device)
    return order, torch.searchsorted(ranked, numbers, right=True, out_int32=True)


def grouped_product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Return the products of rows with their expert's matrix, [N, outputs]. Experts without rows have gradients, too.

    x: [N, inputs], by expert. weight: [E, outputs, inputs]. ends: int32 [E], where each expert's rows end. Where one
    call cannot do it the host waits for `ends`.
    """
    if len(x) and can_group([weight]):
        assert _GROUPED is not None
        product: Tensor = _GROUPED(x, weight.transpose(1, 2), offs=ends)
        return product
    counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return torch.cat([rows @ matrix.t() for rows, matrix in zip(x.split(counts), weight, strict=True)])
