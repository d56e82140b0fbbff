"""Where a model's tensors are while others work on its devices: in the host's memory, counted.

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
class Arena:
    """A memory, and what the models of a process that go to sleep have in it."""

    bytes: int = 0
    peak: int = 0
    """The most there were at a time."""

    def add(self, size: int) -> None:
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


@dataclass(frozen=True)
class Arenas:
    """Of one process."""

    device: Arena = field(default_factory=Arena)
    """Weights, gradients, what optimizers keep, and caches: as they are when a model goes to sleep or wakes up."""
    host: Arena = field(default_factory=Arena)
    """Copies of them. Those of weights and of what an optimizer keeps stay when their model wakes up: to get pinned
    memory takes longer than to copy into it."""


@dataclass(frozen=True)
class Switched:
    """What it took to put a model to sleep, or to wake it up."""

    seconds: float
    moved: int
    """Bytes that went to the host, or came from there."""
    start: float = 0.0
    """By the process's clock, in seconds since 1970."""


@dataclass
class _Copy:
    """What the host has of a storage."""

    size: int
    """Bytes."""
    data: Tensor | None
    """uint8 [size]; None: nobody needs what was there."""
    lasts: bool
    """It stays when the model wakes up."""
    storage: UntypedStorage | None = None
    """While it is empty."""


class Sleeper:
    """The tensors of one model in a process, between device and host."""

    def __init__(
        self,
        arenas: Arenas | None = None,
        empty: Callable[[], object] | None = None,
        refill: Callable[[], object] | None = None,
    ) -> None:
        """empty, refill: give the device's memory back and take it again, of an engine with an allocator of its own;
        None: storages are resized."""
        self.arenas = arenas or Arenas()
        self.asleep = False
        self._late = False
        """They were written into while it slept, which the engine is told when it wakes up."""
        self._empty, self._refill = empty, refill
        self._switches = threading.Lock()
        """Of who puts it to sleep or wakes it up, and of who reads it beside that."""
        self._copies: dict[int, _Copy] = {}
        """By storage."""
        self._changed = True
        """What is on the device is not what the copies are."""
        self._there = 0
        """Bytes on the device, as they were counted last."""

    def changed(self) -> bool:
        """Somebody has written into the weights, or into what an optimizer keeps: whether the engine can do now what
        follows from that, and not only when the model wakes up."""
        self._changed, self._late = True, self.asleep
        return not self.asleep

    @torch.no_grad()
    def sleep(self, weights: Iterable[Tensor], once: Iterable[Tensor] = (), lost: Iterable[Tensor] = ()) -> Switched:
        """Gives the memory of these tensors back, with all else that lies in the same storages.

        weights: and what an optimizer keeps; they are copied where the copy is not there from the last time. once: what
        is there by chance, as the gradients of a step that goes on. lost: what nobody needs again, though it may be one
        of the weights; it wakes up as zeros.
        """
        with self._switches:
            return self._sleep(weights, once, lost)

    def _sleep(self, weights: Iterable[Tensor], once: Iterable[Tensor], lost: Iterable[Tensor]) -> Switched:
        assert not self.asleep, "a model that sleeps is not put to sleep"
        start, began, moved = time.time(), time.perf_counter(), 0
        kinds = ((lost, False, False), (weights, True, True), (once, False, True))
        before, self._copies = self._copies, {}
        kept: list[tuple[_Copy, UntypedStorage]] = []
        for tensors, lasts, keeps in kinds:
            for key, storage in _storages(tensors):
                if key not in self._copies:
                    found = self._copies[key] = _Copy(storage.nbytes(), None, lasts, storage)
                    known = before.get(key)
                    if keeps and lasts and known is not None and known.size == found.size:
                        found.data = before.pop(key).data
                    if keeps:
                        kept.append((found, storage))
        # Copies of what is no more make room for others.
        self.arenas.host.add(-sum(each.size for each in before.values() if each.data is not None))
        before.clear()
        # Before the memory is somebody else's the copies have to be made.
        with _copying(wait=True):
            for found, storage in kept:
                if found.data is None or self._changed:
                    found.data = self._room(storage) if found.data is None else found.data
                    found.data.copy_(_flat(storage), non_blocking=True)
                    moved += found.size
        self._count(sum(each.size for each in self._copies.values()))
        if self._empty is not None:
            self._empty()
        else:
            for each in self._copies.values():
                assert each.storage is not None
                each.storage.resize_(0)
            if torch.cuda.is_available():
                # What torch keeps for itself other processes of this device cannot have.
                torch.cuda.empty_cache()
        self._count(0)
        self.asleep = True
        return Switched(time.perf_counter() - began, moved, start)

    @torch.no_grad()
    def wake(self, written: Callable[[], object]) -> Switched:
        """Takes the memory again, and fills it. written: called then, if somebody wrote into it meanwhile."""
        with self._switches:
            switched = self._wake()
        if self._late:
            written()
        return switched

    def _wake(self) -> Switched:
        assert self.asleep, "a model that is awake is not woken"
        start, began, moved = time.time(), time.perf_counter(), 0
        there = [(each, each.storage) for each in self._copies.values() if each.storage is not None]
        if self._refill is not None:
            self._refill()
        else:
            for each, storage in there:
                storage.resize_(each.size)
        with _copying(wait=False):
            for each, storage in there:
                if each.data is None:
                    _flat(storage).zero_()
                else:
                    _flat(storage).copy_(each.data, non_blocking=True)
                    moved += each.size
        self._count(sum(each.size for each in self._copies.values()))
        passing = [each for each in self._copies.values() if not each.lasts and each.data is not None]
        self.arenas.host.add(-sum(each.size for each in passing))
        self._copies = {key: each for key, each in self._copies.items() if each.lasts}
        for each in self._copies.values():
            # Whoever makes new tensors must be able to forget these.
            each.storage = None
        self.asleep = self._changed = False
        return Switched(time.perf_counter() - began, moved, start)

    @contextmanager
    def reading(self, tensor: Tensor) -> Iterator[Tensor]:
        """For a thread beside the one that works with the model: where a tensor of it is now, and stays meanwhile."""
        with self._switches:
            yield self._copied(tensor) if self.asleep else tensor

    def here(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """These tensors; of a model that sleeps their copies on the host, which may be read and written. What is lost
        is as it is: nothing can be read of it but its shape."""
        return {name: self._copied(tensor) for name, tensor in tensors.items()} if self.asleep else dict(tensors)

    def _copied(self, tensor: Tensor) -> Tensor:
        found = self._copies.get(tensor.untyped_storage()._cdata)
        if found is None or found.data is None:
            return tensor
        lies = tensor.storage_offset(), tensor.shape, tensor.stride()
        return torch.empty(0, dtype=tensor.dtype).set_(found.data.untyped_storage(), *lies)

    def _room(self, storage: UntypedStorage) -> Tensor:
        self.arenas.host.add(storage.nbytes())
        return torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda")

    def _count(self, size: int) -> None:
        self.arenas.device.add(size - self._there)
        self._there = size


@contextmanager
def _copying(wait: bool) -> Iterator[None]:
    """Copies follow each other in a stream of their own, where there is a GPU. wait: until they are made; else what the
    device is given afterwards waits for them."""
    if not torch.cuda.is_available():
        yield
        return
    own, others = torch.cuda.Stream(), torch.cuda.current_stream()
    own.wait_stream(others)
    with torch.cuda.stream(own):
        yield
    if wait:
        own.synchronize()
    else:
        others.wait_stream(own)


def _storages(tensors: Iterable[Tensor]) -> Iterator[tuple[int, UntypedStorage]]:
    for tensor in tensors:
        if not tensor.untyped_storage().resizable():
            # Of a file that is mapped.
            tensor.data = tensor.detach().clone()
        storage = tensor.untyped_storage()
        if storage.nbytes():
            yield storage._cdata, storage


def _flat(storage: UntypedStorage) -> Tensor:
    """All bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))
