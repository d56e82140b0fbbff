"""The memory that an engine holds beside weights, activations and moments, and its cache of keys and values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from rlgraph.catalog.clusters.cluster import DeviceKind


def _unfused(device: DeviceKind, dtype: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ReservedCache:
    """A cache of keys and values that is allocated at the start, as large as the plan says."""

    prompt_tokens: int = 8192
    """Prompt tokens that are read at a time; there are buffers for as many."""
    cpu_prompt_tokens: int = 2048
    """`prompt_tokens` on a CPU."""
    rows: int = 1024
    """The most rows that are decoded together."""
    cpu_rows: int = 256
    """`rows` on a CPU."""
    block: int = 16
    """Tokens of a prompt whose keys and values its samples share in one piece: each sample reads for itself what
    remains after the prompt's last full block."""
    cpu_block: int = 32
    """`block` on a CPU."""
    page: int = 64
    """Tokens of the largest block that the cache of a device is made of: kernels choose among 16, 32 and 64."""
    share: float = 0.9
    """Share of a device's memory that weights and cache fill where nobody says how large the cache is."""
    cpu_bytes: int = 64 << 20
    """Bytes of the cache on a CPU where nobody says how many."""
    place_bytes: int = 5
    """Bytes in the host's memory for each token that each row may have: which token it is, and whether that is
    known."""
    gathered_tokens: int = 1 << 16
    """The most tokens for which there is room where the cache of earlier tokens is put together, if it holds what keys
    and values are made of (vLLM 0.32, `MLACommonMetadataBuilder.determine_chunked_prefill_workspace_size` in
    `model_executor/layers/attention/mla_attention.py`)."""

    def room_tokens(self, tokens: float, on_cpu: bool) -> int:
        """Return the tokens that a cache needs room for to hold one row of so many: whole blocks, and one that the
        engine keeps for itself."""
        page = self.cpu_block if on_cpu else self.page
        return page * (math.ceil(tokens / page) + 1)

    def longest_row_tokens(self, room: float, on_cpu: bool) -> int:
        """Return the tokens of the longest row that fits a cache with room for so many tokens."""
        page = self.cpu_block if on_cpu else self.page
        return page * max(1, int(room // page) - 1)

    def bookkeeping_bytes(self, positions: int, on_cpu: bool) -> int:
        """Return the bytes that the engine keeps beside the cache for its notes on tokens, where a row can have so
        many."""
        return self.place_bytes * self.cpu_rows * positions if on_cpu else 1 << 20

    def gathered_token_room(self, positions: int, on_cpu: bool) -> int:
        """Return for how many gathered tokens there is room, where a row can have so many."""
        rows = self.cpu_rows if on_cpu else self.rows
        return min(max(8 * positions, 4 * rows * self.block), self.gathered_tokens)


@dataclass(frozen=True, slots=True)
class GrowingCache:
    """A cache of keys and values that each call makes for its rows."""

    max_decoded_tokens: int = 1 << 18
    """Tokens, of all rows together, that are decoded at a time."""
    spare_places: int = 64
    """Places beyond the prompt that a row has at first; when they are used up it grows by half."""


@dataclass(frozen=True, slots=True)
class HeadTiles:
    """How many logits of a linear head exist at a time, and which of them stay for the backward pass: engines, seconds
    and bytes of plans go by it."""

    kept: int = 1 << 26
    """The logits of a micro-batch whose exponentials stay, in the model's dtype; the others are computed again."""
    rows: int = 1024
    """The most tokens of a tile."""
    columns: int = 2048
    """The most columns of a tile: as many whatever the tokens, so that a token's sums are the same beside others."""
    gpu_rows: int = 2048
    """`rows` on a GPU."""
    gpu_columns: int = 8192
    """`columns` on a GPU."""
    cached: int = 1 << 17
    """So many logits of a tile have all done to them, on a CPU, before the next ones: they fit a core's cache."""

    def shape(self, rows: int, vocab: int, on_cpu: bool) -> tuple[int, int]:
        """Return the most tokens and columns of a tile: tiles of about as many tokens each."""
        most, columns = (self.rows, self.columns) if on_cpu else (self.gpu_rows, self.gpu_columns)
        high = math.ceil(rows / max(1, math.ceil(rows / most)))
        return max(1, high), max(1, min(vocab, columns))


@dataclass(frozen=True, slots=True)
class Ranking:
    """What it takes to sample from the likeliest tokens alone (`top_k`, `top_p`), beside what sampling from all does:
    the logits of so many rows are sorted at a time."""

    logits: int = 1 << 22
    """Logits that are sorted at a time, at least a row's."""
    bytes_per_logit: int = 37
    """For each of them: 25 that operators return, the sorted weights and their columns, sums and what is left, and 12
    of a second copy that a sort has on a GPU (assumed)."""

    def rows(self, vocab: int) -> int:
        """Return how many rows are sorted at a time."""
        return max(1, self.logits // vocab)

    def most_bytes(self, rows: float, vocab: int) -> float:
        """Return the bytes that this takes where so many rows are sampled together."""
        return self.bytes_per_logit * min(rows, self.rows(vocab)) * vocab


RANKING = Ranking()
"""All engines sample by the same code."""


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """The memory that an engine holds beside weights, activations and moments."""

    network_columns: int = 4
    """Columns that a layer keeps for each one of its feed-forward network: gate, up, SiLU of the gate, and product."""
    angle_numbers: int = 2
    """Numbers that positions keep for each token and column of a head: sine and cosine, or the angle alone."""
    row_by_row: bool = False
    """Outputs of packed rows exist for each row, and put together, whatever the rows' lengths; else only where lengths
    differ."""
    splits_tokens: bool = False
    """What tensor-parallel ranks do not split of a layer by columns they split by tokens: sequence parallelism."""
    split_head: bool = False
    """Losses are made of logits that are split by vocabulary, whether over several ranks or one."""
    head_tiles: HeadTiles | None = None
    """The tiles in which a linear head is computed; None: all logits of a chunk of tokens exist at a time."""
    keeps_fused: bool = True
    """In a model whose queries, keys and values are one tensor a layer keeps that, and rotated queries twice."""
    fused_norms: Callable[[DeviceKind, str], bool] = _unfused
    """Whether norms keep what they read and no more, on a kind of device and in a dtype."""
    wide_norm_bytes: int = 8
    """Bytes for each column that are kept by norms which multiply by one more than their weight."""
    gradients_stay: bool = False
    """Wide gradients of a trained model exist at all times, not only during a step."""
    cache: ReservedCache | GrowingCache = field(default=GrowingCache())
    """The cache of keys and values for generating."""
    cpu_dtype: str | None = None
    """The dtype that it computes in on a CPU, whatever it is told."""
    process_bytes: int = 512 << 20
    """Bytes that one of its processes has on a GPU beside tensors: CUDA's context with the kernels of torch. Those are
    300 to 400 MB (pytorch issues 20532 and 107667), and grow with the kernels that are used."""
    cpu_adapters_by_token: bool = False
    """On a CPU each token that is read gets a copy of a matrix of its adapter, where adapters are beside the
    weights."""
    cpu_packs_experts: bool = False
    """On a CPU experts are stored twice: as its kernel wants them, and as others write them."""
