"""Log-probabilities and entropies of a large vocabulary, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rlgraph.backends.engines.linear_head import linear_logprobs
from rlgraph.backends.engines.logprobs import entropies, token_logprobs
from rlgraph.backends.enginespec.memory import HeadTiles

ROWS, VOCABULARY = 4, 49_152
TOKENS = torch.tensor([7, 7, 0, VOCABULARY - 1])


def logits(peak: float) -> Tensor:
    """Float32 [ROWS, VOCABULARY], all of about 0 but that of token 7, as a model's are that is sure of a token."""
    rows = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(0))
    rows[:, 7] = peak
    return rows


def logprobs(rows: Tensor) -> Tensor:
    return token_logprobs(rows, TOKENS)


def head_logprobs(rows: Tensor) -> Tensor:
    """Of a head whose weights are the logits, of hidden states that choose one of them."""
    return linear_logprobs(torch.eye(ROWS), rows.t(), TOKENS, 1.0, HeadTiles())[0]


def head_entropies(rows: Tensor) -> Tensor:
    return linear_logprobs(torch.eye(ROWS), rows.t(), TOKENS, 1.0, HeadTiles(kept=0), entropy=True)[1]


def plain_logprobs(rows: Tensor) -> Tensor:
    return rows.log_softmax(1).gather(1, TOKENS[:, None])[:, 0]


def plain_entropies(rows: Tensor) -> Tensor:
    return -(rows.softmax(1) * rows.log_softmax(1)).sum(1)


@pytest.mark.parametrize("peak", [0.0, 16.0, 24.0])
@pytest.mark.parametrize(
    "ours, plain",
    [
        (logprobs, plain_logprobs),
        (entropies, plain_entropies),
        (head_logprobs, plain_logprobs),
        (head_entropies, plain_entropies),
    ],
)
def test_small_probabilities_are_not_lost_beside_a_large_one(
    ours: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor], peak: float
) -> None:
    """Together the others have a share of 0.01 at a peak of 16, and each less than the last digit of the largest."""
    rows, wide = logits(peak).requires_grad_(), logits(peak).double().requires_grad_()
    result, expected = ours(rows), plain(wide)
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6)
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0])
    [gradient] = torch.autograd.grad((result * weights).sum(), rows)
    [exact] = torch.autograd.grad((expected * weights.double()).sum(), wide)
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-4, atol=1e-6)
