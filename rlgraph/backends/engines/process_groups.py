"""Lets processes meet in a store that one of them has, at an address that it chose itself, with a secret in it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import default_pg_timeout
from torch.distributed.rendezvous import register_rendezvous_handler

from rlgraph.backends.engines.rendezvous import StoreClient, StoreServer

LOOPBACK = "127.0.0.1"
"""Where processes meet of which none is on another machine."""

INTERFACES = "GLOO_SOCKET_IFNAME"
"""The variable with the names of network interfaces on which gloo listens; without it, it takes that of the machine's
name."""

_SCHEME = "rlgraph"
_tokens: dict[str, str] = {}
"""The secret, by host:port, with which this process meets others there by a URL."""
_default: list[StoreClient] = []
"""The store of torch's default group, which keeps no Python object."""


@dataclass(frozen=True)
class RendezvousStore:
    """A store that listens at its address for as long as somebody holds this object."""

    address: str
    """host:port/token. Whoever has it may join, and nobody else: it goes only to those who are to meet."""
    listener: StoreServer

    def __del__(self) -> None:
        self.listener.close()


def loopback_interface() -> str | None:
    """Return the name of the interface that no other machine reaches."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def open_store(host: str) -> RendezvousStore:
    """Open a store on one address of this machine, which answers those who know the token that is drawn here.

    Its port is the one that it is bound to, and is never given back: a port that was only seen to be free may be taken
    before it is used, and one that is free on an address may be in use on another.
    """
    token = secrets.token_hex(32)
    listener = StoreServer(socket.create_server((host, 0), backlog=128), bytes.fromhex(token))
    return RendezvousStore(f"{host}:{listener.port}/{token}", listener)


def connect_to_store(address: str, seconds: float) -> StoreClient:
    """Connect to the store of somebody who listens; raises torch's error where nobody does. Waits for keys end after
    `seconds`.

    Torch's groups do not keep it alive: whoever makes one does.
    """
    host_port, token = address.split("/")
    host, port = host_port.rsplit(":", 1)
    return StoreClient(host, int(port), bytes.fromhex(token), seconds)


def join_process_group(rank: int, world: int, address: str, seconds: float, backend: str | None = None) -> None:
    """Make this process a rank of torch's default process group; one that waits longer than `seconds` for another
    fails.

    address: where somebody listens. backend: torch's name of it; None: NCCL where there is a GPU, else gloo.
    """
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    store = connect_to_store(address, seconds)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=seconds))
    _default[:] = [store]


def rendezvous_url(address: str) -> str:
    """Return the URL of an address, for those who make a group by a URL in this process. They log it: the token is not
    in it."""
    host_port, token = address.split("/")
    _tokens[host_port] = token
    return f"{_SCHEME}://{host_port}"


def _rendezvous(url: str, timeout: timedelta = default_pg_timeout, **_: Any) -> Iterator[tuple[StoreClient, int, int]]:
    from urllib.parse import parse_qs, urlsplit

    parts = urlsplit(url)
    query = parse_qs(parts.query)
    store = connect_to_store(f"{parts.netloc}/{_tokens[parts.netloc]}", timeout.total_seconds())
    _default[:] = [store]
    yield store, int(query["rank"][0]), int(query["world_size"][0])


register_rendezvous_handler(_SCHEME, _rendezvous)
