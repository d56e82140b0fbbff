"""What an engine that reserves a cache of keys and values is asked for when it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlgraph.backends.enginespec.memory import ReservedCache
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.cost.work import model_parallel_parameter_count, rank_kv_bytes_per_token


@dataclass(frozen=True, slots=True)
class CacheReservation:
    """The cache of one rank, and how much of its device it needs to be free."""

    row_tokens: int
    """The most tokens of a row, prompt and response together. The cache has room for one."""
    cache_bytes: int | None
    """None: what `share` leaves beside weights and buffers."""
    share: float
    """Of a device's memory, for weights and cache."""


@dataclass(frozen=True, slots=True)
class CacheSizingInput:
    """The model of a rank, and its device."""

    shape: Shape
    kind: ModelKind
    tp: int
    """The ranks over which layers are split."""
    itemsize: int
    """Bytes of a number."""
    on_cpu: bool
    memory: float | None
    """Bytes of the device; None where it is not known."""

    @property
    def kv_bytes_per_token(self) -> float:
        """Return the bytes of a token's keys and values on a rank."""
        return rank_kv_bytes_per_token(self.shape, self.tp, self.itemsize)

    @property
    def rank_weight_bytes(self) -> float:
        """Return the bytes of a rank's weights."""
        return model_parallel_parameter_count(self.shape, self.kind, 1, self.tp) * self.itemsize


def cache_reservation(
    question: CacheSizingInput, cache: ReservedCache, row_tokens: int | None, cache_bytes: int | None, share: float
) -> CacheReservation:
    """Return the terms for what is said: a longest row, the bytes of the cache, or a share of a device. What is not
    said follows: a row that the cache has room for, as far as positions reach; and of the device no more than weights
    and cache."""
    longest = row_tokens
    if longest is None and cache_bytes:
        longest = cache.longest_row_tokens(cache_bytes / question.kv_bytes_per_token, question.on_cpu)
    positions = question.shape.positions
    longest = min(longest or positions, positions)
    if cache_bytes is None and question.on_cpu:
        cache_bytes = cache.cpu_bytes
    if cache_bytes is not None:
        # An engine does not start with a cache that has no room for one row.
        cache_bytes = max(cache_bytes, one_row_cache_bytes(question, cache, longest))
        if question.memory and not question.on_cpu:
            share = min(share, (question.rank_weight_bytes + cache_bytes) / question.memory)
    return CacheReservation(longest, cache_bytes, share)


def one_row_cache_bytes(question: CacheSizingInput, cache: ReservedCache, row_tokens: int) -> int:
    """Return the bytes of a rank's cache with room for one row of so many tokens: the least that a plan may say."""
    return math.ceil(question.kv_bytes_per_token * cache.room_tokens(row_tokens, question.on_cpu))
