"""Log-probabilities among the tokens that a truncated sampler keeps, and divergences from a teacher's likeliest tokens,
written from their formulas.

    S  the tokens that are kept at a place: the `k` likeliest; of these the likeliest that together have the share
       `top_p`; of these those at least `min_p` times as likely as the likeliest
"""

from __future__ import annotations

import torch
from formulas import Model, Row, Step, begin, flat, mean, token_mean
from torch import Tensor
from vocabulary_formulas import distributions, frozen_distributions


def kept(p: Tensor, top_k: int, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    """S, the likeliest token first; of equals the one with the smaller number is."""
    order = sorted(range(len(p)), key=lambda v: (-p[v].item(), v))[:top_k]
    order = [v for v in order if p[v].item() >= min_p * p[order[0]].item()]
    whole, so_far, chosen = sum(p[v].item() for v in order), 0.0, []
    for v in order:
        if so_far < top_p * whole:
            chosen.append(v)
        so_far += p[v].item()
    return chosen


def written(row: Row) -> list[int]:
    return [token for token, is_written in zip(row.tokens, row.written, strict=True) if is_written]


def within(q: Tensor, token: int, tokens: list[int]) -> Tensor:
    """log q(token) - log sum of q over S"""
    return torch.log(q[token]) - torch.log(sum(q[v] for v in tokens))  # type: ignore[arg-type]


def truncated(
    actor: Model, teacher: Model, rows: list[Row], *, temperature: float, top_k: int, top_p: float, lr: float
) -> Step:
    """One update of -log q; one of the mean over tokens of -exp(log q_S(y) - log mu_S(y)), with the sampler's S, and of
    the sum of p log(p / q) over the teacher's four likeliest tokens."""
    begin(actor)
    step = Step()
    sampler = [frozen_distributions(actor, row, temperature) for row in rows]
    seen = [[kept(mu, top_k, top_p) for mu in row] for row in sampler]
    old = [
        [within(mu, y, s).item() for mu, y, s in zip(mus, written(row), tokens, strict=True)]
        for row, mus, tokens in zip(rows, sampler, seen, strict=True)
    ]
    masses = [
        [sum(mu[v].item() for v in s) for mu, s in zip(mus, tokens, strict=True)]
        for mus, tokens in zip(sampler, seen, strict=True)
    ]
    first = [
        [-torch.log(q[y]) for q, y in zip(distributions(actor, row, temperature), written(row), strict=True)]
        for row in rows
    ]
    step.trained("actor", actor.train(token_mean(first), lr))
    terms: list[list[Tensor]] = []
    for row, tokens, before in zip(rows, seen, old, strict=True):
        qs, ps = distributions(actor, row, temperature), frozen_distributions(teacher, row, temperature)
        terms.append([])
        for q, p, y, s, mu in zip(qs, ps, written(row), tokens, before, strict=True):
            pull = sum(p[v] * torch.log(p[v] / q[v]) for v in kept(p, 4))
            terms[-1].append(-torch.exp(within(q, y, s) - mu) + pull)
    step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {"kept": mean(flat(masses)), "old": mean(flat(old))}
    return step
