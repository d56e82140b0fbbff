"""Moves a model's tensors to the host's memory while others work on its devices, and back, and counts them.

A tensor stays what it is: parameters, views of flat buffers and what an optimizer refers to all lie in storages, and a
storage is emptied and filled again in its place. So nothing of an engine has to be put together anew, and on a CPU the
same calls move the same bytes from one storage to another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, UntypedStorage


@dataclass
class MemoryCounter:
    """Counts the bytes that the offloaded models of a process have in one memory."""

    bytes: int = 0
    peak: int = 0
    """The most bytes there were at a time."""

    def add_bytes(self, size: int) -> None:
        """Add bytes, or take them away if negative."""
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


@dataclass(frozen=True)
class MemoryCounters:
    """The counters of one process, for the device and for the host."""

    device: MemoryCounter = field(default_factory=MemoryCounter)
    """Weights, gradients, what optimizers keep, and caches: as they are when a model is offloaded or wakes up."""
    host: MemoryCounter = field(default_factory=MemoryCounter)
    """Copies of these. Those of weights and of what an optimizer keeps stay when their model wakes up: to get pinned
    memory takes longer than to copy into it."""


@dataclass(frozen=True)
class OffloadRecord:
    """A record of offloading a model, or of bringing it back."""

    seconds: float
    moved_bytes: int
    """Bytes that went to the host, or came from there."""
    start: float = 0.0
    """When it began, by the process's clock, in seconds since 1970."""


@dataclass
class _Copy:
    """The host's copy of a storage."""

    size: int
    """The storage's size in bytes."""
    data: Tensor | None
    """uint8 [size]; None: nobody needs the contents."""
    lasts: bool
    """It stays when the model wakes up."""
    storage: UntypedStorage | None = None
    """The storage, while that is empty."""


class Offloader:
    """Moves the tensors of one model in a process between device and host."""

    def __init__(
        self,
        arenas: MemoryCounters | None = None,
        empty: Callable[[], object] | None = None,
        refill: Callable[[], object] | None = None,
    ) -> None:
        """empty, refill: give the device's memory back and take it again, for an engine with an allocator of its own;
        None: storages are resized."""
        self.arenas = arenas or MemoryCounters()
        self.asleep = False
        self._written_asleep = False
        """The copies were written into while the model slept, which the engine is told when it wakes up."""
        self._empty, self._refill = empty, refill
        self._lock = threading.Lock()
        """Held by whoever offloads the model or wakes it up, and by a thread that reads it meanwhile."""
        self._copies: dict[int, _Copy] = {}
        """The copies by storage."""
        self._changed = True
        """The device's contents differ from the copies."""
        self._device_bytes = 0
        """Bytes on the device, as they were counted last."""

    def mark_changed(self) -> bool:
        """Note that somebody has written into the weights, or into what an optimizer keeps. Return whether the engine
        can do now what follows from that, and not only when the model wakes up."""
        self._changed, self._written_asleep = True, self.asleep
        return not self.asleep

    @torch.no_grad()
    def sleep(
        self, weights: Iterable[Tensor], once: Iterable[Tensor] = (), lost: Iterable[Tensor] = ()
    ) -> OffloadRecord:
        """Give the memory of these tensors back, with all else that lies in the same storages.

        weights: these and what an optimizer keeps are copied unless the copy from the last time is still right. once:
        tensors that exist for a while, as the gradients of a step that goes on. lost: tensors that nobody needs again,
        though they may be among the weights; they wake up as zeros.
        """
        with self._lock:
            return self._sleep(weights, once, lost)

    def _sleep(self, weights: Iterable[Tensor], once: Iterable[Tensor], lost: Iterable[Tensor]) -> OffloadRecord:
        assert not self.asleep, "a model that sleeps is not put to sleep"
        start, started_at, moved = time.time(), time.perf_counter(), 0
        groups = ((lost, False, False), (weights, True, True), (once, False, True))
        previous, self._copies = self._copies, {}
        to_copy: list[tuple[_Copy, UntypedStorage]] = []
        for tensors, lasts, keeps in groups:
            for key, storage in _storages(tensors):
                if key not in self._copies:
                    copy = self._copies[key] = _Copy(storage.nbytes(), None, lasts, storage)
                    earlier = previous.get(key)
                    if keeps and lasts and earlier is not None and earlier.size == copy.size:
                        copy.data = previous.pop(key).data
                    if keeps:
                        to_copy.append((copy, storage))
        # Copies of storages that no longer exist make room for others.
        self.arenas.host.add_bytes(-sum(copy.size for copy in previous.values() if copy.data is not None))
        previous.clear()
        # The copies have to be complete before others use the memory.
        with _copying(wait=True):
            for copy, storage in to_copy:
                if copy.data is None or self._changed:
                    copy.data = self._allocate(storage) if copy.data is None else copy.data
                    copy.data.copy_(_flat(storage), non_blocking=True)
                    moved += copy.size
        self._count(sum(copy.size for copy in self._copies.values()))
        if self._empty is not None:
            self._empty()
        else:
            for stored in self._copies.values():
                assert stored.storage is not None
                stored.storage.resize_(0)
            if torch.cuda.is_available():
                # Other processes of this device cannot use what torch's allocator keeps.
                torch.cuda.empty_cache()
        self._count(0)
        self.asleep = True
        return OffloadRecord(time.perf_counter() - started_at, moved, start)

    @torch.no_grad()
    def wake(self, written: Callable[[], object]) -> OffloadRecord:
        """Take the memory again, and fill it. written: called then, if somebody wrote into the copies meanwhile."""
        with self._lock:
            switched = self._wake()
        if self._written_asleep:
            written()
        return switched

    def _wake(self) -> OffloadRecord:
        assert self.asleep, "a model that is awake is not woken"
        start, started_at, moved = time.time(), time.perf_counter(), 0
        refills = [(copy, copy.storage) for copy in self._copies.values() if copy.storage is not None]
        if self._refill is not None:
            self._refill()
        else:
            for copy, storage in refills:
                storage.resize_(copy.size)
        with _copying(wait=False):
            for copy, storage in refills:
                if copy.data is None:
                    _flat(storage).zero_()
                else:
                    _flat(storage).copy_(copy.data, non_blocking=True)
                    moved += copy.size
        self._count(sum(copy.size for copy in self._copies.values()))
        temporary = [copy for copy in self._copies.values() if not copy.lasts and copy.data is not None]
        self.arenas.host.add_bytes(-sum(copy.size for copy in temporary))
        self._copies = {key: copy for key, copy in self._copies.items() if copy.lasts}
        for copy in self._copies.values():
            # An engine that makes new tensors must be able to drop these.
            copy.storage = None
        self.asleep = self._changed = False
        return OffloadRecord(time.perf_counter() - started_at, moved, start)

    @contextmanager
    def kept_in_place(self, tensor: Tensor) -> Iterator[Tensor]:
        """Give a thread beside the one that works with the model a tensor where it is now, and stays meanwhile."""
        with self._lock:
            yield self._host_copy(tensor) if self.asleep else tensor

    def on_device_or_host(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return these tensors; for a model that sleeps their copies on the host, which may be read and written.
        Tensors that are lost come as they are: only their shape can be read."""
        return {name: self._host_copy(tensor) for name, tensor in tensors.items()} if self.asleep else dict(tensors)

    def _host_copy(self, tensor: Tensor) -> Tensor:
        copy = self._copies.get(tensor.untyped_storage()._cdata)
        if copy is None or copy.data is None:
            return tensor
        placement = tensor.storage_offset(), tensor.shape, tensor.stride()
        return torch.empty(0, dtype=tensor.dtype).set_(copy.data.untyped_storage(), *placement)

    def _allocate(self, storage: UntypedStorage) -> Tensor:
        self.arenas.host.add_bytes(storage.nbytes())
        return torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda")

    def _count(self, size: int) -> None:
        self.arenas.device.add_bytes(size - self._device_bytes)
        self._device_bytes = size


@contextmanager
def _copying(wait: bool) -> Iterator[None]:
    """Run copies after each other in a stream of their own, where there is a GPU. wait: until they are done; else what
    the device is given afterwards waits for them."""
    if not torch.cuda.is_available():
        yield
        return
    stream, compute = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(compute)
    with torch.cuda.stream(stream):
        yield
    if wait:
        stream.synchronize()
    else:
        compute.wait_stream(stream)


def _storages(tensors: Iterable[Tensor]) -> Iterator[tuple[int, UntypedStorage]]:
    for tensor in tensors:
        if not tensor.untyped_storage().resizable():
            # The storage is a mapped file.
            tensor.data = tensor.detach().clone()
        storage = tensor.untyped_storage()
        if storage.nbytes():
            yield storage._cdata, storage


def _flat(storage: UntypedStorage) -> Tensor:
    """Return all bytes of a storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))
