"""Lets gradients travel while others are computed: replicas add up a bucket of them as soon as the last micro-batch of
a step has computed them (Megatron-LM's `overlap_grad_reduce`, as torch's DistributedDataParallel, arXiv 2006.15704)."""

from __future__ import annotations

from typing import Any

from megatron.core.distributed import DistributedDataParallel
from torch import nn


class GradientOverlap:
    """Starts to add up the buckets of a model's gradients, in one order on all replicas.

    Megatron's own way counts on each bucket's parameters to have gradients in every micro-batch, and starts a bucket
    whenever it has them. Here a loss may leave parameters out, and a replica may have no rows: a bucket waits for those
    before it, and what was not started by the end is started there.
    """

    def __init__(self, chunk: DistributedDataParallel) -> None:
        groups = [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]
        order = {id(weight): at for at, weight in enumerate(chunk.module.parameters())}
        # Sorted by when the backward pass reaches each one's last weight; those of experts lie among the others.
        self._groups = sorted(groups, key=lambda group: -min(order[id(weight)] for weight in group.params))
        self._missing: list[set[nn.Parameter]] = []
        self._final: set[int] = set()
        """The ids of weights that get no more gradients after the next ones."""
        self._hooks = [self._watch(weight, at) for at, group in enumerate(self._groups) for weight in group.params]
        self.forget_started_buckets()

    def forget_started_buckets(self) -> None:
        """Forget what was started; Megatron itself never starts a bucket."""
        self._started = 0
        self._final.clear()
        self._missing = [set(group.params) for group in self._groups]
        for group in self._groups:
            group.is_last_microbatch = False

    def expect_last_gradients(self, part: nn.Module) -> None:
        """Note that the gradients added from now on are the last of a step for a part's weights."""
        self._final.update(map(id, part.parameters()))

    def start_remaining_buckets(self) -> None:
        """Start the buckets that were not started."""
        self._final.clear()
        for group in self._groups[self._started :]:
            group.start_grad_sync()
        self._started = len(self._groups)

    def _watch(self, weight: nn.Parameter, at: int) -> Any:
        """Add a hook after Megatron's own, which adds the gradient to the bucket."""
        view = weight.expand_as(weight).grad_fn
        accumulated = view.next_functions[0][0] if view else None
        assert accumulated is not None
        accumulated.register_hook(lambda *_: self._on_gradient(weight, at))
        return accumulated

    def _on_gradient(self, weight: nn.Parameter, at: int) -> None:
        if id(weight) not in self._final:
            return
        assert at >= self._started, "a gradient was added to a bucket that has been sent"
        self._missing[at].discard(weight)
        while self._started < len(self._groups) and not self._missing[self._started]:
            self._groups[self._started].start_grad_sync()
            self._started += 1
