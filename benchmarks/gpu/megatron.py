"""Megatron alone, a rank of its own: what it says of rows and its first gradient beside those of transformers on the
same device, and how much of the device's peak a training step reaches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.correctness import FAMILIES, GRADIENT, READS, alike, sequences
from benchmarks.gpu.measure import Row, Setting, Skipped, config, engine, spec
from benchmarks.gpu.throughput import MODELS, peak_of, training
from rlgraph.backends.engines.base import MicroBatch, ModelCall, TrainOptions
from rlgraph.backends.engines.process_groups import join_process_group, open_store
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.catalog.models.families import ModelKind
from rlgraph.ir.mesh import Mesh

SECONDS = 60.0


def rows(setting: Setting) -> Iterator[Row]:
    if find_spec("megatron") is None:
        raise Skipped("megatron-core is not installed")
    with alone():
        for dtype in ("float32", "bfloat16"):
            yield from _models(dtype, setting)
        _, dtype, peak = peak_of(setting)
        for name in MODELS[: 1 if setting.small else None]:
            fields = config(name, setting)
            yield from training(name, opened(fields, dtype), fields, peak, setting)


@contextmanager
def alone() -> Iterator[None]:
    """This process as the one rank of a group."""
    meeting = open_store("127.0.0.1")
    join_process_group(0, 1, meeting.address, SECONDS)
    try:
        yield
    finally:
        dist.destroy_process_group()


def opened(fields: Any, dtype: str, kind: ModelKind = "causal_lm") -> Any:
    """A model of Megatron's with the weights that `measure.engine` has."""
    from rlgraph.backends.engines.megatron.opening import import_megatron

    import_megatron()
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    return MegatronEngine.open(spec(fields, dtype, kind), Mesh(), block_tokens=8192)


def _models(dtype: str, setting: Setting) -> Iterator[Row]:
    fields, made = FAMILIES["qwen2"], sequences(8 if setting.small else 32)
    here, there = engine(fields, setting.device, dtype), opened(fields, dtype)
    what = f"Megatron beside transformers, {dtype}"
    kinds = {kind: (engine(fields, setting.device, dtype, kind), opened(fields, dtype, kind)) for kind in READS}
    yield from alike(what, dtype, {"causal_lm": (here, there), **kinds}, made)
    one, other = (_step(each, made) for each in (here, there))
    for told in ("loss", "grad_norm"):
        yield Row(f"{what}: {told} of a step", abs(other[told] / one[told] - 1), "of it", most=GRADIENT[dtype])


def _step(made: Any, rows: Sequences) -> dict[str, float]:
    """What the first update says of itself."""
    weights = torch.linspace(0.5, 1.5, int(rows.scored.sum()))

    def micro(_: Any) -> MicroBatch:
        return MicroBatch(
            (ModelCall("logprobs", rows),), lambda said: -(weights.to(said[0].device) * said[0]).sum() / len(weights)
        )

    return dict(made.train_step([0], micro, TrainOptions(1e-5), 0))
