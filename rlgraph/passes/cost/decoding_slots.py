"""How many rows a replica decodes together: as its cache has room, and what becomes of those that find none."""

from __future__ import annotations

from rlgraph.backends.enginespec.memory import ReservedCache
from rlgraph.ir.dtypes import ITEM_BYTES
from rlgraph.passes.cost import work
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.weights import received_adapter_bytes

SLOTS = 256
"""The most rows that an engine decodes together which states no number of its own."""


def decoding_slots(config: ModelConfig, deployment: Deployment, batch: Batch) -> float:
    """Return how many rows a replica decodes together: as many as its cache holds at their full length."""
    reserved = deployment.engine_spec.memory.cache
    if not isinstance(reserved, ReservedCache):
        return SLOTS
    if deployment.on_cpu and not deployment.kv_bytes:
        return reserved.cpu_rows
    return max(1.0, min(max_decoding_slots(deployment), cached_rows(config, deployment, batch)))


def busy_slots(config: ModelConfig, deployment: Deployment, batch: Batch) -> float:
    """Return how many rows a replica decodes together, on average while others wait: an engine with a reserved cache
    begins a row when there is room for its prompt, and preempts the last ones where others have grown, so that the
    cache is always full. `benchmarks/scheduling.py` compares that with vLLM's own scheduler."""
    slots, most = decoding_slots(config, deployment, batch), max_decoding_slots(deployment)
    if slots >= most or batch.episodes or (deployment.on_cpu and not deployment.kv_bytes):
        return slots
    held = cached_rows(config, deployment, batch) * batch.ended_row_tokens / _mean_held_tokens(deployment, batch)
    return max(slots, min(most, held))


def preempted_rows(deployment: Deployment, batch: Batch, rows: float, slots: float) -> tuple[float, float]:
    """Return how many rows of a replica are preempted, and how many tokens each has then. What rows grow by is taken
    from the last ones to begin, which are half as far as the others."""
    most = max_decoding_slots(deployment)
    if rows <= slots or slots >= most or (deployment.on_cpu and not deployment.kv_bytes):
        return 0.0, 0.0
    count = (rows - slots) * batch.response.mean / _mean_held_tokens(deployment, batch)
    return count, batch.prompt.mean + batch.response.mean / 4


def cached_rows(config: ModelConfig, deployment: Deployment, batch: Batch) -> float:
    """Return how many rows the cache of a replica holds at their full length."""
    reserved, device = deployment.engine_spec.memory.cache, deployment.island.device
    assert isinstance(reserved, ReservedCache)
    if deployment.on_cpu and not deployment.kv_bytes:
        return reserved.cpu_bytes / (cache_bytes_per_token(config, deployment) * max(1.0, batch.ended_row_tokens))
    weights = work.model_parallel_parameter_count(config.shape, config.kind, 1, deployment.tp) * config.item_bytes
    weights += received_adapter_bytes(config, deployment, config.item_bytes)
    room = deployment.kv_bytes or reserved.share * device.memory - weights
    return room / (cache_bytes_per_token(config, deployment) * batch.ended_row_tokens)


def max_decoding_slots(deployment: Deployment) -> float:
    """Return the most rows that a replica decodes together, however large its cache is."""
    reserved = deployment.engine_spec.memory.cache
    if not isinstance(reserved, ReservedCache):
        return SLOTS
    return reserved.cpu_rows if deployment.on_cpu else reserved.rows


def cache_bytes_per_token(config: ModelConfig, deployment: Deployment) -> float:
    """Return the bytes of a token in each rank's cache."""
    cpu_dtype = deployment.engine_spec.memory.cpu_dtype
    item = ITEM_BYTES[cpu_dtype] if cpu_dtype and deployment.on_cpu else config.item_bytes
    return work.rank_kv_bytes_per_token(config.shape, deployment.tp, item)


def _mean_held_tokens(deployment: Deployment, batch: Batch) -> float:
    """Return how many tokens of a row the cache holds, on average while it is decoded: its blocks, the last of which is
    half full."""
    reserved = deployment.engine_spec.memory.cache
    assert isinstance(reserved, ReservedCache)
    block = reserved.cpu_block if deployment.on_cpu else reserved.block
    return batch.prompt.mean + batch.response.mean_square / max(2 * batch.response.mean, 1.0) + block / 2
