"""Megatron-core on a machine without CUDA: what it says to CUDA is answered by the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_lock = threading.Lock()
_inside = 0
_own: list[tuple[Any, str, Any]] = []


@contextmanager
def on_cpu() -> Iterator[None]:
    """Around each call into megatron-core, in the thread that calls; it may be nested. Does nothing where CUDA is
    there."""
    if torch.cuda.is_available():
        yield
        return
    _enter()
    try:
        with _Moved():
            yield
    finally:
        _leave()


def device() -> torch.device:
    """Where the model of this process is."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


class _Moved(TorchFunctionMode):
    """Of one thread: tensors that are asked for on `cuda` are made on the CPU."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        elif function is torch.Tensor.cuda:
            return args[0]
        elif function is torch.Tensor.type and len(args) == 1 and not kwargs:
            # The optimizer knows parameters by names like torch.cuda.FloatTensor.
            return function(*args).replace("torch.", "torch.cuda.", 1)
        return function(*args, **kwargs)


def _enter() -> None:
    global _inside
    with _lock:
        if not _inside:
            for owner, name, answer in _answers():
                _own.append((owner, name, getattr(owner, name)))
                setattr(owner, name, answer)
        _inside += 1


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        while not _inside and _own:
            setattr(*_own.pop())


def _answers() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Functions that only CUDA has, and what takes their place."""
    from megatron.core.tensor_parallel import random

    def state(*_: Any, **__: Any) -> torch.Tensor:
        return torch.random.get_rng_state()

    def set_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
        torch.random.set_rng_state(state)

    yield torch.cuda, "current_device", lambda: "cpu"
    yield torch.cuda, "synchronize", lambda *_: None
    yield torch.cuda, "get_rng_state", state
    yield torch.cuda, "manual_seed", torch.default_generator.manual_seed
    yield random, "_get_cuda_rng_state", state
    yield random, "_set_cuda_rng_state", set_state
