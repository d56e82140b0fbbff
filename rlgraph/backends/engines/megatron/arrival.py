"""New weights travel while the next pass begins: where copies share an update out, each gathers what the others have
updated (Megatron-LM's `overlap_param_gather`)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor, nn

from rlgraph.backends.engines.base import HalfChanged


class Arrival:
    """The weights of a model that are on their way, and who waits for them: a layer, before it computes, for its own;
    everybody else for all.

    Until a weight is there its tensor is empty, so that nobody computes with the old one by mistake.
    """

    def __init__(self, chunk: DistributedDataParallel) -> None:
        groups = [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]
        place = {id(weight): at for at, weight in enumerate(chunk.module.parameters())}
        # In the order in which a pass comes by them, which is the same on all copies.
        self._groups = sorted(groups, key=lambda group: min(place[id(weight)] for weight in group.params))
        self._coming: dict[int, tuple[Any, list[tuple[nn.Parameter, Tensor]]]] = {}
        """By the number of a group what to wait for, and what is then in the place of each of its tensors."""
        number = {id(weight): at for at, group in enumerate(self._groups) for weight in group.params}
        layers = list(chunk.module.decoder.layers)
        within = {id(part) for layer in layers for part in layer.modules()}
        for part in (*layers, *(part for part in chunk.module.modules() if id(part) not in within)):
            own = part.parameters(recurse=id(part) in within)
            if needed := sorted({number[id(weight)] for weight in own if id(weight) in number}):
                part.register_forward_pre_hook(partial(self._before, needed))

    def start(self) -> None:
        """After an update, of which every rank has made its part."""
        assert not self._coming, "an update waits for the weights of the one before"
        for at, group in enumerate(self._groups):
            group.start_param_sync()
            # Megatron's own hooks are not there to take it.
            handle, group.param_gather_handle = group.param_gather_handle, None
            self._coming[at] = handle, [(weight, weight.data) for weight in group.params]
            for weight in group.params:
                weight.data = torch.empty(0, dtype=weight.dtype, device=weight.device)

    def wait(self, groups: Iterable[int] | None = None) -> None:
        """Until the weights of some groups are there, or all. Raises HalfChanged, also to those who ask again, where
        they do not come."""
        for at in list(self._coming) if groups is None else groups:
            if at not in self._coming:
                continue
            handle, found = self._coming[at]
            try:
                handle.wait()
            except RuntimeError as error:
                raise HalfChanged(f"the weights of an update have not come from other copies: {error}") from error
            for weight, data in found:
                weight.data = data
            self._coming.pop(at, None)

    def _before(self, groups: list[int], part: nn.Module, given: tuple[Any, ...]) -> None:
        if self._coming:
            self.wait(groups)
