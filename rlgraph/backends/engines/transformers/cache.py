"""A key-value cache whose memory is allocated ahead, for any model that takes a transformers `Cache`."""

from __future__ import annotations

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

    Room grows by half when it is used up, so a limit of thousands of tokens costs nothing while rows stay short.
    """

    def __init__(self, room: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room = room
        self._length = 0
        self._stored: tuple[Tensor, Tensor] | None = None

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
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Return the places in use."""
        return self._length

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order; a row may be kept more than once."""
        if self._stored is None:
            return
        stored = []
        for old in self._stored:
            new = old.new_empty([indices.shape[0], *old.shape[1:]])
            # Only the places in use are worth copying.
            new[:, :, : self._length] = old[:, :, : self._length].index_select(0, indices)
            stored.append(new)
        self._stored = (stored[0], stored[1])
        self.keys, self.values = (x[:, :, : self._length] for x in self._stored)

    def _grow(self, end: int, *like: Tensor) -> None:
        room = end + (min(self._room, _FIRST_ROOM) if self._stored is None else end // 2)
        grown = []
        for index, states in enumerate(like):
            new = states.new_empty([*states.shape[:2], room, states.shape[-1]])
            if self._stored is not None:
                new[:, :, : self._length] = self._stored[index][:, :, : self._length]
            grown.append(new)
        self._stored = (grown[0], grown[1])


def make_cache(config: PretrainedConfig, room: int) -> DynamicCache:
    """Return a cache for a model of this configuration and prompts that `room` tokens may follow.

    Sliding-window, recurrent and other special layers stay as transformers makes them.
    """
    cache = DynamicCache(config=config)
    cache.layers = [PreallocatedLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
