"""Gives each rank the model's answers to all micro-batches of a step, where ranks that shard experts compute some
each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from rlgraph.backends.engines.megatron.shim import model_device
from rlgraph.backends.engines.records import MicroBatch, ModelCall
from rlgraph.ir.mesh import Mesh


class SharedResults:
    """Shares answers between ranks along ep, so that each computes what losses report from the answers to all
    micro-batches."""

    def __init__(self, mesh: Mesh, rank: int, blocks: Sequence[Any], micro: Callable[[Any], MicroBatch]) -> None:
        self._ranks, self._index = mesh.axis_size("ep"), mesh.axis_position(rank, "ep")
        self._is_last_stage = mesh.axis_position(rank, "pp") == mesh.axis_size("pp") - 1
        self._blocks, self._micro = blocks, micro
        self._own_answers: list[list[Tensor]] = []
        """The answers computed here, in the micro-batches' order."""

    def micro_batch_keeping_results(self, block: Any) -> MicroBatch:
        """Return a block's micro-batch, keeping its answers."""
        part = self._micro(block)
        if self._ranks == 1 or block is None:
            return part

        def loss(answers: Sequence[Tensor]) -> Tensor:
            self._own_answers.append([answer.detach() for answer in answers])
            return part.loss(answers)

        return replace(part, loss=loss)

    @torch.no_grad()
    def exchange_results(self, dtype: torch.dtype) -> None:
        """Exchange the answers, and compute and drop the losses of the others' micro-batches. dtype: of answers."""
        if self._ranks == 1 or not self._is_last_stage or not self._blocks:
            return
        parts = [self._micro(block) for block in self._blocks]
        sizes = [_answer_size(call) for part in parts for call in part.calls]
        numbers = torch.zeros(sum(sizes), dtype=dtype, device=model_device())
        of_calls = iter(numbers.split(sizes))
        answers = [[next(of_calls) for _ in part.calls] for part in parts]
        for own_answers, stored in zip(answers[self._index :: self._ranks], self._own_answers, strict=True):
            for target, answer in zip(own_answers, stored, strict=True):
                target.copy_(answer)
        dist.all_reduce(numbers, group=parallel_state.get_expert_model_parallel_group())
        for number, (part, stored) in enumerate(zip(parts, answers, strict=True)):
            if number % self._ranks != self._index:
                part.loss(stored)


def _answer_size(call: ModelCall) -> int:
    """Return how many numbers the model gives for a call."""
    return len(call.sequences) if call.op == "score" else int(call.sequences.scored_counts().sum())
