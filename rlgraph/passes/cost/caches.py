"""Estimates how many bytes a model that generates needs, with a cache that is reserved from the start or one that
grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from rlgraph.backends.enginespec.memory import RANKING, GrowingCache, ReservedCache
from rlgraph.catalog.models.families import linear_layers
from rlgraph.ir.dtypes import ITEM_BYTES
from rlgraph.passes.cost import latent_attention, work
from rlgraph.passes.cost.activations import forward_peak_bytes
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.decoding_slots import decoding_slots
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.memory import BUCKET, INPUTS, BytesByUse, Load, MemoryModel, MemoryNeeds, larger_total
from rlgraph.passes.cost.weights import rank_adapter_parameter_count, rank_parameter_count, received_adapter_bytes
from rlgraph.passes.cost.work import Tokens


class _Reserving(MemoryModel):
    """The memory of a model that generates with a reserved cache: its weights, the cache of keys and values, and what
    prefill needs. A load is the number of rows that are decoded together."""

    def __init__(
        self, config: ModelConfig, deployment: Deployment, batches: Sequence[Batch], cache: ReservedCache
    ) -> None:
        super().__init__(config, deployment, batches)
        self.cache = cache
        self.slots = [decoding_slots(config, deployment, batch) for batch in batches]

    @property
    def replica_load_cache_key(self) -> object:
        return tuple(self.slots)

    def replica_load(self, copies: int, chunks: int = 0) -> Load:
        """Return the most rows of a batch that one of so many replicas decodes together."""
        pairs = zip(self.slots, self.batches, strict=True)
        return (max((min(most, batch.rows_of_fullest_replica(copies)) for most, batch in pairs), default=0.0),)

    @property
    def never_offloaded_bytes(self) -> float:
        """The engine makes its input before it reads a prompt: it has room for as many tokens as it reads at a time."""
        shape, on_cpu = self.config.shape, self.deployment.on_cpu
        notes = self.cache.bookkeeping_bytes(shape.positions, on_cpu)
        return self._most_prompt_tokens * shape.hidden * self._item_bytes + notes

    @property
    def _most_prompt_tokens(self) -> int:
        """The prompt tokens that are read at a time."""
        if not self.deployment.on_cpu:
            return self.cache.prompt_tokens
        # On a CPU the prompts of models with latent attention are not chunked.
        shape = self.config.shape
        return max(self.cache.cpu_prompt_tokens, shape.positions if shape.latent else 0)

    @property
    def _item_bytes(self) -> int:
        """The bytes of a number."""
        cpu_dtype = self.deployment.engine_spec.memory.cpu_dtype
        return ITEM_BYTES[cpu_dtype] if cpu_dtype and self.deployment.on_cpu else self.config.item_bytes

    def memory_needs(self, load: Load) -> MemoryNeeds:
        """Return the memory of a replica that decodes so many rows together, its cache included."""
        (rows,) = load
        config, deployment, reserved = self.config, self.deployment, self.cache
        shape, item = config.shape, self._item_bytes
        weights = work.model_parallel_parameter_count(shape, config.kind, 1, deployment.tp) * item
        travels = weights
        if shape.adapters:
            weights += received_adapter_bytes(config, deployment, item)
            travels = config.adapter_bytes
        if deployment.engine_spec.memory.cpu_packs_experts and deployment.on_cpu:
            weights += work.expert_parameter_count(shape) * item / deployment.tp
        width = max((batch.prompt.longest + batch.response.longest for batch in self.batches), default=0.0)
        row_token = work.kv_bytes_per_token(shape, item) / work.kv_shard_count(shape, deployment.tp)
        cache = deployment.kv_bytes or (
            max(reserved.cpu_bytes, row_token * width) if deployment.on_cpu else row_token * rows * width
        )
        ffn = max(shape.ffn * max(1, shape.experts_per_token) + shape.shared_ffn, shape.dense_ffn) / deployment.tp
        prompt_tokens = min(self._most_prompt_tokens, rows * width)
        prefill = (
            prompt_tokens
            * item
            * (2 * shape.hidden + max(self._attended(), 2 * shape.hidden + 4 * ffn) + self._copied())
        )
        turned = shape.latent.turned if shape.latent else shape.head_dim
        buffers = float(shape.positions * turned * item)
        if shape.latent:
            gathered = reserved.gathered_token_room(shape.positions, deployment.on_cpu)
            buffers += gathered * shape.latent.cached_numbers_per_token * item
            if not deployment.on_cpu:
                # Keys and values are made from the cache for as many tokens of a prompt.
                remade = shape.heads * (shape.head_dim + shape.latent.plain + shape.latent.values) / deployment.tp
                prefill += min(gathered, rows * width) * remade * item
        # Each rank has the logits of the whole vocabulary.
        logits = _sampling_bytes(rows, shape.vocab, item, any(batch.ranks for batch in self.batches))
        stays = BytesByUse(
            (
                ("weights", weights),
                ("cache", cache),
                ("buffers", buffers),
                (INPUTS, self.never_offloaded_bytes),
                ("messages", min(BUCKET, travels)),
            )
        )
        return MemoryNeeds(
            stays, larger_total(BytesByUse((("activations", prefill),)), BytesByUse((("logits", logits),)))
        )

    def _copied(self) -> float:
        """Return how many numbers of adapters a token gets at most, where an engine copies them for each token."""
        shape, deployment = self.config.shape, self.deployment
        by_token = deployment.on_cpu and deployment.engine_spec.memory.cpu_adapters_by_token
        if shape.adapters is None or deployment.merges_adapters or not by_token:
            return 0.0
        sizes = linear_layers(shape)
        widest = max(max(sizes[name]) for name in shape.adapters.adapted_layers(sizes))
        return float(deployment.engine_spec.allocated_adapter_rank(shape.adapters.rank) * widest)

    def _attended(self) -> float:
        """Return how many numbers a layer's attention needs for each token during prefill."""
        shape, tp = self.config.shape, self.deployment.tp
        if shape.latent:
            return 2 * shape.hidden + latent_attention.prefill_elements_per_token(shape, shape.latent, shape.heads / tp)
        return (4 * shape.heads + 6 * shape.kv_heads) * shape.head_dim / tp


class _Growing(MemoryModel):
    """The memory of a model whose cache is made and grown by each call: prompts are read all at once, before their rows
    are decoded together. A load has for each batch the number of rows that are decoded together."""

    def __init__(
        self, config: ModelConfig, deployment: Deployment, batches: Sequence[Batch], cache: GrowingCache
    ) -> None:
        super().__init__(config, deployment, batches)
        self.cache = cache

    @property
    def replica_load_cache_key(self) -> object:
        return self.deployment.threads

    def replica_load(self, copies: int, chunks: int = 0) -> Load:
        """Return for each batch how many rows one of so many replicas decodes together."""
        return tuple(self._together(batch, copies) for batch in self.batches)

    def _together(self, batch: Batch, copies: int) -> float:
        """Return how many rows of a batch are decoded together."""
        threads, length = self.deployment.threads, batch.prompt.longest + batch.response.longest
        rows = max(1.0, batch.rows_of_fullest_replica(copies))
        blocks = min(rows, max(threads, math.ceil(rows * length / self.cache.max_decoded_tokens)))
        return float(math.ceil(rows / blocks) * min(threads, blocks))

    def memory_needs(self, load: Load) -> MemoryNeeds:
        """Return the memory of a replica that decodes so many rows of each batch together, their caches included."""
        config = self.config
        weights = (
            rank_parameter_count(config, self.deployment) * config.item_bytes
            + rank_adapter_parameter_count(config, self.deployment) * config.trained_item_bytes
            + config.narrow_copy_bytes
        )
        resident = BytesByUse((("weights", weights),))
        active = [self._decoded(batch, rows) for batch, rows in zip(self.batches, load, strict=True)]
        return MemoryNeeds(resident, max(active, key=attrgetter("total"), default=BytesByUse()))

    def _decoded(self, batch: Batch, rows: float) -> BytesByUse:
        """Return the bytes that prefill or decoding of so many rows needs, whichever is more."""
        shape, item = self.config.shape, self.config.item_bytes
        prompt, response = batch.prompt.longest, batch.response.longest
        first = prompt + min(response, self.cache.spare_places)
        room, before = _room(first, prompt + response)
        tp = self.deployment.tp
        kv = work.kv_bytes_per_token(shape, item) / tp
        prompts = math.ceil(rows / batch.samples)
        tokens = Tokens(prompts, prompts * prompt, prompts * prompt**2, prompts, prompt)
        prefill = BytesByUse(
            (("cache", kv * prompts * first), ("activations", forward_peak_bytes(shape, tokens, itemsize=item, tp=tp)))
        )
        cache = kv * rows * room
        # A layer's keys and values exist twice while they are copied into a larger cache.
        grown = BytesByUse(
            (("cache", cache + kv / shape.layers * rows * before), ("logits", float(item) * rows * shape.vocab))
        )
        sampled = BytesByUse((("cache", cache), ("logits", _sampling_bytes(rows, shape.vocab, item, batch.ranks))))
        if shape.latent:
            numbers = latent_attention.rebuilt_elements_per_token(
                shape, shape.latent, self.deployment.on_cpu and self.config.dtype != "bfloat16"
            )
            attended = item * numbers * rows * (prompt + response)
            sampled = larger_total(sampled, BytesByUse((("cache", cache), ("activations", attended))))
        return larger_total(prefill, larger_total(grown, sampled))


def generation_memory_model(config: ModelConfig, deployment: Deployment, batches: Sequence[Batch]) -> MemoryModel:
    """Return the memory model of a model that generates, for the kind of cache that its engine has."""
    cache = deployment.engine_spec.memory.cache
    if isinstance(cache, GrowingCache):
        return _Growing(config, deployment, batches, cache)
    return _Reserving(config, deployment, batches, cache)


def _sampling_bytes(rows: float, vocab: int, item: int, ranks: bool) -> float:
    """Return what it takes to sample a token for each row: logits as they come, in float32, less the largest, and
    summed. item: bytes of a logit as it comes. ranks: tokens are sampled from the likeliest alone."""
    return (12.0 + item * (item < 4)) * rows * vocab + (RANKING.most_bytes(rows, vocab) if ranks else 0.0)


def _room(first: float, needed: float) -> tuple[float, float]:
    """Return the slots of a row in the full cache, and those that it had before the cache grew for the last time."""
    room, before = first, 0.0
    while room < needed:
        room, before = room + 1 + (room + 1) // 2, room
    return room, before
