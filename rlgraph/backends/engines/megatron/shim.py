"""Runs Megatron-core on a machine without CUDA: the CPU answers its calls to CUDA."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_lock = threading.Lock()
_depth = 0
_originals: list[tuple[Any, str, Any]] = []


@contextmanager
def redirect_cuda_to_cpu() -> Iterator[None]:
    """Surround a call into megatron-core, in the thread that calls; it may be nested. Does nothing where CUDA is
    available."""
    if torch.cuda.is_available():
        yield
        return
    _enter()
    try:
        with _CudaToCpu():
            yield
    finally:
        _leave()


def model_device() -> torch.device:
    """Return the device of this process's model."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


class _CudaToCpu(TorchFunctionMode):
    """Makes tensors that this thread asks for on `cuda` on the CPU."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        elif function is torch.Tensor.cuda:
            return args[0]
        elif function is torch.Tensor.type and len(args) == 1 and not kwargs:
            # The optimizer sorts parameters by names like torch.cuda.FloatTensor.
            return function(*args).replace("torch.", "torch.cuda.", 1)
        return function(*args, **kwargs)


def _enter() -> None:
    global _depth
    with _lock:
        if not _depth:
            for owner, name, answer in _replacements():
                _originals.append((owner, name, getattr(owner, name)))
                setattr(owner, name, answer)
        _depth += 1


def _leave() -> None:
    global _depth
    with _lock:
        _depth -= 1
        while not _depth and _originals:
            setattr(*_originals.pop())


def _replacements() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield functions that only CUDA has, and their replacements."""
    from megatron.core.tensor_parallel import random

    def rng_state(*_: Any, **__: Any) -> torch.Tensor:
        return torch.random.get_rng_state()

    def set_rng_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
        torch.random.set_rng_state(state)

    yield torch.cuda, "current_device", lambda: "cpu"
    yield torch.cuda, "synchronize", lambda *_: None
    yield torch.cuda, "get_rng_state", rng_state
    yield torch.cuda, "manual_seed", torch.default_generator.manual_seed
    yield random, "_get_cuda_rng_state", rng_state
    yield random, "_set_cuda_rng_state", set_rng_state
