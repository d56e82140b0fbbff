"""Passes over the stages of a model, forward alone or forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from rlgraph.engines.base import Micro
from rlgraph.engines.chunks import in_chunks
from rlgraph.engines.megatron.batches import Batch, Head, batch_of
from rlgraph.engines.megatron.context import Context
from rlgraph.engines.megatron.modules import Angles, Places, vocabulary_weight
from rlgraph.engines.megatron.shim import device
from rlgraph.engines.vocabulary import logprobs_and_entropy


class Pipeline:
    """The schedule of one model; every rank of a pipeline calls it with the same rows."""

    def __init__(self, model: GPTModel, angles: Angles, vocab: int, pad_id: int, logit_numbers: int) -> None:
        self._model, self._angles, self._pad_id = model, angles, pad_id
        self._places, self._context = Places(model), Context()
        self._head = _head_of(model, vocab, logit_numbers)

    @torch.no_grad()
    def answers(self, batches: Sequence[Batch]) -> list[list[Tensor]]:
        """The answers to each batch's calls; nothing on ranks before the last stage."""

        def read(batch: Batch, output: Tensor, non_loss_data: bool = True) -> list[Tensor]:
            return batch.answers(output[0], self._head)

        def forward(left: Iterator[Batch], model: nn.Module) -> tuple[Tensor, Callable[..., Any]]:
            output, batch = self._run(model, next(left))
            return output, partial(read, batch)

        return self._schedule(
            forward, self._model, iter(batches), len(batches), forward_only=True, collect_non_loss_data=True
        )

    def gradients(self, chunk: nn.Module, blocks: Sequence[Any], micro: Callable[[Any], Micro]) -> float:
        """Adds to the gradients of `chunk`, the model as its optimizer wraps it, those of the blocks' losses; returns
        the losses' sum, 0 on ranks before the last stage."""

        def loss(batch: Batch, part: Micro, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            value = part.loss(batch.answers(output[0], self._head))
            if not value.requires_grad:
                # The stages before wait for a gradient, even if it is 0.
                value = value + 0 * output[0, 0, 0]
            # Megatron would divide by the second, if its configuration did not say that the loss is a sum.
            return value, torch.tensor(0, dtype=torch.int), value.detach()

        def forward(left: Iterator[Any], model: nn.Module) -> tuple[Tensor, Callable[..., Any]]:
            part = micro(next(left))
            output, batch = self._run(model, batch_of(part.calls, self._pad_id))
            return output, partial(loss, batch, part)

        with torch.enable_grad():
            return float(sum(self._schedule(forward, chunk, iter(blocks), len(blocks))))

    def _run(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Batch]:
        """Of one stage: the hidden states, or on the last one the output at the batch's places, [1, M, outputs]. And
        the batch as this rank has it."""
        part, share = self._context.part(batch, self._pad_id)
        self._places.set(part.places.to(device()))
        packed = self._angles.of(part.lengths, share, device())
        output: Tensor = model(part.ids.to(device()), None, None, packed_seq_params=packed)
        return output, part

    def _schedule(
        self, forward: Callable[..., Any], model: nn.Module, left: Iterator[Any], count: int, **how: bool
    ) -> list[Any]:
        if not count:
            return []
        run = get_forward_backward_func()
        # Sizes travel with each micro-batch; these are not read.
        sizes = {"seq_length": 1, "micro_batch_size": 1}
        done: list[Any] = run(
            forward_step_func=forward, data_iterator=left, model=[model], num_microbatches=count, **sizes, **how
        )
        return done


def _head_of(model: GPTModel, vocab: int, numbers: int) -> Head:
    """Over this rank's part of the vocabulary, without the rows that pad it; with at most so many logits at a time."""
    group = parallel_state.get_tensor_model_parallel_group()

    def head(hidden: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        weight, first = vocabulary_weight(model, vocab)

        def read(hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
            logits = hidden @ weight.t()
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            # Temperature 0, greedy decoding, is scored at temperature 1.
            tempered = logits if temperature in (0, 1) else logits / temperature
            return logprobs_and_entropy(tempered, tokens, first, group)

        logprobs, entropy = in_chunks(read, max(1, numbers // weight.shape[0]), hidden, tokens)
        return logprobs, entropy

    return head
