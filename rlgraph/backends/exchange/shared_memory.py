"""This module carries messages through memory that both processes have mapped. The sender packs a message there and
says where it is; the receiver takes it from there to where it belongs, and says that it has. A handle of the memory
goes once to each peer.

On a CPU that is memory of the machine (a file that is nowhere but in memory, which the other process opens by way of
`/proc`, and which is gone when both are); on a GPU it is CUDA IPC. Notices go by gloo, some bytes for a message.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import torch
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.exchange.link import InFlightMessage, Link
from rlgraph.backends.exchange.mailbox import GlooLink, MessageKind
from rlgraph.ir.message_carriers import SHARED

_NOTICE = 3
"""Numbers in a notice: a message's first byte, its bytes, and the bytes of a handle that follows."""


class MappableMemory(Protocol):
    """Bytes that another process can map."""

    bytes: Tensor
    """uint8, flat."""

    def handle(self) -> str:
        """Return the handle by which another process opens it."""
        ...


class HostMemory:
    """Memory of this process, on the host. It has no name that others could guess or use, no part in `/dev/shm`, and
    goes with the last process that has it, however that ends."""

    def __init__(self, size: int) -> None:
        """Raises EngineError where there is no such memory."""
        try:
            self._file = os.memfd_create("rlgraph")
            os.ftruncate(self._file, size)
            self.bytes = torch.frombuffer(mmap.mmap(self._file, size), dtype=torch.uint8)
        except (AttributeError, OSError) as error:  # Python has `memfd_create` on Linux alone, and not in all builds.
            raise EngineError(f"there are no {size} bytes of memory that another process can map: {error}") from None

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # The file was never made.
            os.close(self._file)

    def handle(self) -> str:
        return json.dumps([os.getpid(), self._file, len(self.bytes)])


def map_host_memory(handle: str) -> Tensor:
    """Map memory that another process of this machine has."""
    process, file, size = json.loads(handle)
    try:
        opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
        try:
            return torch.frombuffer(mmap.mmap(opened, size), dtype=torch.uint8)
        finally:
            os.close(opened)
    except (OSError, ValueError) as error:
        raise EngineError(f"the memory of process {process} cannot be mapped: {error}") from None


_EXPANDABLE = "expandable_segments:True"


@contextmanager
def without_expandable_segments() -> Iterator[None]:
    """Have torch take memory in ordinary segments while the context lasts: a handle of one that can grow is a file of
    this process, which others may open only where they are allowed to trace it."""
    settings = torch._C._accelerator_getAllocatorSettings()
    if _EXPANDABLE not in settings:
        yield
        return
    # Torch forgets settings that are left out.
    torch._C._accelerator_setAllocatorSettings(settings.replace(_EXPANDABLE, _EXPANDABLE.replace("True", "False")))
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings(settings)


class GpuMemory:
    """Memory of this process, on a GPU. Tests on a CPU never come here."""

    def __init__(self, size: int, device: torch.device) -> None:
        with without_expandable_segments():
            self.bytes = torch.empty(size, dtype=torch.uint8, device=device)

    def handle(self) -> str:
        _, *parts = self.bytes.untyped_storage()._share_cuda_()
        return json.dumps([part.hex() if isinstance(part, bytes) else part for part in parts])


def map_gpu_memory(handle: str, device: torch.device) -> Tensor:
    """Map memory that another process has on this GPU, which may have another number there."""
    memory, size, start, counter, counted, event, waits = json.loads(handle)
    storage = torch.UntypedStorage._new_shared_cuda(
        torch.device(device).index or 0,
        bytes.fromhex(memory),
        size,
        start,
        bytes.fromhex(counter),
        counted,
        bytes.fromhex(event),
        waits,
    )
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


class SharedMemoryLink(Link):
    """One place's end of the carrier of mapped memory."""

    name, direct = SHARED.name, False

    def __init__(self, mailbox: GlooLink, device: torch.device) -> None:
        self.device = device
        self._mailbox = mailbox
        self._memory: MappableMemory | None = None
        self._told_peers: set[int] = set()
        """Peers that have the handle of its memory."""
        self._peer_memory: dict[int, Tensor] = {}

    def buffer(self, size: int) -> Tensor:
        if self._memory is None or size > len(self._memory.bytes):
            self._memory = GpuMemory(size, self.device) if self.device.type == "cuda" else HostMemory(size)
            self._told_peers.clear()
        return self._memory.bytes[:size]

    def send(self, message: Tensor, to: int) -> InFlightMessage:
        assert self._memory is not None
        self.wait_for_device()
        handle = b"" if to in self._told_peers else self._memory.handle().encode()
        self._told_peers.add(to)
        start = message.data_ptr() - self._memory.bytes.data_ptr()
        notices = [self._mailbox.send(torch.tensor([start, message.nbytes, len(handle)]), to, MessageKind.NOTICE)]
        if handle:
            notices.append(self._mailbox.send(torch.tensor(list(handle), dtype=torch.uint8), to, MessageKind.HANDLE))
        read = self._mailbox.receive(torch.empty(1, dtype=torch.uint8), to, MessageKind.READ)
        return _OutgoingMessage(message, [*notices, read])

    def receive(self, message: Tensor, source: int) -> InFlightMessage:
        notice = self._mailbox.receive(torch.empty(_NOTICE, dtype=torch.int64), source, MessageKind.NOTICE)
        return _IncomingMessage(self, message, source, notice)

    def wait_for_device(self) -> None:
        """Wait until what was queued on the device is done: the other process does not see its streams."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def map_region(self, source: int, start: int, size: int, handle: int) -> Tensor:
        """Return bytes of another process's memory. handle: the bytes of the handle that follows, 0 for none."""
        if handle:
            received = torch.empty(handle, dtype=torch.uint8)
            self._mailbox.receive(received, source, MessageKind.HANDLE).wait()
            text = bytes(received.tolist()).decode()
            cuda = self.device.type == "cuda"
            self._peer_memory[source] = map_gpu_memory(text, self.device) if cuda else map_host_memory(text)
        return self._peer_memory[source][start : start + size]

    def note_read(self, source: int) -> None:
        """Tell a peer that its message has been read."""
        self.wait_for_device()
        self._mailbox.send(torch.empty(1, dtype=torch.uint8), source, MessageKind.READ).wait()


class _OutgoingMessage(InFlightMessage):
    """A message that was sent, which has arrived when the peer has read it."""

    def __init__(self, message: Tensor, notices: list[InFlightMessage]) -> None:
        self.message, self._notices = message, notices

    def wait(self) -> None:
        for notice in self._notices:
            notice.wait()


class _IncomingMessage(InFlightMessage):
    """A message that is received. Those from the same peer are waited for in their order."""

    def __init__(self, link: SharedMemoryLink, wanted: Tensor, source: int, notice: InFlightMessage) -> None:
        self.message = wanted
        self._link, self._source, self._notice = link, source, notice

    def wait(self) -> None:
        self._notice.wait()
        received = self._link.map_region(self._source, *self._notice.message.tolist())
        if received.nbytes != self.message.nbytes:
            raise EngineError(f"{received.nbytes} bytes came, and {self.message.nbytes} were expected")
        self.message = received.view(self.message.dtype)

    def note_read(self) -> None:
        self._link.note_read(self._source)
