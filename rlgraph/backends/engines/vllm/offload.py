"""Moves a vLLM engine's tensors off its device while others work there.

On a GPU CUDA graphs hold the addresses of weights and cache: vLLM's own sleep mode gives the memory back and keeps the
addresses. It keeps copies of the weights, too (its level 1), in places that nobody else can read; so level 2 is used,
in which it forgets them, and ours are put back afterwards. On a CPU, where there is no such mode, storages are emptied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from rlgraph.backends.engines.merging import MergedAdapters
from rlgraph.backends.engines.offload import MemoryCounters, Offloader
from rlgraph.backends.engines.vllm.environment import has_no_gpu
from rlgraph.backends.engines.vllm.native_lora import NativeLora


def make_offloader(engine: Any, arenas: MemoryCounters) -> Offloader:
    """Return what offloads an engine. engine: vLLM's own, which was started for it."""
    if has_no_gpu():
        return Offloader(arenas)
    return Offloader(arenas, lambda: engine.sleep(level=2), engine.wake_up)


def kv_cache_tensors(engine: Any) -> Iterator[Tensor]:
    """Yield the cache of keys and values, unless vLLM itself takes care of it."""
    if has_no_gpu():
        yield from _flattened(engine.collective_rpc(lambda worker: worker.model_runner.kv_caches))


def offloaded_weights(
    model: nn.Module, plain: Mapping[str, Tensor], adapted: MergedAdapters | NativeLora | None
) -> Iterator[Tensor]:
    """Yield all tensors that were loaded or came from others. plain: experts that vLLM packs, as they were before."""
    yield from model.parameters()
    yield from plain.values()
    if adapted is not None:
        yield from adapted.all_tensors()


def _flattened(nested: Any) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    else:
        for item in nested:
            yield from _flattened(item)
