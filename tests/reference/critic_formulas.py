"""Algorithms with a critic beside PPO, written from their formulas, as in `formulas.py`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from formulas import (
    Group,
    Model,
    Row,
    Step,
    at_end,
    begin,
    clipped,
    flat,
    frozen_logprobs,
    frozen_score,
    frozen_values,
    gae,
    k1,
    k3,
    mean,
    rewards_to_come,
    sample,
    slices,
    token_mean,
    whiten,
)
from torch import Tensor


@dataclass
class PPO:
    """Constants of PPO, and what its variants add: a KL weight that follows a target, updates that end early."""

    gamma: float
    lam: float
    eps: float
    eps_v: float
    beta: float
    lr: float
    lr_v: float
    parts: int
    epochs: int
    target_kl: float = 0.0
    horizon: float = 0.0
    most_kl: float = float("inf")
    far: float = 0.0
    updates: int = 0


def ppo(known: PPO, actor: Model, critic: Model, ref: Model, reward: Model, rows: list[Row]) -> Step:
    """arXiv 2203.02155. With `horizon` beta grows by the factor 1 + clip(KL / target - 1, -0.2, 0.2) n / horizon (arXiv
    1909.08593, section 2.2), for the next step. With `most_kl` a step's updates end before the first one of the policy
    at whose mini-batch the mean of k3(old, now) is above it (Spinning Up; Stable-Baselines3, `target_kl`)."""
    begin(actor, critic)
    sample(actor, [rows])
    step, known.updates = Step(), 0
    ref_logp = [frozen_logprobs(ref, row) for row in rows]
    value = [frozen_values(critic, row) for row in rows]
    score = [frozen_score(reward, row) for row in rows]
    kls = [[k1(mu, q) for mu, q in zip(row.mu, logp, strict=True)] for row, logp in zip(rows, ref_logp, strict=True)]
    adv, target = [], []
    for row, kl, v, s in zip(rows, kls, value, score, strict=True):
        r = [end - known.beta * d for end, d in zip(at_end(s, row.length), kl, strict=True)]
        adv.append(gae(r, v, known.gamma, known.lam))
        target.append([a + b for a, b in zip(adv[-1], v, strict=True)])
    adv_w = whiten(adv)
    for part in [part for _ in range(known.epochs) for part in slices(len(rows), known.parts)]:
        errors: list[list[Tensor]] = []
        for i in part:
            errors.append([])
            for v, v_old, wanted in zip(critic.values(rows[i]), value[i], target[i], strict=True):
                v_cut = v.clamp(v_old - known.eps_v, v_old + known.eps_v)
                errors[-1].append(torch.maximum((v - wanted) ** 2, (v_cut - wanted) ** 2))
        step.trained("critic", critic.train(0.5 * token_mean(errors), known.lr_v))
        now = [frozen_logprobs(actor, rows[i]) for i in part]
        known.far = mean(
            [k3(mu, lp) for i, lps in zip(part, now, strict=True) for mu, lp in zip(rows[i].mu, lps, strict=True)]
        )
        if known.far > known.most_kl:
            break
        known.updates += 1
        terms: list[list[Tensor]] = []
        for i in part:
            terms.append([])
            for lp, mu, a in zip(actor.logprobs(rows[i]), rows[i].mu, adv_w[i], strict=True):
                terms[-1].append(-clipped(torch.exp(lp - mu), a, known.eps, known.eps))
        step.trained("actor", actor.train(token_mean(terms), known.lr))
    step.metrics = {
        "reward": mean(score),
        "value_error": mean([(v - t) ** 2 for v, t in zip(flat(value), flat(target), strict=True)]),
    }
    if known.horizon:
        whole = mean([sum(kl) for kl in kls])
        known.beta *= 1 + max(-0.2, min(0.2, whole / known.target_kl - 1)) * len(rows) / known.horizon
        step.metrics |= {"kl": whole, "beta": known.beta}
    if known.most_kl < float("inf"):
        step.metrics |= {"kl": known.far, "updates": float(known.updates)}
    return step


def critic_alone(actor: Model, critic: Model, rows: list[Row], *, lr_v: float) -> Step:
    """arXiv 2504.05118, section 4.1: the critic is trained on returns of the first policy."""
    begin(actor, critic)
    step = Step()
    gains = [rewards_to_come(at_end(row.score, row.length), 1.0) for row in rows]

    def errors() -> list[list[Tensor]]:
        return [
            [(v - g) ** 2 for v, g in zip(critic.values(row), gain, strict=True)]
            for row, gain in zip(rows, gains, strict=True)
        ]

    step.trained("critic", critic.train(token_mean(errors()), lr_v))
    step.metrics = {"first_error": float(token_mean(errors()))}
    return step


def vapo(
    actor: Model,
    critic: Model,
    groups: list[Group],
    *,
    low: float,
    high: float,
    alpha: float,
    mu: float,
    lr: float,
    lr_v: float,
    parts: int,
) -> Step:
    """arXiv 2504.05118: GAE with lam 1 for the critic and 1 - 1 / (alpha L) for the policy, clip-higher, means over
    tokens, and mu times the mean over tokens of right answers of -lp."""
    begin(actor, critic)
    sample(actor, groups)
    step = Step()
    rows = [row for group in groups for row in group]
    value = [frozen_values(critic, row) for row in rows]
    reward = [at_end(row.score, row.length) for row in rows]
    target = [rewards_to_come(r, 1.0) for r in reward]
    adv = whiten(
        [
            gae(r, v, 1.0, max(0.0, 1 - 1 / (alpha * max(row.length, 1))))
            for row, r, v in zip(rows, reward, value, strict=True)
        ]
    )
    at = {id(row): place for place, row in enumerate(rows)}
    for part in slices(len(groups), parts):
        chosen = [at[id(row)] for g in part for row in groups[g]]
        errors = [[(v - t) ** 2 for v, t in zip(critic.values(rows[i]), target[i], strict=True)] for i in chosen]
        step.trained("critic", critic.train(token_mean(errors), lr_v))
        lps = {i: actor.logprobs(rows[i]) for i in chosen}
        terms = [
            [-clipped(torch.exp(lp - old), a, low, high) for lp, old, a in zip(lps[i], rows[i].mu, adv[i], strict=True)]
            for i in chosen
        ]
        right = token_mean([[-lp for lp in lps[i]] for i in chosen if rows[i].score > 0.5])
        step.trained("actor", actor.train(token_mean(terms) + mu * right, lr))
    step.metrics = {
        "reward": mean([row.score for row in rows]),
        "value_error": mean([(v - t) ** 2 for v, t in zip(flat(value), flat(target), strict=True)]),
    }
    step.values = {"adv": flat(adv), "target": flat(target)}
    return step
