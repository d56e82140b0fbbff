"""Torch's process groups over gloo, whose messages and collectives behave as NCCL's.

The groups are of a torch backend of their own, `hard`, which is gloo's: so the code takes the ways that it has for
NCCL. Whatever is begun on one of them is a meeting first (`rlgraph.backends.hard.meetings`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from rlgraph.backends.hard.meetings import Communicator

BACKEND = "hard"
"""The name of the backend."""
_COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier", "allgather", "_allgather_base"),
    *("allgather_into_tensor_coalesced", "all_gather_single", "gather", "scatter", "reduce_scatter"),
    *("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base"),
    *("all_gather_single_coalesced", "reduce_scatter_single_coalesced", "all_to_all_single"),
)
"""The methods of a process group in which all take part."""


class HardGroups:
    """What the groups of a process do beside what gloo does."""

    def __init__(
        self,
        device: int,
        name_of: Callable[[int], str],
        made: Callable[[], None] = lambda: None,
        seconds: float = 1800.0,
    ) -> None:
        """device: the number of this process's. name_of: returns how messages call a rank of the default group. made:
        is told of each communicator. seconds: the longest wait for another process."""
        self._device, self._name_of, self._made, self._seconds = device, name_of, made, seconds
        self._communicators: dict[str, Communicator] = {}
        self._plain: dict[str, Any] = {}

    def install(self) -> None:
        """Have the groups of this process meet, until `remove`."""
        if BACKEND.upper() not in dist.Backend._plugins:
            dist.Backend.register_backend(BACKEND, _open_gloo, extended_api=True, devices=["cpu"])
        kind: Any = dist.ProcessGroup
        for name in _COLLECTIVES:
            if hasattr(kind, name):
                self._plain[name] = getattr(kind, name)
                setattr(kind, name, self._collective(name))
        for name, what in (("send", "sends"), ("recv", "receives")):
            self._plain[name] = getattr(kind, name)
            setattr(kind, name, self._message(name, what))

    def remove(self) -> None:
        """Let them be as they were."""
        for name, plain in self._plain.items():
            setattr(dist.ProcessGroup, name, plain)
        self._plain.clear()

    def _collective(self, name: str) -> Callable[..., Any]:
        plain = self._plain[name]

        def begin(group: Any, *args: Any, **kwargs: Any) -> Any:
            communicator = self._communicator(group)
            if communicator is None:
                return plain(group, *args, **kwargs)
            number = communicator.begin_collective(_called(name, args))
            work = plain(group, *args, **kwargs)
            return None if work is None else _MetWork(work, lambda: communicator.meet_collective(number))

        return begin

    def _message(self, name: str, kind: str) -> Callable[..., Any]:
        plain = self._plain[name]

        def begin(group: Any, tensors: Sequence[torch.Tensor], peer: int, *args: Any) -> Any:
            communicator = self._communicator(group)
            if communicator is None:
                return plain(group, tensors, peer, *args)
            number = communicator.begin_message(kind, peer, tensors[0].numel())
            # NCCL has no tags.
            work = plain(group, tensors, peer, 0)
            return _MetWork(
                work,
                lambda: communicator.meet_message(peer, number),
                lambda: communicator.has_met(peer, number),
            )

        return begin

    def _communicator(self, group: Any) -> Communicator | None:
        if group not in dist.distributed_c10d._world.pg_map or dist.get_backend(group) != BACKEND:
            return None
        name = group.group_name
        if name not in self._communicators:
            ranks = dist.get_process_group_ranks(group)
            store = PrefixStore(f"hard {name}", dist.distributed_c10d._get_default_store())
            names = [self._name_of(rank) for rank in ranks]
            self._communicators[name] = Communicator(
                store, dist.get_rank(group), names, self._device, self._seconds, self._made
            )
        return self._communicators[name]


class _MetWork(dist.Work):
    """What gloo has begun, which is over when it has met, too."""

    def __init__(self, work: Any, meet: Callable[[], None], has_met: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self._work, self._meet, self._has_met = work, meet, has_met

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the others, and for gloo."""
        self._meet()
        return bool(self._work.wait(timeout) if timeout else self._work.wait())

    def is_completed(self) -> bool:
        """Return whether it is over."""
        return self._has_met() and bool(self._work.is_completed())

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def get_future(self) -> Any:
        """Return gloo's future."""
        return self._work.get_future()

    def result(self) -> Any:
        """Return gloo's result."""
        return self._work.result()


def _called(name: str, args: Sequence[Any]) -> str:
    """Return the name of a collective, with how many numbers each process gives where that is the same for all."""
    same = name.startswith(("allreduce", "broadcast", "reduce")) and "scatter" not in name
    tensors = args[0] if args and same else ()
    numbers = sum(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor))
    return f"{name.strip('_')} of {numbers}" if numbers else name.strip("_")


def _open_gloo(options: Any, more: Any) -> Any:
    """Return gloo's backend for a group."""
    kind: Any = dist.ProcessGroupGloo
    opened = kind(options.store, options.group_rank, options.group_size, timeout=options.timeout)
    opened.options.global_ranks_in_group = list(options.global_ranks_in_group)
    opened.options.group_name = options.group_id
    opened._set_sequence_number_for_group()
    return opened
