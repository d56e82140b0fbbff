"""Data-parallel copies of a model: each has rows of its own, and all take the same step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


class Copies:
    """The copies of a process group, one on each rank; of copies that are shared out, those of one part."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """None: torch's default group."""
        self._group = group

    def sum(
        self, total: float, gradients: Sequence[Tensor | None], like: Sequence[Tensor]
    ) -> tuple[float, list[Tensor | None]]:
        """Loss and gradients added up over all copies, the same bits on each. A copy without rows has None."""
        wide = [tensor.dtype if tensor.dtype == torch.float64 else torch.float32 for tensor in like]
        parts = [
            torch.zeros(tensor.numel(), dtype=dtype, device=tensor.device)
            if gradient is None
            else gradient.reshape(-1).to(dtype)
            for gradient, tensor, dtype in zip(gradients, like, wide, strict=True)
        ]
        # One message for all: a small model has many small gradients.
        flat = torch.cat([parts[0].new_tensor([total]), *parts])
        dist.all_reduce(flat, group=self._group)
        sums = flat[1:].split([tensor.numel() for tensor in like])
        return float(flat[0]), [
            part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(sums, like, strict=True)
        ]
