"""The training of an engine's model: gradients that are added up, the optimizer's steps with them, and its moments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlgraph.backends.engines.adapters import trained_parameters
from rlgraph.backends.engines.errors import NoRows
from rlgraph.backends.engines.moments import Moments
from rlgraph.backends.engines.offload import Offloader
from rlgraph.backends.engines.optimizer import Optimizer
from rlgraph.backends.engines.records import MicroBatch, TrainOptions
from rlgraph.backends.engines.transformers.autocast import forget_bfloat16_copies
from rlgraph.backends.engines.transformers.fsdp import ParameterShards
from rlgraph.backends.engines.transformers.gradients import ComputesLossCalls, compute_gradient_sum
from rlgraph.backends.engines.transformers.moments import moments
from rlgraph.backends.engines.transformers.replicas import Replicas
from rlgraph.backends.engines.transformers.sharded import SplitReplica
from rlgraph.backends.engines.transformers.tensor_parallel import TensorParallel
from rlgraph.ir.layout import LocalTensor


class TrainingMixin:
    """Implements `AccumulatesGradients` and `KeepsMoments` with what an engine has opened."""

    model: PreTrainedModel
    offloader: Offloader
    threads: int
    copies: Replicas | None
    _apart: SplitReplica | None
    _shards: ParameterShards | None
    _split: TensorParallel | None
    _pool: Executor | None
    _gathers_once: bool
    _optimizer_on_host: bool
    _optimizer: Optimizer | None
    _loss: float
    _with_rows: int
    _gradients: list[Tensor | None]
    """The gradients of what is trained, added up since they were cleared, like the loss and the number of micro-batches
    with rows."""

    def layout(self) -> tuple[LocalTensor, ...]:
        """Return what `HasWeights.layout` says."""
        raise NotImplementedError

    def train_step(
        self, blocks: Sequence[Any], micro: Callable[[Any], MicroBatch], options: TrainOptions, step: int
    ) -> dict[str, float]:
        """Make one update with the gradient of the sum of the losses of `micro(block)`, and return its `loss`,
        `grad_norm` before clipping, and `lr`."""
        self.clear_gradients()
        if self.copies is not None and self._apart is None and self._pool is None and blocks:
            self.add_gradients(blocks[:-1], micro)
            with self.copies.overlap_last_micro_batch(self._gradients, list(self._trained.values())):
                self.add_gradients(blocks[-1:], micro)
        else:
            self.add_gradients(blocks, micro)
        return self.apply_gradients(options, step)

    def clear_gradients(self) -> None:
        """Forget the gradients that were added up."""
        self._loss, self._with_rows, self._gradients = 0.0, 0, []

    def add_gradients(self, blocks: Sequence[Any], micro: Callable[[Any], MicroBatch]) -> None:
        """Add the gradient of the sum of the losses of `micro(block)` to the accumulated ones.

        The blocks' gradients are added in the blocks' order, so that neither threads nor their timing change the
        result.
        """
        arguments = cast(ComputesLossCalls, self), self._differentiate, blocks, micro, self._pool, self.threads
        with self._shards.keep_gathered() if self._shards and self._gathers_once else nullcontext():
            loss, busy, self._gradients = compute_gradient_sum(*arguments, self._gradients)
        self._loss, self._with_rows = self._loss + loss, self._with_rows + busy

    def apply_gradients(self, options: TrainOptions, step: int, scale: float = 1.0) -> dict[str, float]:
        """Make one update with `scale` times the gradients that were added up, and those of other replicas."""
        parameters = list(self._trained.values())
        loss, busy, gradients = self._loss, self._with_rows, self._gradients or [None] * len(parameters)
        self.clear_gradients()
        if self.copies is not None:
            loss, busy, gradients = self.copies.sum_over_replicas(loss, busy, gradients, parameters)
        if not busy:
            raise NoRows
        if self._optimizer is None:
            self._optimizer = self._new_optimizer()
        self.offloader.mark_changed()
        if scale != 1:
            torch._foreach_mul_([gradient for gradient in gradients if gradient is not None], scale)
        try:
            return {"loss": scale * loss, **self._optimizer.step(gradients, options, step)}
        finally:
            forget_bfloat16_copies(self.model)

    def moments(self) -> Moments:
        """Return what the optimizer keeps, live; nothing before the first update."""
        return moments(self._optimizer, self.layout(), self._trained, self.offloader)

    def allocate_moments(self, kinds: Collection[str], steps: float) -> Moments:
        """Continue after so many updates, with what is written into what this returns."""
        self._optimizer = self._new_optimizer()
        self.offloader.mark_changed()
        self._optimizer.resume(kinds, steps)
        return self.moments()

    @property
    def _trained(self) -> dict[str, Tensor]:
        """This rank's part of the parameters that are trained, by name."""
        return self._apart.local_trained_parameters(self.model) if self._apart else trained_parameters(self.model)

    def _new_optimizer(self) -> Optimizer:
        replicated, replicas = (self._split.common, self._split.size) if self._split else ((), 1)
        if self._optimizer is not None:
            self._optimizer.forget_host_bytes()
        host = self.offloader.arenas.host if self._optimizer_on_host else None
        summed = self._apart.sum_over_ranks if self._apart else None
        return Optimizer(self._trained, summed, replicated, replicas, host)

    def _differentiate(self, loss: Tensor) -> Sequence[Tensor | None]:
        if self._apart:
            return self._apart.local_gradients(loss, self._trained)
        return torch.autograd.grad(loss, list(self._trained.values()), allow_unused=True)
