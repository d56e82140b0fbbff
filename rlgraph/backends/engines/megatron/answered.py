"""What a model says to the micro-batches of a step, where ranks that share experts out compute some of them each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from rlgraph.backends.engines.base import Call, Micro
from rlgraph.backends.engines.megatron.shim import device
from rlgraph.ir.mesh import Mesh


class Answered:
    """What is made of a model's answers beside the loss, for a report, is made of those to all micro-batches, on each
    rank: ranks along ep tell each other theirs in the end."""

    def __init__(self, mesh: Mesh, rank: int, blocks: Sequence[Any], micro: Callable[[Any], Micro]) -> None:
        self._ranks, self._at = mesh.length("ep"), mesh.at(rank, "ep")
        self._last = mesh.at(rank, "pp") == mesh.length("pp") - 1
        self._blocks, self._micro = blocks, micro
        self._said: list[list[Tensor]] = []
        """To those that are computed here, in their order."""

    def micro(self, block: Any) -> Micro:
        part = self._micro(block)
        if self._ranks == 1 or block is None:
            return part

        def loss(answers: Sequence[Tensor]) -> Tensor:
            self._said.append([answer.detach() for answer in answers])
            return part.loss(answers)

        return replace(part, loss=loss)

    @torch.no_grad()
    def tell(self, dtype: torch.dtype) -> None:
        """The losses of the others' micro-batches are computed here, too, and dropped. dtype: of answers."""
        if self._ranks == 1 or not self._last or not self._blocks:
            return
        parts = [self._micro(block) for block in self._blocks]
        sizes = [_numbers(call) for part in parts for call in part.calls]
        whole = torch.zeros(sum(sizes), dtype=dtype, device=device())
        of_calls = iter(whole.split(sizes))
        answers = [[next(of_calls) for _ in part.calls] for part in parts]
        for mine, said in zip(answers[self._at :: self._ranks], self._said, strict=True):
            for place, answer in zip(mine, said, strict=True):
                place.copy_(answer)
        dist.all_reduce(whole, group=parallel_state.get_expert_model_parallel_group())
        for number, (part, said) in enumerate(zip(parts, answers, strict=True)):
            if number % self._ranks != self._at:
                part.loss(said)


def _numbers(call: Call) -> int:
    """How many the model says."""
    return len(call.sequences) if call.op == "score" else int(call.sequences.counts().sum())
