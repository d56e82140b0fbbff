"""Data-parallel replicas of a model: each has rows of its own, and all take the same step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET = 1 << 25
"""Numbers of gradients that are added up at a time, at least: a small model has many small gradients, which are one
message."""


class Replicas:
    """The replicas of a process group, one on each rank; if replicas are split, the ranks with one part."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """None: torch's default group."""
        self._group = group
        self._pending: _Buckets | None = None

    @contextmanager
    def overlap_last_micro_batch(self, before: Sequence[Tensor | None], like: Sequence[Tensor]) -> Iterator[None]:
        """Surround the last micro-batch of a step, whose gradients come on top of those before: they travel while
        others are computed (arXiv 2006.15704). The next `sum` is of these."""
        self._pending = _Buckets(like, self._group)
        hooks = [
            tensor.register_hook(partial(self._pending.take_gradient, index, before[index] if before else None))
            for index, tensor in enumerate(like)
        ]
        try:
            yield
        except BaseException:
            self._pending = None
            raise
        finally:
            for hook in hooks:
                hook.remove()

    def sum_over_replicas(
        self, total: float, busy: int, gradients: Sequence[Tensor | None], like: Sequence[Tensor]
    ) -> tuple[float, int, list[Tensor | None]]:
        """Return the loss, how many micro-batches have rows, and the gradients, added up over all replicas, the same
        bits on each. A replica without rows has None."""
        buckets, self._pending = self._pending or _Buckets(like, self._group), None
        return buckets.send_remaining_buckets(total, busy, gradients)


class _Buckets:
    """Buckets of gradients that are on their way, in one order on all replicas: that in which a backward pass comes by.
    The last one has the loss and the number of micro-batches, too."""

    def __init__(self, like: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        self._like, self._group = like, group
        self._buckets: list[list[int]] = [[]]
        for index in reversed(range(len(like))):
            if sum(like[at].numel() for at in self._buckets[-1]) >= BUCKET:
                self._buckets.append([])
            self._buckets[-1].append(index)
        self._parts: dict[int, Tensor] = {}
        self._flat: list[Tensor] = []
        self._works: list[dist.Work] = []

    def take_gradient(self, index: int, before: Tensor | None, gradient: Tensor) -> None:
        """Take a parameter's gradient, which is kept only until its bucket is full."""
        self._parts[index] = self._wide(index, gradient if before is None else before + gradient)
        while len(self._flat) < len(self._buckets) - 1 and all(
            at in self._parts for at in self._buckets[len(self._flat)]
        ):
            self._send([self._parts.pop(at) for at in self._buckets[len(self._flat)]])

    def send_remaining_buckets(
        self, total: float, busy: int, gradients: Sequence[Tensor | None]
    ) -> tuple[float, int, list[Tensor | None]]:
        """Send the buckets that were not sent, and return the sums."""
        for bucket in self._buckets[len(self._flat) :]:
            parts = [self._wide(at, gradients[at]) for at in bucket]
            last = len(self._flat) == len(self._buckets) - 1
            self._send([*parts, parts[0].new_tensor([total, busy])] if last else parts)
        sums: list[Tensor | None] = [None] * len(self._like)
        for bucket, flat, work in zip(self._buckets, self._flat, self._works, strict=True):
            work.wait()
            sizes = [self._like[at].numel() for at in bucket]
            for at, part in zip(bucket, flat[: sum(sizes)].split(sizes), strict=True):
                sums[at] = part.view(self._like[at].shape).to(self._like[at].dtype)
        total, count = self._flat[-1][-2:].tolist()
        return total, round(count), sums

    def _wide(self, index: int, gradient: Tensor | None) -> Tensor:
        tensor = self._like[index]
        dtype = tensor.dtype if tensor.dtype == torch.float64 else torch.float32
        if gradient is None:
            return torch.zeros(tensor.numel(), dtype=dtype, device=tensor.device)
        return gradient.detach().reshape(-1).to(dtype)

    def _send(self, parts: Sequence[Tensor]) -> None:
        flat = torch.cat(list(parts))
        self._flat.append(flat)
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        assert work is not None
        self._works.append(work)
