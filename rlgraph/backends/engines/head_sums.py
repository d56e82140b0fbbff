"""What a linear head in tiles knows of each row between its passes over the vocabulary: sums of exponentials, and the
factors of a gradient."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LogitReference(NamedTuple):
    """Where the logits of each row lie. A row's is its own: its results are the same to the bit beside any others, and
    with entropies or without."""

    taken_off: Tensor | None
    """What is taken off a row's logits before the exponentials are, [M]; None: nothing, of all rows."""
    middle: Tensor
    """A logit less that which is near the largest ones, [M]: it makes the sum of x exp(x) more exact."""

    @classmethod
    def of(cls, largest: Tensor, taken_off: Tensor) -> LogitReference:
        """largest: about the largest logit of each row, [M]."""
        return cls(taken_off if bool(taken_off.any()) else None, largest - taken_off)


class HeadSums:
    """What a forward pass knows of each row, in float64 [M]: sums over the vocabulary of exp(x) and (x - middle)
    exp(x), where x is a logit less the row's reference, and the logit of its token."""

    def __init__(self, reference: LogitReference, rows: int, device: torch.device, dtype: torch.dtype) -> None:
        self.reference = reference
        self.s, self.t, self.chosen = torch.zeros(3, rows, dtype=torch.float64, device=device)
        self.dtype = dtype
        """Of results."""
        self.kept: dict[tuple[int, int], Tensor] = {}
        """Exponentials of the first tiles, by first row and column."""
        self.projection: Tensor | None = None
        """The sum over the vocabulary, but for the row's token, of exp(x) times the weights, [M, H]."""

    def results(self, entropy: bool) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities, and the entropies or zeros, [M]."""
        log_s, taken_off = self.s.log(), self.reference.taken_off
        chosen = self.chosen if taken_off is None else self.chosen - taken_off
        entropies = log_s - self.mean() if entropy else torch.zeros_like(log_s)
        return (chosen - log_s).to(self.dtype), entropies.to(self.dtype)

    def mean(self) -> Tensor:
        """Return the mean of x in the distribution of each row, float64 [M]."""
        mean: Tensor = self.reference.middle + self.t / self.s
        return mean


class LogitGradient(NamedTuple):
    """The gradient of a row's logits: exp(x) * (factor + slope * (x - mean)), but for that of its token."""

    factor: Tensor
    """Float [M]."""
    slope: Tensor | None
    """Float [M]; None: 0. Only then the factor can wait for the products."""
    exp_minus_mean: Tensor | None
    """exp(-mean), float [M]."""
    of_token: Tensor
    """Float [M]: without the factor where there is no slope."""

    @classmethod
    def of(
        cls, sums: HeadSums, to_logprob: Tensor, to_entropy: Tensor | None, logprobs: Tensor, entropies: Tensor
    ) -> LogitGradient:
        """Use d log p(token) / dx_j = [j is the token] - p_j; d entropy / dx_j = -p_j (log p_j + entropy)."""
        factor = -to_logprob.double() / sums.s
        if to_entropy is None:
            return cls(factor.to(sums.dtype), None, None, (sums.s * logprobs.double().expm1()).to(sums.dtype))
        slope = -to_entropy.double() / sums.s
        of_token = -to_logprob * logprobs.expm1() - to_entropy * logprobs.exp() * (logprobs + entropies)
        exp_minus_mean = sums.mean().neg_().exp_()
        return cls(factor.to(sums.dtype), slope.to(sums.dtype), exp_minus_mean.to(sums.dtype), of_token)
