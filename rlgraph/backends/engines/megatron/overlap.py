"""Gradients travel while others are computed: copies add a bucket of them up as soon as the last micro-batch of a step
has made them (Megatron-LM's `overlap_grad_reduce`, as torch's DistributedDataParallel, arXiv 2006.15704)."""

from __future__ import annotations

from typing import Any

from megatron.core.distributed import DistributedDataParallel
from torch import nn


class Overlap:
    """Starts to add up the buckets of a model's gradients, in one order on all copies.

    Megatron's own way counts on each bucket's parameters to have gradients in every micro-batch, and starts a bucket
    whenever it has them. Here a loss may leave parameters out, and a copy may have no rows: a bucket waits for those
    before it, and what was not started by the end is started there.
    """

    def __init__(self, chunk: DistributedDataParallel) -> None:
        groups = [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]
        place = {id(weight): at for at, weight in enumerate(chunk.module.parameters())}
        # As the backward pass comes by the last one of each; experts' lie among the others.
        self._groups = sorted(groups, key=lambda group: -min(place[id(weight)] for weight in group.params))
        self._missing: list[set[nn.Parameter]] = []
        self._final: set[int] = set()
        """Of which weights there will be no more gradients than the next ones, by their ids."""
        self._hooks = [self._watch(weight, at) for at, group in enumerate(self._groups) for weight in group.params]
        self.clear()

    def clear(self) -> None:
        """Nothing is started; Megatron itself never starts any."""
        self._started = 0
        self._final.clear()
        self._missing = [set(group.params) for group in self._groups]
        for group in self._groups:
            group.is_last_microbatch = False

    def complete(self, part: nn.Module) -> None:
        """What is added from now on makes a step's gradients of a part's weights complete."""
        self._final.update(map(id, part.parameters()))

    def finish(self) -> None:
        """Starts what was not."""
        self._final.clear()
        for group in self._groups[self._started :]:
            group.start_grad_sync()
        self._started = len(self._groups)

    def _watch(self, weight: nn.Parameter, at: int) -> Any:
        """Behind Megatron's own hook, which adds the gradient to the bucket."""
        view = weight.expand_as(weight).grad_fn
        accumulated = view.next_functions[0][0] if view else None
        assert accumulated is not None
        accumulated.register_hook(lambda *_: self._made(weight, at))
        return accumulated

    def _made(self, weight: nn.Parameter, at: int) -> None:
        if id(weight) not in self._final:
            return
        assert at >= self._started, "a gradient was added to a bucket that has been sent"
        self._missing[at].discard(weight)
        while self._started < len(self._groups) and not self._missing[self._started]:
            self._groups[self._started].start_grad_sync()
            self._started += 1
