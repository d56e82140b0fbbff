"""Losses of whole distributions over the vocabulary, written from their formulas.

As in `formulas.py`, every sum is a loop over rows and tokens, and every probability is computed here.

    p  teacher's distribution at a token     q  student's     m = beta p + (1 - beta) q
"""

from __future__ import annotations

import math

import torch
from formulas import Group, Model, Row, Step, begin, flat, mean, numbers, sample, token_mean
from torch import Tensor


def distributions(model: Model, row: Row, temperature: float = 1.0) -> list[Tensor]:
    """p(. | tokens before it) of each written token."""
    if not any(row.written):
        return []
    table = (model.net.lm_head(model.hidden(row)) / temperature).softmax(-1)  # type: ignore[operator]
    return [table[t - 1] for t in range(len(row.tokens)) if row.written[t]]


@torch.no_grad()
def frozen_distributions(model: Model, row: Row, temperature: float = 1.0) -> list[Tensor]:
    return distributions(model, row, temperature)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q)"""
    return sum(p[v] * torch.log(p[v] / q[v]) for v in range(len(p)))  # type: ignore[return-value]


def jsd(p: Tensor, q: Tensor, beta: float) -> Tensor:
    """beta KL(p || m) + (1 - beta) KL(q || m)"""
    m = beta * p + (1 - beta) * q
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


def gkd(actor: Model, teacher: Model, rows: list[Row], *, beta: float, lr: float) -> Step:
    """arXiv 2306.13649: the mean over all tokens that the student wrote of the generalized JSD."""
    begin(actor)
    step = Step()
    terms = [
        [jsd(p, q, beta) for p, q in zip(frozen_distributions(teacher, row), distributions(actor, row), strict=True)]
        for row in rows
    ]
    found = [numbers(row) for row in terms]
    step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {"jsd": mean(flat(found)), "length": mean([row.length for row in rows])}
    return step


def many_sums(actor: Model, teacher: Model, rows: list[Row], *, temperature: float, lr: float) -> Step:
    """Entropy, both KLs, squares and roots of distributions at one temperature, each with its gradient."""
    begin(actor)
    step = Step()
    terms: list[list[Tensor]] = []
    entropies: list[float] = []
    for row in rows:
        ps = frozen_distributions(teacher, row, temperature)
        qs = distributions(actor, row, temperature)
        terms.append([])
        for p, q in zip(ps, qs, strict=True):
            entropy = -sum(x * torch.log(x) for x in q)
            squares = sum(x * x for x in q)
            overlap = sum(torch.sqrt(a * b) for a, b in zip(p, q, strict=True))
            terms[-1].append(kl(p, q) + 0.5 * kl(q, p) - 0.1 * entropy + 0.3 * squares - 0.2 * overlap)
            entropies.append(entropy.item())
    step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {"entropy": mean(entropies)}
    return step


def beside(actor: Model, teacher: Model, groups: list[Group], *, last: float, temperature: float, lr: float) -> Step:
    """Numbers of a row, of a token and of the step beside probabilities, summed up, averaged, the largest and the
    smallest over the vocabulary: of rows i with tokens t

        clip(A_i) q log(q / p) + log p(y_t) q^2      a sum      q - last p            the largest
        mu(y_t) q log q                              a mean     A_i q p               the smallest
    """
    begin(actor)
    step = Step()
    terms: list[list[Tensor]] = []
    pulls, sures, levels = list[float](), list[float](), list[float]()
    for group in groups:
        ps, qs = (
            [of(model, row, temperature) for row in group]
            for of, model in ((frozen_distributions, teacher), (distributions, actor))
        )
        tokens = [
            [token for token, is_written in zip(row.tokens, row.written, strict=True) if is_written] for row in group
        ]
        told = [[math.log(p[y]) for p, y in zip(*pair, strict=True)] for pair in zip(ps, tokens, strict=True)]
        level = sum(flat(told)) / len(flat(told))
        advantages = [sum(one) / len(one) - level for one in told]
        for i, adv in enumerate(advantages):
            terms.append([])
            for t, (p, q) in enumerate(zip(ps[i], qs[i], strict=True)):
                clipped, size, mu = min(max(adv, -0.5), 0.5), range(len(p)), q[tokens[i][t]].item()
                pull = sum(clipped * q[v] * torch.log(q[v] / p[v]) + told[i][t] * q[v] ** 2 for v in size)
                corner = torch.stack([q[v] - last * p[v] for v in size]).max()
                corner = corner + torch.stack([adv * q[v] * p[v] for v in size]).min()
                terms[-1].append(pull + corner + sum(mu * q[v] * torch.log(q[v]) for v in size) / len(p))
                pulls.append(pull.item())
                sures.append(max(p.tolist()))
                levels.append(mean(advantages) * sum(x * math.log(x) for x in p.tolist()))
    step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {"sure": mean(sures), "pull": mean(pulls), "level": mean(levels)}
    return step


def hinted(actor: Model, teacher: Model, rows: list[Row], *, hint: list[int], lr: float) -> Step:
    """KL(p || q), where p is the teacher's distribution behind a prompt that begins with a hint."""
    begin(actor)
    step = Step()
    terms: list[list[Tensor]] = []
    told: list[float] = []
    for row in rows:
        longer = Row([*hint, *row.tokens], [*(False for _ in hint), *row.written])
        ps, qs = frozen_distributions(teacher, longer), distributions(actor, row)
        told += [
            (p - plain).abs().sum().item() for p, plain in zip(ps, frozen_distributions(teacher, row), strict=True)
        ]
        terms.append([kl(p, q) for p, q in zip(ps, qs, strict=True)])
    found = [numbers(row) for row in terms]
    step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {"gap": 0.0, "told": mean(told), "pull": mean(flat(found))}
    return step


def otb(actor: Model, groups: list[Group], *, lr: float) -> Step:
    """The optimal token baseline: B_t = sum_i G_i W_it / sum_i W_it over the answers to one prompt that have a token t,
    where W_it is the sum over tokens j up to t of |e_y - q_j|^2 = 1 - 2 q_j(y_j) + sum_v q_j(v)^2; then the mean over
    all tokens of -(G_i - B_t) log q(y_t)."""
    begin(actor)
    sample(actor, groups)
    step = Step()
    energies: list[list[list[float]]] = []
    for group in groups:
        energies.append([])
        for row in group:
            total, own = 0.0, []
            written = [token for token, is_written in zip(row.tokens, row.written, strict=True) if is_written]
            for token, q in zip(written, frozen_distributions(actor, row), strict=True):
                total += sum(((1.0 if v == token else 0.0) - x.item()) ** 2 for v, x in enumerate(q))
                own.append(total)
            energies[-1].append(own)
    terms: list[list[Tensor]] = []
    advantages = []
    for group, weights in zip(groups, energies, strict=True):
        for row in group:
            terms.append([])
            for t, lp in enumerate(actor.logprobs(row)):
                there = [(other.score, w[t]) for other, w in zip(group, weights, strict=True) if other.length > t]
                baseline = sum(g * w for g, w in there) / sum(w for _, w in there)
                advantages.append(row.score - baseline)
                terms[-1].append(-lp * (row.score - baseline))
    step.trained("actor", actor.train(token_mean(terms), lr))
    step.values = {"adv": advantages}
    step.metrics = {"reward": mean([row.score for group in groups for row in group])}
    return step
