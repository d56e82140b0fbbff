"""What a vLLM engine has on its device, and how it gives that back while others work there.

On a GPU CUDA graphs know where weights and cache lie: vLLM's own sleep mode gives the memory back and keeps the
addresses. It keeps copies of the weights, too (its level 1), in places that nobody else can read; so level 2 is asked
for, in which it forgets them, and ours are put back afterwards. On a CPU, where there is no such mode, storages are
emptied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from rlgraph.backends.engines.merging import Merged
from rlgraph.backends.engines.offload import Arenas, Sleeper
from rlgraph.backends.engines.vllm.environment import on_cpu
from rlgraph.backends.engines.vllm.native_lora import Beside


def sleeper(engine: Any, arenas: Arenas) -> Sleeper:
    """engine: vLLM's own, which was started for it."""
    if on_cpu():
        return Sleeper(arenas)
    return Sleeper(arenas, lambda: engine.sleep(level=2), engine.wake_up)


def cache(engine: Any) -> Iterator[Tensor]:
    """Of keys and values, where it is not vLLM that cares for it."""
    if on_cpu():
        yield from _tensors(engine.model_executor.driver_worker.worker.model_runner.kv_caches)


def weights(model: nn.Module, plain: Mapping[str, Tensor], adapted: Merged | Beside | None) -> Iterator[Tensor]:
    """All that was loaded or came from others. plain: of experts that vLLM packs, as they were before."""
    yield from model.parameters()
    yield from plain.values()
    if adapted is not None:
        yield from adapted.held()


def _tensors(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    else:
        for each in found:
            yield from _tensors(each)
