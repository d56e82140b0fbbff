"""Gloo made to meet as NCCL does: neither end of a message goes on before both are at it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_store


class MetMessages:
    """Stands for `torch.distributed` in one process of several."""

    def __init__(self) -> None:
        self._store, self._counts = _get_default_store(), Counter[tuple[int, int]]()

    def isend(self, tensor: Tensor, peer: int, group: dist.ProcessGroup) -> Any:
        self._meet(dist.get_rank(), peer, "sends", "receives")
        return dist.isend(tensor, peer, group)

    def irecv(self, tensor: Tensor, peer: int, group: dist.ProcessGroup) -> Any:
        self._meet(peer, dist.get_rank(), "receives", "sends")
        return dist.irecv(tensor, peer, group)

    def _meet(self, sender: int, receiver: int, what: str, other: str) -> None:
        self._counts[sender, receiver] += 1
        message = f"{sender} to {receiver}, number {self._counts[sender, receiver]}"
        self._store.set(f"{message}: {what}", "1")
        self._store.wait([f"{message}: {other}"])
