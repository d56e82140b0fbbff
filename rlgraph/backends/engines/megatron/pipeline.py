"""Runs passes over the stages of a model, forward alone or forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor, nn

from rlgraph.backends.engines.chunks import compute_in_chunks
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import KeptTokens, LikeliestTokens, likeliest_in_parts
from rlgraph.backends.engines.logprobs import apply_temperature, logprobs_and_entropy
from rlgraph.backends.engines.megatron.batches import CallRows, Head, merge_calls
from rlgraph.backends.engines.megatron.context_parallel import ContextParallel, TokenShard
from rlgraph.backends.engines.megatron.experts import replay_in_layers
from rlgraph.backends.engines.megatron.groups import Stages
from rlgraph.backends.engines.megatron.model_chunks import split_chunks
from rlgraph.backends.engines.megatron.modules import OutputPositions, RotaryAngles, output_weight_rows
from rlgraph.backends.engines.megatron.shim import model_device
from rlgraph.backends.engines.pipelined import ModelPipeline, run_schedule
from rlgraph.backends.engines.records import MicroBatch, ModelCall
from rlgraph.backends.engines.roles import PipelineNeighbours
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.varlen import cap_scores
from rlgraph.backends.engines.vocabulary_sums import reduce_vocabulary
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.relative_costs import relative_pipeline_model
from rlgraph.passes.pipelines.stage_programs import forward_stage_programs, training_stage_programs

_ShardedRows = tuple[CallRows, TokenShard | None]
"""This rank's part of a micro-batch."""


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
        replay_in_layers(model.decoder.layers)

    @torch.no_grad()
    def compute_results(self, batches: Sequence[CallRows]) -> list[list[Any]]:
        """Return the answers to each batch's calls; nothing on ranks before the last stage."""
        answers, in_progress = [], dict[int, _ShardedRows]()

        def rows(number: int, chunk: int) -> _ShardedRows:
            return self._sharded(in_progress, number, chunk, lambda: batches[number])

        def forward(number: int, chunk: int, received: Tensor | None) -> Tensor:
            batch, share = rows(number, chunk)
            self._release(in_progress, number, chunk)
            output = self._run(batch, share, chunk, received)
            if self._parts[chunk].post_process:
                answers.append(batch.results_by_call(output[0], self._head))
            return output

        programs = forward_stage_programs(self.stages.size(), len(batches), len(self._parts))
        run_schedule(programs[self.stages.rank()], [self._line(forward, rows)], self.stages.message_group)
        return answers

    @torch.no_grad()
    def head_and_states(self, sequences: Sequences) -> tuple[Head, Tensor]:
        """Return the head of a model whose stages are all here, and what it is given before each scored token,
        [total scored, size]."""
        batch, share = self._context.shard_batch(
            merge_calls([ModelCall("distribution", sequences)], self._pad_id), self._pad_id
        )
        return self._head, self._run(batch, share, 0, None)[0][batch.table_spans[id(sequences)]]

    def describe_model(self, micro_batches: int) -> PipelineModel:
        """Return the description of the model from which joint schedules of several are made."""
        recompute = bool(self._model.config.recompute_granularity)
        size, turned = self.stages.size(), self.stages.turned
        model = relative_pipeline_model(
            self._shape, self._kind, size, micro_batches, recompute=recompute, turned=turned
        )
        return replace(model, chunks=len(self._parts))

    def training_pipeline(
        self, blocks: Sequence[Any], micro: Callable[[Any], MicroBatch], last: Callable[[nn.Module], None] | None
    ) -> tuple[ModelPipeline, list[Tensor]]:
        """Return the blocks as micro-batches of a schedule, and a list to which the last stage adds their losses."""
        losses: list[Tensor] = []
        parts: dict[int, MicroBatch] = {}
        in_progress: dict[int, _ShardedRows] = {}

        def merge_block_calls(number: int) -> CallRows:
            parts[number] = micro(blocks[number])
            return merge_calls(parts[number].calls, self._pad_id)

        def rows(number: int, chunk: int) -> _ShardedRows:
            return self._sharded(in_progress, number, chunk, lambda: merge_block_calls(number))

        def forward(number: int, chunk: int, received: Tensor | None) -> Tensor:
            batch, share = rows(number, chunk)
            part = parts.pop(number) if self._release(in_progress, number, chunk) else parts[number]
            output = self._run(batch, share, chunk, received)
            if not self._parts[chunk].post_process:
                return output
            value = part.loss(batch.results_by_call(output[0], self._head))
            losses.append(value.detach())
            # The earlier stages wait for a gradient, even if it is 0.
            return value if value.requires_grad else value + 0 * output[0, 0, 0]

        complete = None if last is None else (lambda chunk: last(self._parts[chunk]))
        return replace(self._line(forward, rows), before_last_backward=complete), losses

    def _line(
        self, forward: Callable[[int, int, Tensor | None], Tensor], rows: Callable[[int, int], _ShardedRows]
    ) -> ModelPipeline:
        def empty_input(number: int, chunk: int) -> Tensor:
            config, (batch, _) = self._model.config, rows(number, chunk)
            tokens = batch.ids.shape[1] // (config.tensor_model_parallel_size if config.sequence_parallel else 1)
            return torch.empty(tokens, 1, config.hidden_size, dtype=config.pipeline_dtype, device=model_device())

        return ModelPipeline(forward, empty_input, self.stages.ranks, self.stages.rank(), len(self._parts))

    def _sharded(
        self, in_progress: dict[int, _ShardedRows], number: int, chunk: int, merged: Callable[[], CallRows]
    ) -> _ShardedRows:
        """Return this rank's part of a micro-batch, which is made when its first chunk asks for it and kept until its
        last one begins."""
        if number not in in_progress:
            assert chunk == 0
            in_progress[number] = self._context.shard_batch(merged(), self._pad_id)
        return in_progress[number]

    def _release(self, in_progress: dict[int, _ShardedRows], number: int, chunk: int) -> bool:
        """Forget a micro-batch if this is its last chunk here, and return whether it is."""
        is_last = chunk == len(self._parts) - 1
        if is_last:
            del in_progress[number]
        return is_last

    def _run(self, part: CallRows, share: TokenShard | None, chunk: int, received: Tensor | None) -> Tensor:
        """Run one chunk. Return the hidden states, or from the last one the output at the batch's places,
        [1, M, outputs]."""
        model = self._parts[chunk]
        self._places.set_positions(part.output_positions.to(model_device()))
        if part.routes is not None and part.routes.shape[1:] != self._shape.routes_of_token:
            raise EngineError(
                "rows come with experts of {} layers, {} for each token, but this model has {} and {}".format(
                    *part.routes.shape[1:], *self._shape.routes_of_token
                )
            )
        packed = self._angles.packed_rows(part.lengths, share, part.routes, model_device())
        model.set_input_tensor(received)
        output: Tensor = model(part.ids.to(model_device()), None, None, packed_seq_params=packed)
        # The model would keep its input until the next one.
        model.set_input_tensor(None)
        return output


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
            run_schedule(turns, [line for _, line, *_ in parts], parts[0][0].stages.message_group, beside)
        return [float(sum(losses)) for _, _, losses, _ in parts]
    active = [(pipeline.stages, line, pipeline.describe_model(blocks)) for pipeline, line, _, blocks in parts if blocks]
    if active:
        stages = active[0][0]
        programs = training_stage_programs(PipelineProblem(tuple(described for _, _, described in active)))
        with torch.enable_grad():
            run_schedule(programs[stages.place], [line for _, line, _ in active], stages.message_group)
    return [float(sum(losses)) for _, _, losses, _ in parts]


def _make_head(model: GPTModel, shape: Shape, numbers: int) -> Head:
    """Return a head over this rank's part of the vocabulary, without the rows that pad it; it computes at most so many
    logits at a time."""
    return _SplitHead(model, shape, numbers, parallel_state.get_tensor_model_parallel_group())


@dataclass(frozen=True)
class _SplitHead:
    """A head over this rank's part of the vocabulary."""

    model: GPTModel
    shape: Shape
    numbers: int
    """The most logits that exist at a time."""
    group: dist.ProcessGroup
    """The ranks that have the other parts."""

    def __call__(self, hidden: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        weight, first = output_weight_rows(self.model, self.shape.vocab)

        def logprobs_of_chunk(hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
            return logprobs_and_entropy(self._logits(hidden, weight, temperature), tokens, first, self.group)

        logprobs, entropy = compute_in_chunks(logprobs_of_chunk, self._places(weight), hidden, tokens)
        return logprobs, entropy

    def vocabulary_sum(
        self,
        hidden: Tensor,
        formula: tuple[str, str],
        temperature: float,
        beside: Sequence[tuple[Head, Tensor]] = (),
        kept: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return what a formula of the probabilities at some places is reduced to over the vocabulary, float [M].
        beside: heads of the other models in it, and what these give there; kept: likeliest tokens and numbers, which
        come behind them."""
        weight, first = output_weight_rows(self.model, self.shape.vocab)
        heads, states = [self, *(head for head, _ in beside)], [hidden, *(other for _, other in beside)]

        def sums_of_chunk(*parts: Tensor) -> list[Tensor]:
            logits = [head.logits(part, temperature) for head, part in zip(heads, parts, strict=False)]
            numbers = [part.to(logits[0].device, logits[0].dtype) for part in parts[len(heads) :]]
            return reduce_vocabulary([formula], logits, self.group, numbers, first)

        places = max(1, self._places(weight) // (len(heads) + len(kept)))
        [sums] = compute_in_chunks(sums_of_chunk, places, *states, *kept)
        return sums

    def likeliest(self, hidden: Tensor, asked: LikeliestTokens, temperature: float) -> KeptTokens:
        """Return the likeliest tokens at some places."""
        weight, first = output_weight_rows(self.model, self.shape.vocab)
        logits = lambda part: self._logits(part, weight, temperature)  # noqa: E731
        return likeliest_in_parts(logits, hidden, self._places(weight), asked, first, self.group)

    def logits(self, hidden: Tensor, temperature: float) -> Tensor:
        """Return this rank's logits at some places, divided by the temperature, float [M, n]."""
        return self._logits(hidden, output_weight_rows(self.model, self.shape.vocab)[0], temperature)

    def _places(self, weight: Tensor) -> int:
        return max(1, self.numbers // weight.shape[0])

    def _logits(self, hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
        """Return this rank's logits at some places, divided by the temperature, float [M, n]."""
        logits = hidden @ weight.t()
        logits = logits / self.shape.logits_scale if self.shape.logits_scale != 1 else logits
        logits = cap_scores(logits, self.shape.logits_cap) if self.shape.logits_cap else logits
        return apply_temperature(logits.to(torch.promote_types(logits.dtype, torch.float32)), temperature)
