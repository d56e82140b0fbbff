"""Adds up the gradients of all ranks, and makes the update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from torch import nn

from rlgraph.backends.engines.errors import NonFiniteGradient, PartialUpdate
from rlgraph.backends.engines.megatron.groups import warm_up_dp_groups
from rlgraph.backends.engines.megatron.overlap import GradientOverlap
from rlgraph.backends.engines.megatron.weight_gather import WeightGather
from rlgraph.backends.engines.optimizer import adamw_settings, forget_moments
from rlgraph.backends.engines.records import TrainOptions

BUCKET: int | None = None
"""Numbers of gradients that replicas add up at a time, at least; stages other than the first, which end sooner, add up
all at once. None: Megatron's own number, 40 million or a million for each replica."""


class Trainer:
    """Megatron's buffers of gradients around a model, and its AdamW; narrow weights are updated through float32 copies.

    All ranks make it and call it together. It moves the parameters into buffers of its own: a view of one that was
    taken before shows old weights after the first update.
    """

    def __init__(self, model: GPTModel, distributed: bool, later: bool) -> None:
        """distributed: the moments, and the float32 copies, are sharded over the data-parallel ranks. later: weights
        that the other ranks have updated travel while other work goes on; whoever needs them waits for them
        (`wait_for_weights`)."""
        warm_up_dp_groups()
        dtype = model.config.params_dtype
        # The distributed optimizer does not support float64.
        distributed = distributed and dtype != torch.float64
        later = later and distributed and parallel_state.get_data_parallel_world_size(with_context_parallel=True) > 1
        self.chunk = DistributedDataParallel(
            model.config,
            DistributedDataParallelConfig(
                use_distributed_optimizer=distributed,
                grad_reduce_in_fp32=dtype != torch.float64,
                overlap_grad_reduce=True,
                overlap_param_gather=later,
                bucket_size=BUCKET,
            ),
            model,
        )
        self._overlap = GradientOverlap(self.chunk)
        self._arrival: WeightGather | None = None
        if later:
            self.chunk.disable_forward_pre_hook(param_sync=False)
            self._arrival = WeightGather(self.chunk)
        config = OptimizerConfig(
            optimizer="adam",
            # `step` sets it each time, with the other settings.
            lr=0.0,
            clip_grad=0.0,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=distributed,
        )
        self._adam = get_megatron_optimizer(config, [self.chunk], use_gloo_process_groups=False)
        for inner in self._inner_optimizers():
            if isinstance(inner, torch.optim.AdamW):
                # Megatron makes torch's where Transformer Engine and Apex are missing: a pass for each operation.
                for group in inner.param_groups:
                    group.update(fused=True, foreach=False)

    @property
    def adam(self) -> Any:
        """Megatron's optimizer."""
        return self._adam

    def clear_gradients(self) -> None:
        """Forget the gradients."""
        self.chunk.zero_grad_buffer()
        self._adam.zero_grad()
        self._overlap.forget_started_buckets()

    def wait_for_weights(self) -> None:
        """Wait until the weights are those of the last update. Raises PartialUpdate where they do not come."""
        if self._arrival:
            self._arrival.wait_for_weights()

    def expect_last_gradients(self, part: nn.Module) -> None:
        """Note that the next backward pass through a part of the model is the last one before the step: gradients
        travel as it makes them."""
        self._overlap.expect_last_gradients(part)

    def sum_gradients(self) -> None:
        """Add up all ranks' parts of each gradient."""
        self._overlap.start_remaining_buckets()
        finalize_model_grads([self.chunk])

    def step(self, options: TrainOptions, number: int, scale: float = 1.0) -> dict[str, float]:
        """Update the weights with `scale` times the sum of all ranks' gradients, and return its norm before clipping
        and the learning rate.

        A gradient that is not finite raises `NonFiniteGradient` on every rank and leaves the weights as they are.
        """
        self.sum_gradients()
        self._adam.prepare_grads()
        if scale != 1:
            self._scale(scale)
        norm = float(self._adam.get_grad_norm())
        if not math.isfinite(norm):
            # All ranks raise the same message, as none of them sees all of the gradient.
            raise NonFiniteGradient(
                f"the gradient is not finite (its norm is {norm}): the weights were left as they are"
            )
        if options.clip_norm and norm > options.clip_norm:
            self._scale(options.clip_norm / norm)
        rate = options.learning_rate(number)
        # All groups get the same decay: Megatron would let biases and norms decay less.
        for group in self._adam.param_groups:
            group.update(lr=rate, **adamw_settings(options))
        if options.reset:
            for optimizer in self._inner_optimizers():
                forget_moments(optimizer)
        # The weights that it writes may still be travelling.
        self.wait_for_weights()
        try:
            self._adam.step_with_ready_grads()
            if self._arrival:
                self._arrival.start_gather()
        except RuntimeError as error:
            # Each replica updates a part, and the others get it from there.
            raise PartialUpdate(f"the update has ended in the midst: {error}") from error
        return {"grad_norm": norm, "lr": rate}

    def optimizer_tensors(self) -> Iterator[torch.Tensor]:
        """Yield what the optimizer keeps: moments, and the wide copies of narrow weights."""
        for inner in self._inner_optimizers():
            yield from (weight for group in inner.param_groups for weight in group["params"])
            yield from (value for state in inner.state.values() for value in state.values() if torch.is_tensor(value))

    def _inner_optimizers(self) -> Iterator[torch.optim.Optimizer]:
        """Yield torch's optimizers, of which a rank without weights of a kind has none."""
        for optimizer in getattr(self._adam, "chained_optimizers", [self._adam]):
            if optimizer.optimizer is not None:
                yield optimizer.optimizer

    def gradient_buffers(self) -> list[torch.Tensor]:
        """Return the buffers of gradients."""
        return [buffer.grad_data for buffer in (*self.chunk.buffers, *self.chunk.expert_parallel_buffers)]

    def refresh_master_weights(self) -> None:
        """Copy the model's weights into the wide copies, after somebody else has set them."""
        self.wait_for_weights()
        self._adam.reload_model_params()

    def _scale(self, factor: float) -> None:
        grads = [weight.grad for group in self._adam.param_groups for weight in group["params"]]
        torch._foreach_mul_([grad for grad in grads if grad is not None], factor)
