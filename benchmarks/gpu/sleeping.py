"""A model that has been trained gives its memory back and takes it again: the bytes that are left on the device, how
fast they go and come, and that each weight is what it was."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.gpu.measure import Row, Setting, config, engine, wait
from benchmarks.gpu.megatron import alone, opened
from rlgraph.backends.engines.base import MicroBatch, ModelCall, TrainOptions
from rlgraph.backends.engines.offload import OffloadRecord
from rlgraph.backends.engines.sequences import Sequences

MODEL = "Qwen/Qwen2.5-1.5B"
LEFT = 0.01
"""Share of the bytes that may be on the device while the model sleeps: what a library's handles have."""
TIMES = 4


def rows(setting: Setting) -> Iterator[Row]:
    fields, dtype = config(MODEL, setting), "bfloat16" if setting.gpu else "float32"
    yield from _sleeping("transformers", engine(fields, setting.device, dtype), setting)
    if find_spec("megatron") is not None:
        with alone():
            yield from _sleeping("Megatron", opened(fields, dtype), setting)


def _sleeping(name: str, made: Any, setting: Setting) -> Iterator[Row]:
    _train(made)
    made.clear_gradients()
    before, there = _sums(made), _allocated(setting)
    down: list[float] = []
    up: list[float] = []
    left = same = 0
    for _ in range(TIMES):
        down.append(_rate(made.sleep, setting))
        left = max(left, _allocated(setting))
        up.append(_rate(made.wake, setting))
        same += _sums(made) == before
        _train(made)
        made.clear_gradients()
        before = _sums(made)
    yield Row(f"{name}: times of {TIMES} that each weight was what it had been", same, least=TIMES)
    if setting.gpu:
        yield Row(f"{name}: on the device, awake", there / 1e9, "GB")
        yield Row(f"{name}: share of it that is left while it sleeps", left / there, most=LEFT)
    yield Row(f"{name}: to the host the first time", down[0], "GB/s")
    yield Row(f"{name}: to the host again", statistics.median(down[1:]), "GB/s")
    yield Row(f"{name}: back", statistics.median(up), "GB/s")


def _rate(act: Callable[[], OffloadRecord], setting: Setting) -> float:
    """GB/s until the last byte is there: an engine that wakes up does not wait for it."""
    began = time.perf_counter()
    moved = act().moved_bytes
    wait(setting.device)
    return moved / (time.perf_counter() - began) / 1e9


def _allocated(setting: Setting) -> int:
    return torch.cuda.memory_allocated(setting.device) if setting.gpu else 0


def _sums(made: Any) -> list[float]:
    """Of the weights' bits."""
    return [float(each.detach().double().sum()) for _, each in sorted(made.tensors().items())]


def _train(made: Any) -> None:
    rows = Sequences.from_lists([list(range(1, 65))] * 2, [[place > 8 for place in range(64)]] * 2)
    micro = MicroBatch((ModelCall("logprobs", rows),), lambda said: -said[0].mean())
    made.train_step([0], lambda _: micro, TrainOptions(1e-5), 0)
