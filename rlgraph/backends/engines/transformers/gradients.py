"""Computes the gradient of a step: the sum of those of its micro-batches, which threads compute side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

import torch
from torch import Tensor

from rlgraph.backends.engines.records import MicroBatch, ModelCall
from rlgraph.backends.engines.roles import Scores
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.vocabulary_sums import VocabularySum


class ComputesLossCalls(Scores, Protocol):
    """An engine that answers the calls of losses."""

    def head_answers(self, sequences: Sequences, ops: Sequence[Any], temperature: float = 1.0) -> list[Tensor]:
        """Return `logprobs`, `entropy` and sums over the vocabulary of the same rows from one pass over the model."""
        ...


def compute_gradient_sum(
    engine: ComputesLossCalls,
    differentiate: Callable[[Tensor], Sequence[Tensor | None]],
    blocks: Sequence[Any],
    micro: Callable[[Any], MicroBatch],
    pool: Executor | None,
    threads: int,
    before: Sequence[Tensor | None] = (),
) -> tuple[float, int, list[Tensor | None]]:
    """Return the sum over blocks of the loss, how many of them have rows, and the sum of the gradients, added in the
    blocks' order; no gradients where nothing was differentiated. differentiate: from a loss to its gradient for each
    parameter. before: a sum to which gradients are added in place."""

    def differentiate_block(block: Any) -> tuple[float, bool, Sequence[Tensor | None]]:
        with torch.enable_grad():
            part = micro(block)
            value = part.loss(_answers(engine, part.calls))
            if not value.requires_grad:
                return float(value), part.has_rows, []
            return float(value.detach()), part.has_rows, differentiate(value)

    total, busy, sums = 0.0, 0, list(before)
    for value, has_rows, gradients in _in_order(differentiate_block, blocks, pool, threads):
        total, busy = total + value, busy + has_rows
        if sums and gradients:
            sums = [add_in_place(old, new) for old, new in zip(sums, gradients, strict=True)]
        else:
            sums = sums or list(gradients)
        # Those of the next block come beside the sum, and not beside these, too.
        del gradients
    return total, busy, sums


def _answers(engine: ComputesLossCalls, calls: Sequence[ModelCall]) -> list[Tensor]:
    """Return the model's answer to each call; what its head gives for the same rows comes from one pass."""
    answers: dict[int, Tensor] = {}
    for place, call in enumerate(calls):
        if place in answers:
            continue
        if call.op in ("values", "score"):
            answers[place] = getattr(engine, call.op)(call.sequences)
            continue
        together = [index for index, later in enumerate(calls) if index >= place and _one_pass(call, later)]
        ops = [_asked(calls[index]) for index in together]
        answers.update(zip(together, engine.head_answers(call.sequences, ops, call.temperature), strict=True))
    return [answers[place] for place in range(len(calls))]


def _one_pass(a: ModelCall, b: ModelCall) -> bool:
    of_head = b.op not in ("values", "score")
    return of_head and a.sequences is b.sequences and a.temperature == b.temperature


def _asked(call: ModelCall) -> str | VocabularySum:
    """Return what a call asks of the model's head."""
    return VocabularySum(call.formula, call.others, call.reduce) if call.op == "distribution" else call.op


def _in_order(work: Callable[[Any], Any], items: Sequence[Any], pool: Executor | None, ahead: int) -> Iterator[Any]:
    """Yield results in the order of `items`, with at most `ahead` of them under way or waiting."""
    if pool is None or len(items) < 2:
        yield from (work(item) for item in items)
        return
    waiting = [pool.submit(work, item) for item in items[:ahead]]
    for index in range(len(items)):
        result = waiting.pop(0).result()
        if index + ahead < len(items):
            waiting.append(pool.submit(work, items[index + ahead]))
        yield result
        # Not while the next one is waited for.
        del result


def add_in_place(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """Return the sum, in the place of the old one; None is 0."""
    if old is None or new is None:
        return new if old is None else old
    return old.add_(new)
