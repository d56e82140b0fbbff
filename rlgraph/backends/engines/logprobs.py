"""Log-probabilities and entropies of logits. Of logits that are split by vocabulary three numbers a row travel, never
the logits.

torch's `log_softmax` and `cross_entropy` are not used: on CPU cores they add a row's exponentials up one after the
other in float32, where small ones are lost beside a large one: 1e-5 nats for 49,152 tokens, all in one direction.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / temperature; temperature 0, greedy decoding, is scored at temperature 1."""
    return logits if temperature in (0, 1) else logits / temperature


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return log softmax(logits) of each row's token, float [M]. logits: [M, V]. tokens: int64 [M]."""
    logprobs: Tensor = _TokenLogProbs.apply(logits, tokens)  # type: ignore[no-untyped-call]
    return logprobs


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy in nats of each row's distribution, float [M]. logits: [M, V]."""
    entropy: Tensor = _Entropies.apply(logits)  # type: ignore[no-untyped-call]
    return entropy


class _TokenLogProbs(torch.autograd.Function):
    """Computes x - log sum exp x, where x is a logit less the row's largest. It keeps the logits for its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor) -> Tensor:
        largest = logits.amax(1, keepdim=True)
        x = logits - largest
        chosen = x.gather(1, tokens[:, None])
        log_s = x.exp_().sum(1, keepdim=True).log_()
        ctx.save_for_backward(logits, tokens, largest, log_s)
        return (chosen - log_s)[:, 0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Use d log p(token) / dx_j = [j is the token] - p_j."""
        (gradient,) = gradients
        logits, tokens, largest, log_s = ctx.saved_tensors
        to_logits: Tensor = (logits - largest).sub_(log_s).exp_().mul_(-gradient[:, None])
        return to_logits.scatter_add_(1, tokens[:, None], gradient[:, None]), None


class _Entropies(torch.autograd.Function):
    """Keeps the logarithms of the probabilities for its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        log_p = logits - logits.amax(1, keepdim=True)
        log_p.sub_(log_p.exp().sum(1, keepdim=True).log_())
        entropy = log_p.exp().mul_(log_p).sum(1).neg_()
        ctx.save_for_backward(log_p, entropy)
        return entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Use d entropy / dx_j = -p_j (log p_j + entropy)."""
        (gradient,) = gradients
        log_p, entropy = ctx.saved_tensors
        to_logits: Tensor = log_p.exp().mul_(log_p + entropy[:, None]).mul_(-gradient[:, None])
        return to_logits


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
