"""A key-value cache whose memory is allocated ahead, for any model that takes a transformers `Cache`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

from rlgraph.backends.enginespec.memory import GrowingCache

_FIRST_ROOM = GrowingCache().spare_places
"""The most places that are allocated beyond the prompt at first."""


class PreallocatedLayer(DynamicLayer):
    """A layer that writes new keys and values in place, where transformers' own copies the whole cache for each token.

    Room grows by half when it is used up, so a limit of thousands of tokens costs nothing while rows stay short. Either
    what comes is appended, or, behind `fix_span`, each token is written where a tensor says.
    """

    def __init__(self, room: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room = room
        self._length = 0
        self._stored: tuple[Tensor, Tensor] | None = None
        self._column: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take dtype and device from the first keys."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append [N, heads, places, head size] to what is stored, and return all of it."""
        if torch.is_autocast_enabled(key_states.device.type):
            # Rotated keys are wide, and all of them would be cast for each token.
            narrow = torch.get_autocast_dtype(key_states.device.type)
            key_states, value_states = key_states.to(narrow), value_states.to(narrow)
        if self._stored is not None and self._column is not None:
            for stored, states in zip(self._stored, (key_states, value_states), strict=True):
                stored.index_copy_(2, self._column, states)
            return self._show()
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self._length + key_states.shape[-2]
        if self._stored is None or end > self._stored[0].shape[-2]:
            self._grow(end, key_states, value_states)
        assert self._stored is not None
        keys, values = self._stored
        keys[:, :, self._length : end] = key_states
        values[:, :, self._length : end] = value_states
        self._length = end
        return self._show()

    def fix_span(self, column: Tensor, span: int) -> None:
        """From now on write the next token at `column`, int64 [1], and return the first `span` places: those that
        nothing was written to are 0, and whoever reads has to leave them out."""
        assert self._stored is not None, "prompts are read first"
        before = self._length
        if span > self._stored[0].shape[-2]:
            self._grow(span, *self._stored)
        self._column, self._length = column, span
        for stored in self._stored:
            stored[:, :, before:span] = 0
        self._show()

    def spread(self, rows: int, places: int) -> None:
        """Give so many rows what the only one has, with room for so many places more, and for what follows these."""
        used = [states.expand(rows, -1, -1, -1) for states in self._show()]
        self._store(used, self._length + places + min(self._room, _FIRST_ROOM))
        self._show()

    def get_seq_length(self) -> int:
        """Return the places in use."""
        return self._length

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order; a row may be kept more than once."""
        if self._stored is None:
            return
        # Only the places in use are worth copying.
        used = [states.index_select(0, indices) for states in self._show()]
        self._store(used, self._stored[0].shape[2])
        self._show()

    def _show(self) -> tuple[Tensor, Tensor]:
        assert self._stored is not None
        keys, values = self._stored
        self.keys, self.values = shown = keys[:, :, : self._length], values[:, :, : self._length]
        return shown

    def _grow(self, end: int, *like: Tensor) -> None:
        if self._stored is None:
            self._store([states[:, :, :0] for states in like], end + min(self._room, _FIRST_ROOM))
        else:
            self._store([states[:, :, : self._length] for states in self._stored], end + end // 2)

    def _store(self, used: Sequence[Tensor], room: int) -> None:
        """Put keys and values of the places in use, [N, heads, places, size] each, where there are `room` places."""
        stored = []
        for states in used:
            new = states.new_empty([*states.shape[:2], room, states.shape[3]])
            new[:, :, : states.shape[2]] = states
            stored.append(new)
        self._stored = (stored[0], stored[1])


class PreallocatedCache(DynamicCache):
    """The caches of a model's layers."""

    @property
    def keeps_all_places(self) -> bool:
        """Whether each layer keeps all places, none of which its window or state leaves behind."""
        return all(isinstance(layer, PreallocatedLayer) for layer in self.layers)

    def spread(self, rows: int, places: int) -> None:
        """Do for all layers what `PreallocatedLayer.spread` does."""
        for layer in self.layers:
            assert isinstance(layer, PreallocatedLayer)
            layer.spread(rows, places)

    def fix_span(self, column: Tensor, span: int) -> None:
        """Do for all layers what `PreallocatedLayer.fix_span` does."""
        for layer in self.layers:
            assert isinstance(layer, PreallocatedLayer)
            layer.fix_span(column, span)


def make_cache(config: PretrainedConfig, room: int) -> PreallocatedCache:
    """Return a cache for a model of this configuration and prompts that `room` tokens may follow.

    Sliding-window, recurrent and other special layers stay as transformers makes them.
    """
    cache = PreallocatedCache(config=config)
    cache.layers = [PreallocatedLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
