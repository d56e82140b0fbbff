"""Log-probabilities and entropies of logits that are split by vocabulary: three numbers a row travel, never the
logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / temperature; temperature 0, greedy decoding, is scored at temperature 1."""
    return logits if temperature in (0, 1) else logits / temperature


def logprobs_and_entropy(
    logits: Tensor, tokens: Tensor, first: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each row's token, and the entropy in nats of its distribution, float [M] each, on
    each rank.

    logits: [M, n], the columns of this rank, from number `first` of the vocabulary on; n is at least 1. tokens: int64
    [M].
    """
    results: tuple[Tensor, Tensor] = _LogSoftmax.apply(logits, tokens, first, group)  # type: ignore[no-untyped-call]
    return results


class _LogSoftmax(torch.autograd.Function):
    """Computes with s = sum exp x and t = sum x exp x over the vocabulary, where x is a logit less the row's largest:
    log p = x - log s, and the entropy is log s - t / s."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, tokens: Tensor, first: int, group: dist.ProcessGroup | None
    ) -> tuple[Tensor, Tensor]:
        largest = logits.amax(1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        x = logits - largest[:, None]
        column = tokens - first
        is_local = (column >= 0) & (column < logits.shape[1])
        column = column.clamp(0, logits.shape[1] - 1)[:, None]
        exp = x.exp()
        sums = torch.stack([exp.sum(1), (exp * x).sum(1), x.gather(1, column)[:, 0].where(is_local, 0)])
        dist.all_reduce(sums, group=group)
        s, t, chosen = sums
        log_s = s.log()
        entropy = log_s - t / s
        ctx.save_for_backward(x.sub_(log_s[:, None]), entropy, column, is_local)
        ctx.set_materialize_grads(False)
        return chosen - log_s, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Use d log p(token) / dx_j = [j is the token] - p_j; d entropy / dx_j = -p_j (log p_j + entropy)."""
        to_logprob, to_entropy = gradients
        log_p, entropy, column, is_local = ctx.saved_tensors
        p = log_p.exp()
        to_logits = torch.zeros_like(p)
        if to_logprob is not None:
            to_logits -= p * to_logprob[:, None]
            to_logits.scatter_add_(1, column, (to_logprob * is_local)[:, None])
        if to_entropy is not None:
            to_logits -= p * (log_p + entropy[:, None]) * to_entropy[:, None]
        return to_logits, None, None, None
