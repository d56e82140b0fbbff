"""Counts the storages of tensors that a process makes, as torch's operators make and forget them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_thread = threading.local()
"""The meter that counts in this thread."""
_meters: weakref.WeakSet[StorageMeter]


class StorageMeter:
    """Counts the bytes of all storages that are made while it counts, in whatever threads."""

    def __init__(self, changed: Callable[[int], None]) -> None:
        """changed: is told how many bytes there are more, whenever there are. Where it raises, the operator that has
        made a storage fails."""
        self.bytes = 0
        self._changed = changed
        self._sizes: dict[int, int] = {}
        self._gone: deque[int] = deque()
        """Storages that are gone and not yet taken off: the collector of garbage drops them at any moment, in whatever
        thread, which must not wait for another one then."""
        self._lock = threading.RLock()
        _meters.add(self)
        _count_resizing()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what this thread makes while the block runs."""
        if getattr(_thread, "meter", None) is self:
            yield
            return
        before, _thread.meter = getattr(_thread, "meter", None), self
        try:
            with _Watch(self):
                yield
        finally:
            _thread.meter = before

    def add(self, storage: torch.UntypedStorage) -> None:
        """Count a storage, if it is not counted yet."""
        key = storage._cdata
        # One that cannot be resized is a mapped file, or memory that processes share: of the host on GPUs, too.
        if storage.device.type == "meta" or not storage.resizable():
            return
        with self._lock:
            self.forget_gone()
            if key in self._sizes:
                return
            self._sizes[key] = 0
        weakref.finalize(storage, self._gone.append, key)
        self._resize(key, storage.nbytes())

    def forget_gone(self) -> None:
        """Take off what is gone."""
        with self._lock:
            while self._gone:
                self.bytes -= self._sizes.pop(self._gone.popleft(), 0)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage's new size, if it is one of these."""
        if storage._cdata in self._sizes:
            self._resize(storage._cdata, storage.nbytes())

    def _resize(self, key: int, size: int) -> None:
        with self._lock:
            more = size - self._sizes.get(key, 0)
            self.bytes += more
            self._sizes[key] = size
            if more <= 0:
                return
            try:
                self._changed(more)
            except BaseException:
                self.bytes -= more
                self._sizes[key] = size - more
                raise


_meters = weakref.WeakSet()


class _Watch(TorchDispatchMode):
    """Shows a meter the storages that operators return, in one thread."""

    def __init__(self, meter: StorageMeter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            # A tensor that describes the parts of several ranks, or wraps others, has no storage itself.
            if isinstance(leaf, Tensor) and type(leaf).__torch_dispatch__ is Tensor.__torch_dispatch__:
                self._meter.add(leaf.untyped_storage())
        return made


def _count_resizing() -> None:
    """Have the resizing of storages, which is no operator, counted."""
    plain = torch.UntypedStorage.resize_
    if getattr(plain, "counts", False):
        return

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        resized = plain(storage, size)
        for meter in list(_meters):
            meter.resized(storage)
        return resized

    resize_.counts = True  # type: ignore[attr-defined]
    torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment,method-assign]
