"""Runs passes over the stages of a model, forward alone or forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor, nn

from rlgraph.backends.engines.chunks import compute_in_chunks
from rlgraph.backends.engines.megatron.batches import CallRows, Head, merge_calls
from rlgraph.backends.engines.megatron.context import ContextParallel
from rlgraph.backends.engines.megatron.groups import Stages
from rlgraph.backends.engines.megatron.model_chunks import split_chunks
from rlgraph.backends.engines.megatron.modules import OutputPositions, RotaryAngles, output_weight_rows
from rlgraph.backends.engines.megatron.shim import model_device
from rlgraph.backends.engines.pipelined import Arrive, ModelPipeline, entries_in_turn, run_schedule
from rlgraph.backends.engines.records import MicroBatch
from rlgraph.backends.engines.roles import PipelineNeighbours
from rlgraph.backends.engines.varlen import cap_scores
from rlgraph.backends.engines.vocabulary import apply_temperature, logprobs_and_entropy
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.pipelines.counted_models import counted_model
from rlgraph.passes.pipelines.fuse import best_rule_schedule
from rlgraph.passes.pipelines.problem import PipelineModel, Problem
from rlgraph.passes.pipelines.published import forward_entries, published_lists


class Pipeline:
    """One model's pipeline stages; every rank of a pipeline calls it with the same rows."""

    def __init__(
        self,
        model: GPTModel,
        shape: Shape,
        kind: ModelKind,
        pad_id: int,
        logit_numbers: int,
        stages: Stages,
        chunks: int,
    ) -> None:
        self.stages, self._model, self._pad_id = stages, model, pad_id
        self._parts = split_chunks(model, chunks, stages)
        self._angles = RotaryAngles(model.config, shape)
        self._shape, self._kind = shape, kind
        self._places, self._context = OutputPositions(model), ContextParallel()
        self._head = _make_head(model, shape, logit_numbers)

    @torch.no_grad()
    def compute_answers(self, batches: Sequence[CallRows]) -> list[list[Tensor]]:
        """Return the answers to each batch's calls; nothing on ranks before the last stage."""
        answers = []

        def forward(number: int, chunk: int, arrive: Arrive) -> tuple[Tensor | None, Tensor]:
            received, output, batch = self._run(batches[number], chunk, arrive)
            if self._parts[chunk].post_process:
                answers.append(batch.answers_to_calls(output[0], self._head))
            return received, output

        order = forward_entries(self.stages.size(), len(batches), len(self._parts))
        run_schedule(order, [self._line(forward)], self.stages.message_group)
        return answers

    def describe_model(self, micro_batches: int) -> PipelineModel:
        """Return the description of the model from which joint schedules of several are made."""
        recompute = bool(self._model.config.recompute_granularity)
        size, turned = self.stages.size(), self.stages.turned
        model = counted_model(self._shape, self._kind, size, micro_batches, recompute=recompute, turned=turned)
        return replace(model, chunks=len(self._parts))

    def training_pipeline(
        self, blocks: Sequence[Any], micro: Callable[[Any], MicroBatch], last: Callable[[nn.Module], None] | None
    ) -> tuple[ModelPipeline, list[Tensor]]:
        """Return the blocks as micro-batches of a schedule, and a list to which the last stage adds their losses."""
        losses: list[Tensor] = []
        in_progress: dict[int, tuple[MicroBatch, CallRows]] = {}
        """Micro-batches that have not gone through all chunks."""

        def forward(number: int, chunk: int, arrive: Arrive) -> tuple[Tensor | None, Tensor]:
            if chunk == 0:
                micro_batch = micro(blocks[number])
                in_progress[number] = micro_batch, merge_calls(micro_batch.calls, self._pad_id)
            part, rows = in_progress.pop(number) if chunk == len(self._parts) - 1 else in_progress[number]
            received, output, batch = self._run(rows, chunk, arrive)
            if not self._parts[chunk].post_process:
                return received, output
            value = part.loss(batch.answers_to_calls(output[0], self._head))
            losses.append(value.detach())
            # The earlier stages wait for a gradient, even if it is 0.
            return received, value if value.requires_grad else value + 0 * output[0, 0, 0]

        complete = None if last is None else (lambda chunk: last(self._parts[chunk]))
        return replace(self._line(forward), before_last_backward=complete), losses

    def _line(self, forward: Callable[[int, int, Arrive], tuple[Tensor | None, Tensor]]) -> ModelPipeline:
        return ModelPipeline(forward, self.stages.ranks, self.stages.rank(), len(self._parts))

    def _run(self, batch: CallRows, chunk: int, arrive: Arrive) -> tuple[Tensor | None, Tensor, CallRows]:
        """Run one chunk. Return its input; the hidden states, or from the last one the output at the batch's places,
        [1, M, outputs]; and the batch as this rank has it."""
        model = self._parts[chunk]
        part, share = self._context.shard_batch(batch, self._pad_id)
        self._places.set_positions(part.output_positions.to(model_device()))
        packed = self._angles.packed_rows(part.lengths, share, model_device())
        received = None
        if not model.pre_process:
            config = model.config
            tokens = part.ids.shape[1] // (config.tensor_model_parallel_size if config.sequence_parallel else 1)
            received = arrive(
                torch.empty(tokens, 1, config.hidden_size, dtype=config.pipeline_dtype, device=model_device())
            )
            received.requires_grad_(torch.is_grad_enabled())
        model.set_input_tensor(received)
        output: Tensor = model(part.ids.to(model_device()), None, None, packed_seq_params=packed)
        # The model would keep its input until the next one.
        model.set_input_tensor(None)
        return received, output, part


PipelineTraining = tuple[Pipeline, Sequence[Any], Callable[[Any], MicroBatch]]
"""A pipeline, its blocks of rows, and the function that makes each block's micro-batch."""


def accumulate_gradients(
    trainings: Sequence[PipelineTraining],
    last: Callable[[nn.Module], None] | None = None,
    beside: PipelineNeighbours | None = None,
) -> list[float]:
    """Add the gradients of the blocks' losses to those of the weights; return the sum of each training's losses, 0 on
    ranks before its model's last stage. last: called before the last backward pass through each part of a model.

    One model runs 1F1B, interleaved if it has chunks; several, over the same ranks, fill each other's bubbles. So do
    those of other processes, which are `beside` this one.
    """
    parts = [
        (pipeline, *pipeline.training_pipeline(blocks, micro, last), len(blocks))
        for pipeline, blocks, micro in trainings
    ]
    if beside is not None:
        turns = beside.plan_turns(
            [pipeline.describe_model(1) for pipeline, *_ in parts], [blocks for *_, blocks in parts]
        )
        with torch.enable_grad():
            lines, channel = [line for _, line, *_ in parts], parts[0][0].stages.message_group
            run_schedule([turn.entry for turn in turns], lines, channel, entries_in_turn(turns, beside))
        return [float(sum(losses)) for _, _, losses, _ in parts]
    active = [(pipeline.stages, line, pipeline.describe_model(blocks)) for pipeline, line, _, blocks in parts if blocks]
    if active:
        (stages, _, model), *others = active
        if others:
            entries = best_rule_schedule(Problem(tuple(described for _, _, described in active)))[stages.place]
        else:
            entries = published_lists(model)[stages.rank()]
        with torch.enable_grad():
            run_schedule(entries, [line for _, line, _ in active], stages.message_group)
    return [float(sum(losses)) for _, _, losses, _ in parts]


def _make_head(model: GPTModel, shape: Shape, numbers: int) -> Head:
    """Return a head over this rank's part of the vocabulary, without the rows that pad it; it computes at most so many
    logits at a time."""
    group = parallel_state.get_tensor_model_parallel_group()

    def head(hidden: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        weight, first = output_weight_rows(model, shape.vocab)

        def read(hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
            logits = hidden @ weight.t()
            logits = logits / shape.logits_scale if shape.logits_scale != 1 else logits
            logits = cap_scores(logits, shape.logits_cap) if shape.logits_cap else logits
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            return logprobs_and_entropy(apply_temperature(logits, temperature), tokens, first, group)

        logprobs, entropy = compute_in_chunks(read, max(1, numbers // weight.shape[0]), hidden, tokens)
        return logprobs, entropy

    return head
