"""Log-probabilities among the tokens from which older weights sampled, written from their formulas."""

from __future__ import annotations

from copy import deepcopy

import torch
from formulas import Model, Row, Step, begin, flat, mean, token_mean
from likeliest_formulas import kept, within, written
from torch import Tensor
from vocabulary_formulas import distributions, frozen_distributions


def lagged(
    actor: Model, sampler: Model, rows: list[Row], *, temperature: float, top_k: int, top_p: float, lr: float
) -> tuple[Step, int]:
    """One update of the mean over tokens of -q_S(y) / mu_S(y) with the sampler's S; and at how many tokens S is not
    what `actor` itself would be sampled from."""
    begin(actor)
    step, masses, terms, others = Step(), list[list[float]](), list[list[Tensor]](), 0
    for row in rows:
        mus, qs = frozen_distributions(sampler, row, temperature), distributions(actor, row, temperature)
        sets = [kept(mu, top_k, top_p) for mu in mus]
        others += sum({*s} != {*kept(q.detach(), top_k, top_p)} for q, s in zip(qs, sets, strict=True))
        masses.append([sum(mu[v].item() for v in s) for mu, s in zip(mus, sets, strict=True)])
        terms.append(
            [
                -torch.exp(within(q, y, s) - within(mu, y, s))
                for q, mu, y, s in zip(qs, mus, written(row), sets, strict=True)
            ]
        )
    step.metrics = {"kept": mean(flat(masses)), "ratio": -mean([t.item() for t in flat(terms)])}
    step.trained("actor", actor.train(token_mean(terms), lr))
    return step, others


def as_it_is(model: Model) -> Model:
    """A copy with the present weights."""
    return Model(deepcopy(model.net))
