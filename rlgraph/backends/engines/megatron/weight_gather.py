"""Lets new weights travel while the next pass begins: where replicas shard an update, each gathers what the others have
updated (Megatron-LM's `overlap_param_gather`)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor, nn

from rlgraph.backends.engines.errors import PartialUpdate


class WeightGather:
    """The weights of a model that are on their way. A layer waits for its own before it computes; everybody else waits
    for all.

    Until a weight has arrived its tensor is empty, so that nobody computes with the old one by mistake.
    """

    def __init__(self, chunk: DistributedDataParallel) -> None:
        groups = [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]
        order = {id(weight): at for at, weight in enumerate(chunk.module.parameters())}
        # The order in which a pass uses them, which is the same on all replicas.
        self._groups = sorted(groups, key=lambda group: min(order[id(weight)] for weight in group.params))
        self._pending: dict[int, tuple[Any, list[tuple[nn.Parameter, Tensor]]]] = {}
        """For the number of a group what to wait for, and the data that each of its tensors then gets."""
        group_of = {id(weight): at for at, group in enumerate(self._groups) for weight in group.params}
        layers = list(chunk.module.decoder.layers)
        in_layers = {id(part) for layer in layers for part in layer.modules()}
        for part in (*layers, *(part for part in chunk.module.modules() if id(part) not in in_layers)):
            parameters = part.parameters(recurse=id(part) in in_layers)
            if needed := sorted({group_of[id(weight)] for weight in parameters if id(weight) in group_of}):
                part.register_forward_pre_hook(partial(self._wait_before, needed))

    def start_gather(self) -> None:
        """Start gathering after an update, of which every rank has computed its part."""
        assert not self._pending, "an update waits for the weights of the one before"
        for at, group in enumerate(self._groups):
            group.start_param_sync()
            # Megatron's own hooks, which would take the handle, are disabled.
            handle, group.param_gather_handle = group.param_gather_handle, None
            self._pending[at] = handle, [(weight, weight.data) for weight in group.params]
            for weight in group.params:
                weight.data = torch.empty(0, dtype=weight.dtype, device=weight.device)

    def wait_for_weights(self, groups: Iterable[int] | None = None) -> None:
        """Wait until the weights of some groups have arrived, or all. Raises PartialUpdate, also for later calls, where
        they do not come."""
        for at in list(self._pending) if groups is None else groups:
            if at not in self._pending:
                continue
            handle, weights = self._pending[at]
            try:
                handle.wait()
            except RuntimeError as error:
                raise PartialUpdate(f"the weights of an update have not come from other copies: {error}") from error
            for weight, data in weights:
                weight.data = data
            self._pending.pop(at, None)

    def _wait_before(self, groups: list[int], part: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._pending:
            self.wait_for_weights(groups)
