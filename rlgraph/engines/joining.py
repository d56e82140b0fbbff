"""How the processes of a group meet."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist


def join(rank: int, world: int, address: str, seconds: float) -> None:
    """Makes this process a rank of torch's default process group; who waits longer than `seconds` for another fails.

    address: host:port where rank 0 listens.
    """
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, init_method=f"tcp://{address}", rank=rank, world_size=world, timeout=timedelta(seconds=seconds)
    )
