"""Engines that go to sleep and wake up between any two calls, beside others that never do."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlgraph.backends.engines.base import Rank
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers.engine import open_rank
from rlgraph.ir.mesh import Mesh
from tests.backends.engines.sharded import Task, ask, elsewhere, updates
from tests.passes.cost.allocated import Everywhere

SMALL = 4096
"""Bytes of what no engine moves: counters of steps, a seed."""


@dataclass
class Napping:
    """An engine that sleeps before it does anything."""

    engine: Any
    naps: int = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        return self._rested(found) if callable(found) else found

    def _rested(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            assert self.engine.sleep().moved_bytes >= 0 and self.engine.offloader.asleep
            assert self.engine.wake().moved_bytes > 0 and not self.engine.offloader.asleep
            self.naps += 1
            return method(*arguments, **named)

        return called


@dataclass(frozen=True)
class Found:
    """Of a rank."""

    told: tuple[Any, Any]
    """What updates and readings gave, without sleep and with it."""
    states: tuple[dict[str, Tensor], dict[str, Tensor]]
    asleep: dict[str, Tensor]
    """The weights as others read them while the model sleeps."""
    naps: int
    freed: float
    """Share of the bytes that there are which sleep took from the device."""
    counted: float
    """What the arena of the device counts of what was there."""
    second: int
    """Bytes that went to the host when nothing had changed since the last time."""


def open_megatron(spec: ModelSpec, rank: Rank) -> Any:
    from rlgraph.backends.engines.megatron.opening import open_rank as opened

    return opened(spec, rank)


def rested(over: Mesh, spec: ModelSpec, task: Task, megatron: bool) -> Found:
    """Two engines with the same updates, one of which sleeps between any two calls."""
    own = task.blocks[over.axis_position(dist.get_rank(), "dp")]
    opened = open_megatron if megatron else open_rank
    rank = Rank(over, dist.get_rank())

    def work(engine: Any) -> Any:
        told = updates(engine, spec.kind, task, own)
        return told, ask(engine, spec.kind, task.sequences, (1.0,))

    awake = opened(spec, rank)
    told = elsewhere(work, awake)
    states = awake.state()
    del awake
    gc.collect()
    with Everywhere() as live, live.resizing():
        engine = opened(spec, rank)
        napping = Napping(engine)
        found = work(napping)
        state = engine.state()
        del state
        gc.collect()
        before, kept = live.now, engine.offloader.arenas.host.bytes
        engine.offloader.arenas.device.peak = 0
        engine.sleep()
        there = engine.offloader.arenas.device.peak
        freed = before - live.now - (engine.offloader.arenas.host.bytes - kept)
        asleep = {name: tensor.clone() for name, tensor in engine.tensors().items()}
        engine.wake()
        second = engine.sleep().moved_bytes
        engine.wake()
        return Found(
            (told, found),
            (states, engine.state()),
            asleep,
            napping.naps,
            freed / (before - kept),
            there / freed,
            second,
        )


def same(one: Any, other: Any) -> bool:
    """To the bit, whatever is made of tensors, numbers and lists."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(each, other[key]) for key, each in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
