"""Policy gradients whose baseline is the group of answers to one prompt, or the batch, written from their formulas.

As in `formulas.py`, every sum is a loop over rows and tokens, and every log-probability is computed here.

    R_i  score of an answer     L_i  its tokens     mu, old, lp  log-probability when sampled, before the step, now
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

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
    group_advantages,
    k1,
    mean,
    rewards_to_come,
    sample,
    sequence_mean,
    slices,
    std,
    token_mean,
    whiten,
)
from torch import Tensor

Terms = list[list[Tensor]]
"""The loss of each token of each row."""


def centered(scores: list[float]) -> list[float]:
    """R_i - mean of the group."""
    return [s - mean(scores) for s in scores]


# One update per mini-batch on a loss of each token


def clip_loss(lps: list[Tensor], row: Row, a: float, low: float, high: float) -> list[Tensor]:
    """-min(r A, clip(r) A) at each token, r = exp(lp - mu)."""
    return [-clipped(torch.exp(lp - mu), a, low, high) for lp, mu in zip(lps, row.mu, strict=True)]


usual_clip = partial(clip_loss, low=0.2, high=0.2)


def group_policy(
    actor: Model,
    groups: list[Group],
    advantages: list[list[float]],
    losses: Callable[[list[Tensor], Row, float], list[Tensor]],
    reduce: Callable[[Terms], Tensor | float],
    *,
    lr: float,
    clip_norm: float,
    parts: int,
) -> Step:
    """A step of `dr_grpo.rlf` and of those that use it: slices of the prompts, an update of each."""
    step, ratios = Step(), list[float]()
    for part in slices(len(groups), parts):
        terms: Terms = []
        for g in part:
            for row, a in zip(groups[g], advantages[g], strict=True):
                lps = actor.logprobs(row)
                terms.append(losses(lps, row, a))
                ratios += [math.exp(lp.item() - mu) for lp, mu in zip(lps, row.mu, strict=True)]
        step.trained("actor", actor.train(reduce(terms), lr, clip_norm))
    rows = [row for group in groups for row in group]
    step.metrics = {
        "reward": mean([row.score for row in rows]),
        "length": mean([row.length for row in rows]),
        "ratio": mean(ratios),
    }
    step.values = {"adv": flat(advantages)}
    return step


def scores_of(groups: list[Group]) -> list[list[float]]:
    return [[row.score for row in group] for group in groups]


def rows_in(groups: list[Group], part: range) -> range:
    """The places of the rows of a slice of the groups, among those of all groups."""
    start = sum(map(len, groups[: part.start]))
    return range(start, start + sum(map(len, groups[part.start : part.stop])))


def dr_grpo(actor: Model, groups: list[Group], *, limit: int, lr: float, parts: int) -> Step:
    """arXiv 2503.20783: A = R - mean; (1/B) sum over answers of (1/limit) sum over tokens."""
    begin(actor)
    sample(actor, groups)
    return group_policy(
        actor,
        groups,
        [centered(scores) for scores in scores_of(groups)],
        usual_clip,
        lambda terms: sum(sum(row) for row in terms) / limit / len(terms),
        lr=lr,
        clip_norm=1.0,
        parts=parts,
    )


def gspo(actor: Model, groups: list[Group], *, low: float, high: float, lr: float, parts: int) -> Step:
    """arXiv 2507.18071, equations 5 to 7: s_i = exp((1/L_i) sum of lp - mu), mean over answers of -min(s A, clip(s) A).

    An answer without tokens has the ratio 1."""
    begin(actor)
    sample(actor, groups)
    ratios: list[float] = []

    def losses(lps: list[Tensor], row: Row, a: float) -> list[Tensor]:
        gaps = [lp - mu for lp, mu in zip(lps, row.mu, strict=True)]
        ratio = torch.exp(sum(gaps) / len(gaps)) if gaps else torch.ones(())
        ratios.append(ratio.item())
        return [-clipped(ratio, a, low, high)]

    adv = [group_advantages(scores) for scores in scores_of(groups)]
    step = group_policy(actor, groups, adv, losses, token_mean, lr=lr, clip_norm=1.0, parts=parts)
    step.metrics["ratio"] = mean(ratios)
    return step


def cispo(actor: Model, groups: list[Group], *, cap: float, lr: float, parts: int) -> Step:
    """arXiv 2506.13585, equation 4: -sg(min(r, cap)) A lp, mean over tokens."""
    begin(actor)
    sample(actor, groups)

    def losses(lps: list[Tensor], row: Row, a: float) -> list[Tensor]:
        return [-min(math.exp(lp.item() - mu), cap) * a * lp for lp, mu in zip(lps, row.mu, strict=True)]

    adv = [group_advantages(scores) for scores in scores_of(groups)]
    return group_policy(actor, groups, adv, losses, token_mean, lr=lr, clip_norm=1.0, parts=parts)


def sapo(actor: Model, groups: list[Group], *, gain: float, harm: float, lr: float, parts: int) -> Step:
    """arXiv 2511.20347: f(r) = (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A; mean over answers of means."""
    begin(actor)
    sample(actor, groups)

    def losses(lps: list[Tensor], row: Row, a: float) -> list[Tensor]:
        tau = gain if a > 0 else harm
        ratios = [torch.exp(lp - mu) for lp, mu in zip(lps, row.mu, strict=True)]
        return [-4 / tau / (1 + torch.exp(-tau * (ratio - 1))) * a for ratio in ratios]

    adv = [group_advantages(scores) for scores in scores_of(groups)]
    return group_policy(actor, groups, adv, losses, sequence_mean, lr=lr, clip_norm=1.0, parts=parts)


def plain(lps: list[Tensor], row: Row, a: float) -> list[Tensor]:
    """-A lp."""
    return [-a * lp for lp in lps]


def opo(actor: Model, groups: list[Group], *, lr: float) -> Step:
    """arXiv 2505.23585, equation 9: the baseline is sum L R / sum L of the group; mean over tokens of -A lp."""
    begin(actor)
    sample(actor, groups)
    adv = []
    for group in groups:
        total = sum(row.length for row in group)
        baseline = sum(row.length * row.score for row in group) / max(total, 1)
        adv.append([row.score - baseline for row in group])
    return group_policy(actor, groups, adv, plain, token_mean, lr=lr, clip_norm=1.0, parts=1)


def gpg(actor: Model, groups: list[Group], *, lr: float) -> Step:
    """arXiv 2504.02546: A = alpha (R - mean), alpha = B / (B - M) with M groups whose rewards are all equal."""
    begin(actor)
    sample(actor, groups)
    varied = sum(std(scores) > 0 for scores in scores_of(groups))
    alpha = len(groups) / varied if varied else 0.0
    adv = [[alpha * a for a in centered(scores)] for scores in scores_of(groups)]
    return group_policy(actor, groups, adv, plain, token_mean, lr=lr, clip_norm=1.0, parts=1)


def gfpo(actor: Model, groups: list[Group], *, kept: int, lr: float, parts: int) -> Step:
    """arXiv 2508.09726, algorithm 1: the `kept` shortest answers, mean and std over them, A = 0 for the rest."""
    begin(actor)
    sample(actor, groups)
    adv = []
    for group in groups:
        shortest = sorted(range(len(group)), key=lambda i: (group[i].length, i))[:kept]
        standing = dict(zip(shortest, group_advantages([group[i].score for i in shortest]), strict=True))
        adv.append([standing.get(i, 0.0) for i in range(len(group))])
    return group_policy(actor, groups, adv, usual_clip, token_mean, lr=lr, clip_norm=1.0, parts=parts)


def gdpo(actor: Model, groups: list[Group], formed: list[list[bool]], *, weight: float, lr: float, parts: int) -> Step:
    """arXiv 2601.05242: each reward normalized in its group, their weighted sum normalized over the batch."""
    begin(actor)
    sample(actor, groups)
    summed = [
        [
            a + weight * b
            for a, b in zip(
                group_advantages([row.score for row in group], 1e-4),
                group_advantages([float(flag) for flag in flags], 1e-4),
                strict=True,
            )
        ]
        for group, flags in zip(groups, formed, strict=True)
    ]
    step = group_policy(actor, groups, whiten(summed), usual_clip, sequence_mean, lr=lr, clip_norm=1.0, parts=parts)
    step.metrics["formed"] = mean([float(flag) for flags in formed for flag in flags])
    return step


# Those with steps of their own


def rloo(actor: Model, ref: Model, reward: Model, groups: list[Group], *, beta: float, lr: float) -> Step:
    """arXiv 2402.14740, equation 9: the mean of the other answers is the baseline; sums over tokens."""
    begin(actor)
    sample(actor, groups)
    step, adv, kls, loss = Step(), list[list[float]](), list[float](), torch.zeros(())
    score = [[frozen_score(reward, row) for row in group] for group in groups]
    for group, scores in zip(groups, score, strict=True):
        kl = [sum(map(k1, row.mu, frozen_logprobs(ref, row))) for row in group]
        r = [s - beta * d for s, d in zip(scores, kl, strict=True)]
        others = [mean(r[:i] + r[i + 1 :]) if len(r) > 1 else r[i] for i in range(len(r))]
        adv.append([a - b for a, b in zip(r, others, strict=True)])
        kls += kl
    for row, a in zip([row for group in groups for row in group], flat(adv), strict=True):
        for lp in actor.logprobs(row):
            loss = loss - lp * a
    step.trained("actor", actor.train(loss / len(kls), lr))
    step.metrics = {"reward": mean(flat(score)), "kl": mean(kls)}
    step.values = {"adv": flat(adv)}
    return step


def reinforce_pp(
    actor: Model, ref: Model, reward: Model, rows: list[Row], *, beta: float, lr: float, parts: int
) -> Step:
    """arXiv 2501.03262: r_t = score at the end - beta (mu - ref); rewards to come, whitened over the batch's tokens."""
    begin(actor)
    sample(actor, [rows])
    step = Step()
    score = [frozen_score(reward, row) for row in rows]
    kls = [[k1(mu, q) for mu, q in zip(row.mu, frozen_logprobs(ref, row), strict=True)] for row in rows]
    gains = [
        rewards_to_come([end - beta * kl for end, kl in zip(at_end(s, row.length), kl_row, strict=True)], 1.0)
        for row, s, kl_row in zip(rows, score, kls, strict=True)
    ]
    adv = whiten(gains)
    for part in slices(len(rows), parts):
        terms = [
            [
                -clipped(torch.exp(lp - mu), a, 0.2, 0.2)
                for lp, mu, a in zip(actor.logprobs(rows[i]), rows[i].mu, adv[i], strict=True)
            ]
            for i in part
        ]
        step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {"reward": mean(score), "kl": mean(flat(kls))}
    step.values = {"adv": flat(adv)}
    return step


def reinforce_pp_baseline(actor: Model, ref: Model, groups: list[Group], *, beta: float, lr: float, parts: int) -> Step:
    """arXiv 2501.03262, section 3.3: R - mean at every token, whitened over the batch's tokens; beta (lp - ref)^2 / 2
    in the loss."""
    begin(actor)
    sample(actor, groups)
    step, kls = Step(), list[float]()
    rows = [row for group in groups for row in group]
    adv = whiten([[a] * row.length for row, a in zip(rows, flat([*map(centered, scores_of(groups))]), strict=True)])
    ref_logp = [frozen_logprobs(ref, row) for row in rows]
    for part in slices(len(groups), parts):
        terms: Terms = []
        for i in rows_in(groups, part):
            terms.append([])
            for lp, mu, a, q in zip(actor.logprobs(rows[i]), rows[i].mu, adv[i], ref_logp[i], strict=True):
                kl = (lp - q) ** 2 / 2
                terms[-1].append(-clipped(torch.exp(lp - mu), a, 0.2, 0.2) + beta * kl)
                kls.append(kl.item())
        step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {"reward": mean([row.score for row in rows]), "kl": mean(kls)}
    step.values = {"adv": flat(adv)}
    return step


def raft(actor: Model, reward: Model, groups: list[Group], *, lr: float, parts: int) -> Step:
    """arXiv 2304.06767: cross entropy of the best answer to each prompt, mean over tokens."""
    begin(actor)
    step, losses = Step(), list[float]()
    score = [[frozen_score(reward, row) for row in group] for group in groups]
    best = [group[scores.index(max(scores))] for group, scores in zip(groups, score, strict=True)]
    for part in slices(len(best), parts):
        terms = [[-lp for lp in actor.logprobs(best[g])] for g in part]
        losses += [x.item() for row in terms for x in row]
        step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {"reward": mean(flat(score)), "best": mean([max(scores) for scores in score]), "loss": mean(losses)}
    return step


def corrected(
    actor: Model, groups: list[Group], weigh: Callable[[list[float]], list[float]], *, lag: int, lr: float, parts: int
) -> Step:
    """GRPO whose loss at the tokens of an answer is weighted by `weigh` of their exp(old - mu), old the log-probability
    before the step.

    Samples are of the weights of `lag` steps before: with one process there is nothing else by which both differ.
    """
    begin(actor)
    sample(actor, groups, max(0, len(actor.versions) - 1 - lag))
    step = Step()
    rows = [row for group in groups for row in group]
    old = [frozen_logprobs(actor, row) for row in rows]
    drift = [
        [math.exp(o - mu) for o, mu in zip(olds, row.mu, strict=True)] for row, olds in zip(rows, old, strict=True)
    ]
    weight = [*map(weigh, drift)]
    adv = flat([group_advantages(scores) for scores in scores_of(groups)])
    for part in slices(len(groups), parts):
        terms = [
            [
                -w * clipped(torch.exp(lp - o), adv[i], 0.2, 0.2)
                for lp, o, w in zip(actor.logprobs(rows[i]), old[i], weight[i], strict=True)
            ]
            for i in rows_in(groups, part)
        ]
        step.trained("actor", actor.train(token_mean(terms), lr, 1.0))
    step.metrics = {
        "reward": mean([row.score for row in rows]),
        "drift": mean(flat(drift)),
        "weight": mean(flat(weight)),
    }
    step.values = {"adv": adv, "weight": flat(weight)}
    return step


def mis(actor: Model, groups: list[Group], *, least: float, most: float, lag: int, lr: float, parts: int) -> Step:
    """Liu et al. 2025, section 4.2: rho = the product of an answer's ratios, and w = rho where it is in the bounds, else
    0, at each of its tokens. An answer without tokens has the ratio 1."""
    weight: list[float] = []

    def weigh(ratios: list[float]) -> list[float]:
        rho = math.prod(ratios)
        weight.append(rho if least <= rho <= most else 0.0)
        return [weight[-1]] * len(ratios)

    step = corrected(actor, groups, weigh, lag=lag, lr=lr, parts=parts)
    step.metrics |= {"weight": mean(weight), "kept": mean([float(w > 0) for w in weight])}
    step.values["weight"] = weight
    return step


def tba(actor: Model, ref: Model, groups: list[Group], *, lag: int, beta: float, lr: float, parts: int) -> Step:
    """arXiv 2503.18929, equation 5: (log Z + lp - ref - R / beta)^2 over answers, log Z = mean over the group of
    ref + R / beta - lp, a constant; sampled by the weights of `lag` steps before."""
    begin(actor)
    step = Step()
    logz: list[float] = []
    for part in slices(len(groups), parts):
        terms: list[Tensor] = []
        for g in part:
            goals = [sum(frozen_logprobs(ref, row)) + row.score / beta for row in groups[g]]
            lps = [sum(actor.logprobs(row), torch.zeros(())) for row in groups[g]]
            logz.append(mean([goal - lp.item() for goal, lp in zip(goals, lps, strict=True)]))
            terms += [(logz[-1] + lp - goal) ** 2 for goal, lp in zip(goals, lps, strict=True)]
        step.trained("actor", actor.train(sum(terms) / len(terms), lr))
    rows = [row for group in groups for row in group]
    step.metrics = {
        "reward": mean([row.score for row in rows]),
        "logz": mean(logz),
        "age": float(min(len(actor.versions) - 1, lag)),
    }
    return step


def prime(
    actor: Model,
    ref: Model,
    prm: Model,
    groups: list[Group],
    *,
    eps: float,
    beta: float,
    lr: float,
    lr_prm: float,
    parts: int,
) -> Step:
    """arXiv 2502.01456, equations 3 to 6: groups with a share of right answers in [0.2, 0.8]; the reward model's
    q = beta (log prm - log ref) is trained by the cross-entropy of sigmoid(sum q), then gives a reward to each token;
    A_t = sum_{s >= t} (q_s - mean of the other answers' mean q) + R - mean of the other answers' R."""
    begin(actor)
    sample(actor, groups)
    step = Step()
    groups = [group for group in groups if 0.2 <= mean([row.score for row in group]) <= 0.8]
    rows = [row for group in groups for row in group]
    known = {id(row): frozen_logprobs(ref, row) for row in rows}
    guesses = [beta * (sum(prm.logprobs(row), torch.zeros(())) - sum(known[id(row)])) for row in rows]
    entropy = [
        -(row.score * torch.log(torch.sigmoid(x)) + (1 - row.score) * torch.log(torch.sigmoid(-x)))
        for row, x in zip(rows, guesses, strict=True)
    ]
    step.trained("prm", prm.train(sum(entropy) / len(entropy), lr_prm))
    process = {
        id(row): [beta * (p - q) for p, q in zip(frozen_logprobs(prm, row), known[id(row)], strict=True)]
        for row in rows
    }
    adv: dict[int, list[float]] = {}
    for group in groups:
        whole, scores = [mean(process[id(row)]) for row in group], [row.score for row in group]
        for i, row in enumerate(group):
            base, others = mean(whole[:i] + whole[i + 1 :]), mean(scores[:i] + scores[i + 1 :])
            to_come = rewards_to_come([q - base for q in process[id(row)]], 1.0)
            adv[id(row)] = [gain + row.score - others for gain in to_come]
    for part in slices(len(groups), parts):
        terms = [
            [
                -clipped(torch.exp(lp - mu), a, eps, eps)
                for lp, mu, a in zip(actor.logprobs(row), row.mu, adv[id(row)], strict=True)
            ]
            for g in part
            for row in groups[g]
        ]
        step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {
        "reward": mean([mean([row.score for row in group]) for group in groups]),
        "accuracy": mean([float((x > 0).item() == (row.score > 0.5)) for row, x in zip(rows, guesses, strict=True)]),
        "process": mean(flat([process[id(row)] for row in rows])),
    }
    return step


def spo(
    actor: Model,
    rows: list[Row],
    keys: list[str],
    tracker: dict[str, tuple[float, float]],
    *,
    stays: float,
    low: float,
    high: float,
    lr: float,
    parts: int,
) -> Step:
    """arXiv 2509.13232: v = a / (a + b) of a prompt's Beta distribution (8 answers, half of them right, at first);
    A = R - v, whitened over the batch; then a := stays a + R, b := stays b + 1 - R. One answer to each prompt.

    keys: the prompts, whose a and b are in `tracker`."""
    begin(actor)
    sample(actor, [[row] for row in rows])
    known = []
    for key in keys:
        a, b = tracker.get(key, (4.0, 4.0))
        known.append(a / (a + b))
    [adv] = whiten([[row.score - v for row, v in zip(rows, known, strict=True)]])
    for key, row in zip(keys, rows, strict=True):
        a, b = tracker.get(key, (4.0, 4.0))
        tracker[key] = stays * a + row.score, stays * b + 1 - row.score
    step = group_policy(
        actor,
        [[row] for row in rows],
        [[a] for a in adv],
        partial(clip_loss, low=low, high=high),
        token_mean,
        lr=lr,
        clip_norm=1.0,
        parts=parts,
    )
    del step.metrics["length"]
    step.metrics["known"] = mean(known)
    return step
