"""A mixture of models where one model would sample: the weighted sum of their logits, each from a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.transformers.head import wide
from rlgraph.backends.engines.transformers.network import Network
from rlgraph.backends.engines.transformers.routing import Routing


class Decodes(Protocol):
    """What rows are decoded with: a network, or a mixture of several."""

    model: PreTrainedModel
    device: torch.device

    @property
    def routing(self) -> Routing | None:
        """Its routers of experts, where it has some."""
        ...

    @property
    def can_pad_left(self) -> bool:
        """Whether rows that are padded on the left give what they give alone."""
        ...

    @property
    def can_read_on(self) -> bool:
        """Whether rows whose common beginning was read once give what each gives alone."""
        ...

    @property
    def can_fix_spans(self) -> bool:
        """Whether a token that is written where a tensor says, into a cache with places to spare, gives what it gives
        behind the others."""
        ...

    @property
    def can_capture(self) -> bool:
        """Whether a token's work is this process's alone, so that a CUDA graph can have it."""
        ...

    def make_cache(self, room: int) -> Any:
        """Return the cache of rows whose prompts so many tokens may follow."""
        ...

    def decode_step(self, ids: Tensor, cache: Any, positions: Tensor, seen: Tensor | None, /) -> Tensor:
        """Return the logits behind the last of some tokens, [N, V], which are written into the cache."""
        ...


class MixtureCache:
    """The caches of several models for the same rows."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order."""
        for part in self.parts:
            part.batch_select_indices(indices)

    def spread(self, rows: int, places: int) -> None:
        """Do for each model what `PreallocatedCache.spread` does."""
        for part in self.parts:
            part.spread(rows, places)

    def fix_span(self, column: Tensor, span: int) -> None:
        """Do for each model what `PreallocatedCache.fix_span` does."""
        for part in self.parts:
            part.fix_span(column, span)


class MixtureNetwork:
    """Networks whose logits are added up with weights: softmax of that sum is the product of their distributions raised
    to these, scaled to 1."""

    routing = None

    def __init__(self, networks: Sequence[Network], weights: Sequence[float]) -> None:
        """The first one says on which device rows are sampled, and in which dtype."""
        self._networks, self._weights = networks, weights
        self.model, self.device = networks[0].model, networks[0].device

    @property
    def can_pad_left(self) -> bool:
        """Whether rows that are padded on the left give what they give alone."""
        return all(network.can_pad_left for network in self._networks)

    @property
    def can_read_on(self) -> bool:
        """Whether it is so with all networks."""
        return all(network.can_read_on for network in self._networks)

    @property
    def can_fix_spans(self) -> bool:
        """Whether all networks can."""
        return all(network.can_fix_spans for network in self._networks)

    @property
    def can_capture(self) -> bool:
        """Whether all networks can, on one device."""
        return all(network.can_capture and network.device == self.device for network in self._networks)

    def make_cache(self, room: int) -> MixtureCache:
        """Return the cache of rows whose prompts so many tokens may follow."""
        return MixtureCache([network.make_cache(room) for network in self._networks])

    def decode_step(self, ids: Tensor, cache: MixtureCache, positions: Tensor, seen: Tensor | None) -> Tensor:
        """Return the logits behind the last of some tokens, [N, V]. Raises EngineError where the vocabularies differ in
        size."""
        parts = [
            wide(network.decode_step(ids, own, positions, seen)).to(self.device)
            for network, own in zip(self._networks, cache.parts, strict=True)
        ]
        if len({part.shape[-1] for part in parts}) > 1:
            heads = " and ".join(str(part.shape[-1]) for part in parts)
            raise EngineError(f"a mixture is of models with as many outputs, and these have {heads}")
        total: Tensor = sum(weight * part for weight, part in zip(self._weights, parts, strict=True))  # type: ignore
        return total
