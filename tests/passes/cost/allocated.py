"""The bytes that real engines hold and need, beside what the cost model says of the same work."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from rlgraph.backends.engines.base import Rank, Sampling, TrainOptions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers.engine import TransformersEngine, open_rank
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.plan import ModelHolding
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.memory import Footprint
from rlgraph.passes.cost.predict import memory_footprint
from tests.passes.cost.live import Live
from tests.passes.cost.trained import Case
from tests.waits import NEVER

CPU = read_cluster("1x8:cpu").islands[0]


class Everywhere(Live):
    """Counts all storages that are made while it is entered, by several threads, too."""

    def __init__(self) -> None:
        super().__init__(())
        self._lock = threading.RLock()

    def pool(self, threads: int) -> ThreadPoolExecutor:
        """Threads for an engine."""

        def begin() -> None:
            torch.set_num_threads(1)
            self.__enter__()

        return ThreadPoolExecutor(threads, initializer=begin)

    def since(self) -> int:
        """The peak since the last call."""
        found, self.peak = self.peak, self.now
        return found

    def _add(self, storage: torch.UntypedStorage) -> None:
        with self._lock:
            # Tensors that are there to describe others have no bytes.
            if storage.device.type != "meta":
                super()._add(storage)

    def resized(self, storage: torch.UntypedStorage) -> None:
        with self._lock:
            super().resized(storage)

    def _drop(self, key: int) -> None:
        with self._lock:
            super()._drop(key)

    @contextmanager
    def resizing(self) -> Iterator[None]:
        """Around what takes storages' bytes away, and gives them back: no operator of torch."""
        plain = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            found = plain(storage, size)
            self.resized(storage)
            return found

        torch.UntypedStorage.resize_ = resize
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = plain


@dataclass(frozen=True)
class Work:
    """A model, rows, and what is done with them."""

    operation: str
    case: Case = Case()
    layers: int = 2
    micros: int = 1
    """Micro-batches of `case.rows` rows each; of `generate`, samples of each prompt."""
    threads: int = 1
    split: Mesh = make_mesh()
    response: int = 0
    """Of `generate`: tokens that are sampled; prompts have the case's length."""
    recompute: bool = False
    attention: str = ""
    adapters: str = ""
    gather: str = ""

    def __str__(self) -> str:
        case = self.case
        split = "x".join(f"{name}{size}" for name, size in self.split.axes if size > 1)
        rows = f"{self.micros}x{case.rows}x{case.length + self.response}"
        threads = f"{self.threads} threads" if self.threads > 1 else ""
        again = "recomputed" if self.recompute else ""
        uneven = f"and fewer by {case.less}" if case.less else ""
        what = (self.operation, case.family, case.dtype, rows, uneven, f"L{self.layers}", threads, split, again)
        what += (self.attention, self.adapters, f"gathered by {self.gather}" if self.gather else "")
        return " ".join(filter(None, what))

    @property
    def spec(self) -> ModelSpec:
        return self.case.spec(self.layers)

    def model(self) -> ModelConfig:
        return ModelConfig("model", replace(self.case.shape(), layers=self.layers), self.case.kind, self.case.dtype)

    @property
    def block(self) -> int:
        """Tokens of a micro-batch."""
        return sum(self.case.lengths)

    def predicted(self, engine: str) -> Footprint:
        case, ranks = self.case, self.split.axis_size("dp") * self.split.axis_size("fsdp")
        deployment = Deployment(
            engine,
            CPU,
            self.split,
            self.block,
            self.recompute,
            self.attention,
            self.adapters,
            self.gather,
            threads=self.threads,
        )
        if self.operation == "generate":
            lengths = Lengths((float(case.length),)), Lengths((float(self.response),))
            return memory_footprint(
                "generate", self.model(), deployment, [Batch(case.rows * self.micros, *lengths, self.micros)]
            )
        asked = [min(case.scored, length - 1) for length in case.lengths]
        lengths = Lengths((float(case.length - case.scored),)), Lengths(tuple(map(float, sorted(asked))))
        return memory_footprint(
            self.operation, self.model(), deployment, [Batch(case.rows * self.micros * ranks, *lengths)]
        )


def transformers(work: Work) -> tuple[int, int]:
    """Bytes that stay, and those that the work needs beside them."""
    with Everywhere() as live:
        engine = TransformersEngine.open(
            work.spec,
            threads=work.threads,
            recompute=work.recompute,
            attention=work.attention,
            block_tokens=work.block,
        )
        if work.threads > 1:
            engine._pool = live.pool(work.threads)
            _meet(engine, work.threads)
        return _done(engine, work, live)


def _meet(engine: Any, threads: int) -> None:
    """Has threads wait for one another where they hold most: before a gradient is taken, and at each token."""
    # The model is tried by one thread, for which the others would wait here.
    assert engine._network.can_read_on
    barrier, lock = threading.Barrier(threads, timeout=NEVER), threading.Lock()
    add, differentiate, step = engine.add_gradients, engine._differentiate, engine._network.decode_step
    pairs = 0

    def add_gradients(blocks: Sequence[Any], micro: Any) -> None:
        nonlocal pairs
        # One alone is no thread's, and for the last of an odd number nobody comes.
        pairs = len(blocks) // threads * threads if len(blocks) > 1 else 0
        add(blocks, micro)

    def met(loss: torch.Tensor) -> Any:
        nonlocal pairs
        with lock:
            pairs -= 1
            comes = pairs >= 0
        if comes:
            barrier.wait()
        return differentiate(loss)

    def token(*args: Any) -> Any:
        barrier.wait()
        return step(*args)

    engine.add_gradients, engine._differentiate, engine._network.decode_step = add_gradients, met, token


def on_rank(over: Mesh, work: Work) -> tuple[int, int]:
    """The same of one rank of Megatron-core."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    case = work.case
    with Everywhere() as live:
        engine = MegatronEngine.open(work.spec, over, block_tokens=case.rows * case.length)
        return _done(engine, work, live)


def shared_out(over: Mesh, work: Work) -> tuple[int, int]:
    """The same of one of the ranks that share the model out, each of which has as many rows."""
    case, together = work.case, replace(work, case=replace(work.case, rows=work.case.rows * over.axis_size("fsdp")))
    how = ModelHolding("", "", micro_tokens=case.rows * case.length, recompute=work.recompute, gather=work.gather)
    with Everywhere() as live, live.resizing():
        return _done(open_rank(work.spec, Rank(over, dist.get_rank(), how)), together, live)


def vllm(work: Work, **limits: Any) -> tuple[int, int]:
    """The same of vLLM, whose rows may be as long as the model has positions."""
    from vllm.model_executor.layers.attention import mla_attention

    from rlgraph.backends.engines.vllm.engine import VllmEngine

    live, plain = Everywhere(), mla_attention.MLAAttention.forward_impl

    def counted(*args: Any, **kwargs: Any) -> Any:
        # It is one operator of torch's, inside of which nobody counts.
        with live:
            return plain(*args, **kwargs)

    with patch.object(mla_attention.MLAAttention, "forward_impl", counted), live:
        return _done(VllmEngine.open(work.spec, **limits), work, live)


def _done(engine: Any, work: Work, live: Everywhere) -> tuple[int, int]:
    """After a first time with few tokens, which makes what stays. Where threads meet one may be quicker than the other
    from there on: the most of several times counts. What ranks send gloo lets go of a moment later, at times: then the
    least does."""
    few = replace(work, case=replace(work.case, rows=1, length=16, scored=1, less=0), response=min(work.response, 2))
    _do(engine, few, 0)
    peaks, stays = [], []
    for number in range(1, 1 + _times(work)):
        gc.collect()
        live.since()
        _do(engine, work, number)
        gc.collect()
        peaks.append(live.since())
        stays.append(live.now)
    peak = min(peaks) if work.split.rank_count > 1 else max(peaks)
    return min(stays), peak - min(stays)


def _times(work: Work) -> int:
    if work.threads > 1:
        return 7
    return 3 if work.split.rank_count > 1 else 1


def _do(engine: Any, work: Work, number: int) -> None:
    case = work.case
    if work.operation == "train":
        micro = case.micro()
        engine.train_step(range(work.micros), lambda block: micro, TrainOptions(lr=1e-3), number)
    elif work.operation == "accumulate":
        # What was added up is there until the next step's rows come.
        micro = case.micro()
        if number:
            engine.apply_gradients(TrainOptions(lr=1e-3), number - 1)
        for part in (range(1), range(1, work.micros)):
            engine.add_gradients(part, lambda block: micro)
    elif work.operation == "generate":
        rows = Sequences.from_lists([[3 + (i + j) % 400 for j in range(case.length)] for i in range(case.rows)])
        keys = np.arange(case.rows * work.micros, dtype=np.uint64)
        sampling = Sampling(max_tokens=work.response, min_tokens=work.response)
        engine.generate(rows, work.micros, sampling, keys)
    else:
        rows = Sequences.concat([case.micro().calls[0].sequences] * work.micros)
        with torch.no_grad():
            getattr(engine, work.operation)(rows)
