"""Losses on pairs of answers, written from their formulas, as in `formulas.py`.

lw, ll  log-probabilities of the tokens of the preferred answer and of the other one
"""

from __future__ import annotations

import math

import torch
from formulas import Group, Model, Row, Step, begin, frozen_logprobs, frozen_score, mean, slices, token_mean
from torch import Tensor


def log_sigmoid(x: Tensor) -> Tensor:
    return -torch.log(1 + torch.exp(-x))


def average(xs: list[Tensor]) -> Tensor:
    return sum(xs) / len(xs)


def shares(margins: list[Tensor]) -> tuple[float, float]:
    """The mean, and the share above 0."""
    found = [float(margin.item()) for margin in margins]
    return mean(found), mean([float(margin > 0) for margin in found])


def ipo(actor: Model, ref: Model, chosen: list[Row], rejected: list[Row], *, beta: float, lr: float) -> Step:
    """arXiv 2310.12036, equation 17, with sums over tokens: (h_w - h_l - 1 / (2 beta))^2, h = lp - ref."""
    begin(actor)
    step, margins = Step(), list[Tensor]()
    for good, bad in zip(chosen, rejected, strict=True):
        before = sum(frozen_logprobs(ref, good)) - sum(frozen_logprobs(ref, bad))
        margins.append(sum(actor.logprobs(good)) - sum(actor.logprobs(bad)) - before)
    loss = sum((margin - 1 / (2 * beta)) ** 2 for margin in margins) / len(margins)
    step.trained("actor", actor.train(loss, lr))
    step.metrics = dict(zip(("margin", "accuracy"), shares(margins), strict=True))
    return step


def simpo(actor: Model, chosen: list[Row], rejected: list[Row], *, beta: float, gamma: float, lr: float) -> Step:
    """arXiv 2405.14734, equation 6: -log sigmoid(beta (mean lw - mean ll) - gamma)."""
    begin(actor)
    step = Step()
    gaps = [
        average(actor.logprobs(good)) - average(actor.logprobs(bad)) for good, bad in zip(chosen, rejected, strict=True)
    ]
    loss = sum(-log_sigmoid(beta * gap - gamma) for gap in gaps) / len(gaps)
    step.trained("actor", actor.train(loss, lr))
    step.metrics = dict(zip(("gap", "accuracy"), shares(gaps), strict=True))
    return step


def cpo(actor: Model, chosen: list[Row], rejected: list[Row], *, beta: float, lr: float) -> Step:
    """arXiv 2401.08417, equation 6: -log sigmoid(beta (sum lw - sum ll)), and the mean over all tokens of -lw."""
    begin(actor)
    step = Step()
    good = [actor.logprobs(row) for row in chosen]
    gaps = [sum(lw) - sum(actor.logprobs(bad)) for lw, bad in zip(good, rejected, strict=True)]
    tuning = token_mean([[-lp for lp in lw] for lw in good])
    loss = sum(-log_sigmoid(beta * gap) for gap in gaps) / len(gaps) + tuning
    assert isinstance(tuning, Tensor)
    step.trained("actor", actor.train(loss, lr))
    step.metrics = dict(zip(("gap", "accuracy"), shares(gaps), strict=True)) | {"loss": tuning.item()}
    return step


def orpo(actor: Model, chosen: list[Row], rejected: list[Row], *, beta: float, lr: float) -> Step:
    """arXiv 2403.07691, equations 3 to 7: the mean over all tokens of -lw, and -beta log sigmoid of the log of the
    ratio of odds, odds = P / (1 - P), P the geometric mean of the tokens' probabilities."""
    begin(actor)
    step, odds = Step(), list[Tensor]()
    good = [actor.logprobs(row) for row in chosen]
    for lw, bad in zip(good, rejected, strict=True):
        p, q = torch.exp(average(lw)), torch.exp(average(actor.logprobs(bad)))
        odds.append(torch.log(p / (1 - p)) - torch.log(q / (1 - q)))
    tuning = token_mean([[-lp for lp in lw] for lw in good])
    loss = tuning - beta * sum(log_sigmoid(x) for x in odds) / len(odds)
    assert isinstance(tuning, Tensor)
    step.trained("actor", actor.train(loss, lr))
    step.metrics = dict(zip(("odds", "accuracy"), shares(odds), strict=True)) | {"loss": tuning.item()}
    return step


def spin(
    actor: Model, opponent: Model, real: list[Row], own: list[Row], *, beta: float, lr: float, refresh: bool
) -> Step:
    """arXiv 2401.01335, equation 4.7: DPO's loss, the data's answer before the opponent's, who is the reference."""
    begin(actor)
    step, margins = Step(), list[Tensor]()
    for good, bad in zip(real, own, strict=True):
        before = sum(frozen_logprobs(opponent, good)) - sum(frozen_logprobs(opponent, bad))
        margins.append(sum(actor.logprobs(good)) - sum(actor.logprobs(bad)) - before)
    loss = sum(-log_sigmoid(beta * margin) for margin in margins) / len(margins)
    step.trained("actor", actor.train(loss, lr))
    if refresh:
        opponent.become(actor.weights())
    step.metrics = {"margin": shares(margins)[0]}
    return step


def xpo(
    actor: Model, ref: Model, reward: Model, new: list[Row], old: list[Row], *, beta: float, alpha: float, lr: float
) -> Step:
    """arXiv 2405.21046, algorithm 1: DPO's loss on the judged pair, and alpha times the sum of log-probabilities of the
    reference's answer."""
    begin(actor)
    step, margins, loss = Step(), list[Tensor](), torch.zeros(())
    score = [frozen_score(reward, row) for row in new]
    wins = [s >= frozen_score(reward, row) for s, row in zip(score, old, strict=True)]
    for a, b, won in zip(new, old, wins, strict=True):
        known = sum(actor.logprobs(b))
        gap = sum(actor.logprobs(a)) - known - sum(frozen_logprobs(ref, a)) + sum(frozen_logprobs(ref, b))
        margins.append(gap if won else -gap)
        loss = loss + alpha * known - log_sigmoid(beta * margins[-1])
    step.trained("actor", actor.train(loss / len(new), lr))
    step.metrics = {"wins": mean([float(won) for won in wins]), "margin": shares(margins)[0], "reward": mean(score)}
    return step


def iterative_dpo(
    actor: Model,
    ref: Model,
    reward: Model,
    groups: list[Group],
    *,
    beta: float,
    penalty: float,
    apart: float,
    lr: float,
    parts: int,
    epochs: int,
) -> Step:
    """arXiv 2405.07863, section 3: an answer is worth r - penalty L; best and worst of each group whose worths are not
    all equal, DPO's loss for epochs over these pairs; the margins are those of the last."""
    begin(actor)
    step, pairs, margins = Step(), list[tuple[Row, Row]](), list[float]()
    given = [[frozen_score(reward, row) for row in group] for group in groups]
    for group, scores in zip(groups, given, strict=True):
        worth = [s - penalty * row.length for s, row in zip(scores, group, strict=True)]
        if max(worth) - min(worth) > apart:
            pairs.append((group[worth.index(max(worth))], group[worth.index(min(worth))]))
    before = [sum(frozen_logprobs(ref, good)) - sum(frozen_logprobs(ref, bad)) for good, bad in pairs]
    for _ in range(epochs if pairs else 0):
        margins = []
        for part in slices(len(pairs), parts):
            found = [sum(actor.logprobs(pairs[g][0])) - sum(actor.logprobs(pairs[g][1])) - before[g] for g in part]
            loss = -sum(log_sigmoid(beta * margin) for margin in found) / len(found)
            step.trained("actor", actor.train(loss, lr))
            margins += [margin.item() for margin in found]
    step.metrics = {
        "reward": mean([s for scores in given for s in scores]),
        "margin": mean(margins),
        "pairs": float(len(pairs)),
    }
    if not pairs:
        step.metrics["actor.skipped_empty"] = float(epochs)
    step.values = {"ref_gap": before}
    return step


def nash_md(
    actor: Model,
    ref: Model,
    reward: Model,
    mine: list[Row],
    other: list[Row],
    rival: list[float],
    *,
    b: float,
    tau: float,
    lr: float,
) -> Step:
    """arXiv 2312.00886, section 7.1: -(P(y > y') - 1/2 - tau log(p(y) / ref(y))) log p(y), where y' is of the mixture
    p^(1 - b) ref^b / Z at each token; P is the sigmoid of the difference of two scores. rival: what the sampler says of
    the tokens of y', which has to be that mixture's log-probability."""
    begin(actor)
    step, loss, said = Step(), torch.zeros(()), list[float]()
    with torch.no_grad():
        for row in other:
            mixed = (1 - b) * actor.net.lm_head(actor.hidden(row)) + b * ref.net.lm_head(ref.hidden(row))
            table = mixed - torch.log(sum(torch.exp(mixed[:, v]) for v in range(mixed.shape[1])))[:, None]
            said += [table[t - 1, y].item() for t, y in enumerate(row.tokens) if row.written[t]]
    assert len(said) == len(rival) and max(abs(x - y) for x, y in zip(said, rival, strict=True)) < 1e-9
    scores = [frozen_score(reward, row) for row in mine]
    wins = [1 / (1 + math.exp(frozen_score(reward, row) - score)) for row, score in zip(other, scores, strict=True)]
    gaps = []
    for row, win in zip(mine, wins, strict=True):
        now, known = actor.logprobs(row), frozen_logprobs(ref, row)
        loss = loss - (win - 0.5) * sum(now) + tau * sum((x.item() - k) * x for x, k in zip(now, known, strict=True))
        gaps.append(sum(x.item() - k for x, k in zip(now, known, strict=True)))
    step.trained("actor", actor.train(loss / len(mine), lr))
    step.metrics = {"win": mean(wins), "kl": mean(gaps), "reward": mean(scores)}
    return step


def kto(
    actor: Model,
    ref: Model,
    answers: list[Row],
    others: list[Row],
    liked: list[bool],
    *,
    beta: float,
    bad: float,
    lr: float,
) -> Step:
    """arXiv 2402.01306, equation 8: v = 1 - sigmoid(beta (h - z)) of what is liked, 1 - sigmoid(beta (z - h)) of the rest,
    h = lp - ref of an answer, z = max(0, the mean of h over answers to other prompts), a constant."""
    begin(actor)
    step = Step()
    drifts = [sum(frozen_logprobs(actor, row)) - sum(frozen_logprobs(ref, row)) for row in others]
    z = max(0.0, mean(drifts))
    gains, losses = list[Tensor](), list[Tensor]()
    for row, good in zip(answers, liked, strict=True):
        gains.append(sum(actor.logprobs(row)) - sum(frozen_logprobs(ref, row)))
        losses.append(
            1 - torch.sigmoid(beta * (gains[-1] - z)) if good else bad * (1 - torch.sigmoid(beta * (z - gains[-1])))
        )
    loss = average(losses)
    step.trained("actor", actor.train(loss, lr))
    step.metrics = {"drift": z, "gain": shares(gains)[0], "loss": loss.item()}
    return step
