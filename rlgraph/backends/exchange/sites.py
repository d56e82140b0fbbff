"""This module says where this process has its tensors, and opens the links that lead from there."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import torch

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.exchange.link import Link
from rlgraph.backends.exchange.mailbox import GlooLink
from rlgraph.backends.exchange.nccl import NcclLink
from rlgraph.backends.exchange.shared_memory import HostMemory, SharedMemoryLink, map_host_memory
from rlgraph.ir.message_carriers import NCCL, SHARED, PeerCarriers, TensorSite

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = "/proc/self/ns/pid"


def site_of_process(device: torch.device) -> TensorSite:
    """Return the site of the tensors that this process has on a device."""
    if device.type == "cuda":
        return TensorSite(device.type, str(torch.cuda.get_device_properties(device).uuid), _machine(), os.getpid())
    machine = _machine() if _maps() else uuid4().hex
    return TensorSite(device.type, machine, machine, os.getpid())


def _machine() -> str:
    """Return the same text in all processes that can map each other's memory: one kernel, one numbering of processes,
    one user. Without such files it is a text that no other process has."""
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink(_PROCESSES)} {os.getuid()}"
    except OSError:
        return uuid4().hex


def _maps() -> bool:
    """Whether memory of this process can be mapped here: not on every system, nor in every sandbox."""
    try:
        memory = HostMemory(1)
        map_host_memory(memory.handle())
    except EngineError:
        return False
    return True


def open_links(mailbox: GlooLink, ways: PeerCarriers, device: torch.device, name: str) -> dict[int, Link]:
    """Open links, by peer, but for those peers to which the mailbox leads. All places that exchange something so open
    theirs at the same time, for a transfer of this name."""
    by_carrier: dict[str, Link] = {}
    if SHARED.name in ways.carriers.values():
        by_carrier[SHARED.name] = SharedMemoryLink(mailbox, device)
    if NCCL.name in ways.carriers.values():
        store, seconds = mailbox.store, mailbox.seconds
        by_carrier[NCCL.name] = NcclLink(mailbox.place, ways.clubs, store, device, name=name, seconds=seconds)
    return {peer: by_carrier[carrier] for peer, carrier in ways.carriers.items() if carrier in by_carrier}
