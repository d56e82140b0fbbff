"""Asks vLLM's own code whether it would start on a GPU, on a machine that has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from rlgraph.backends.engines.errors import EngineError, first_line
from rlgraph.backends.engines.vllm.start import _meeting_arguments
from rlgraph.backends.enginespec.start_demand import StartDemand, StartDevice


def check_start(demand: StartDemand, device: StartDevice, address: str | None) -> int:
    """Return the bytes that vLLM would hold on the device once it has started, and while it does not sleep.

    address: where the ranks of a replica meet. Raises EngineError with its own words where it would not start.
    """
    from vllm.v1.worker.utils import request_memory

    try:
        with patch("torch.cuda.device_count", lambda: device.visible), patch("torch.cuda._lazy_init"):
            _ask_for_peers(demand, address)
        snapshot: Any = SimpleNamespace(total_memory=device.memory, free_memory=device.free, device_="cuda:0")
        config: Any = SimpleNamespace(gpu_memory_utilization=demand.share)
        requested = int(request_memory(snapshot, config))
        room = requested - demand.weight_bytes if demand.cache_bytes is None else demand.cache_bytes
        if room < demand.row_bytes:
            # As `check_enough_kv_cache_memory` has it, which looks at the layers of a model that is there.
            raise ValueError(
                f"To serve at least one request with the model's max seq len ({demand.row_tokens}), "
                f"{demand.row_bytes / 2**30:.2f} GiB KV cache is needed, which is larger than the available KV cache "
                f"memory ({max(0, room) / 2**30:.2f} GiB)"
            )
    except (ValueError, AssertionError, RuntimeError) as error:
        raise EngineError(f"vLLM cannot start with this model: {first_line(error) or type(error).__name__}") from None
    return requested if demand.cache_bytes is None else demand.weight_bytes + demand.cache_bytes


def _ask_for_peers(demand: StartDemand, address: str | None) -> None:
    """Ask what its all-reduce asks, unless it is told not to: whether this device reaches those of the other ranks."""
    from vllm.distributed.device_communicators.custom_all_reduce import _can_p2p

    told = _meeting_arguments(demand.ranks, 0, address or "rank/0")
    if not told or told["disable_custom_all_reduce"]:
        return
    if not torch.cuda.device_count() >= demand.ranks:
        _can_p2p(0, demand.ranks)
