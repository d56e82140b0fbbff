"""The bytes of all tensors that are there at a time, as torch makes and forgets them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Counts, while it is entered, the storages that operators make."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        """known: tensors that do not count, such as parameters, of which operators return views."""
        super().__init__()
        self.now = self.peak = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            # What describes the parts of several ranks has no bytes itself.
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DTensor):
                self._add(leaf.untyped_storage())
        return found

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self._grow(key, size)
        weakref.finalize(storage, self._drop, key)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """One that is there has got another size."""
        if storage._cdata in self._sizes:
            self._grow(storage._cdata, storage.nbytes())

    def _grow(self, key: int, size: int) -> None:
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def _drop(self, key: int) -> None:
        self._seen.discard(key)
        self.now -= self._sizes.pop(key)
