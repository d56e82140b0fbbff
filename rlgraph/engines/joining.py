"""How processes meet: in a store that one of them has, at an address that it chose itself."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore


@dataclass(frozen=True)
class Meeting:
    """Listens at its address for as long as somebody has it."""

    address: str
    """host:port"""
    store: TCPStore


def listen(host: str) -> Meeting:
    """A store on one address of this machine.

    Its port is the one that it is bound to, and is never given back: a port that was only seen to be free may be taken
    before it is used, and one that is free on an address may be in use on another.
    """
    listener = socket.create_server((host, 0), backlog=128)
    port = listener.getsockname()[1]
    # Torch's own `tcp://HOST:PORT` in this process finds a store that is shared.
    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach()
    )
    return Meeting(f"{host}:{port}", store)


def attend(address: str, seconds: float) -> TCPStore:
    """The store of somebody who listens; raises torch's error where nobody does within `seconds`."""
    host, port = address.rsplit(":", 1)
    return TCPStore(host, int(port), timeout=timedelta(seconds=seconds), wait_for_workers=False)


def join(rank: int, world: int, address: str, seconds: float) -> None:
    """Makes this process a rank of torch's default process group; who waits longer than `seconds` for another fails.

    address: host:port where somebody listens.
    """
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, store=attend(address, seconds), rank=rank, world_size=world, timeout=timedelta(seconds=seconds)
    )
