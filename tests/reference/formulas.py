"""The algorithms of `rlgraph/algorithms`, written from their formulas alone.

Nothing of rlgraph is used here, and none of its means: rows are a list, tokens are a list, and every sum is a loop.
Each algorithm is a function that takes its models, the rows that were sampled and its constants, does one step of
training, and returns what it computed on the way. It never takes a log-probability, a value or a score of a model from
outside: it computes them with its own weights, so that a mistake in one update is a mistake in all that follows.

    x   prompt         y   answer, tokens t = 1..L     mu  log-probability when the row was sampled
    lp  log-probability now        r_t  reward at a token      A_t  advantage

Losses are minimised. All numbers are double precision.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class Row:
    """One sequence: a prompt and its answer, or the turns of an episode."""

    tokens: list[int]
    written: list[bool]
    """The model wrote this token; only those carry loss."""
    score: float = 0.0
    """What the user's function gave it."""
    rewards: list[float] = field(default_factory=list)
    """Of an episode: the environment's reward for each turn."""
    mu: list[float] = field(default_factory=list)
    """log-probability of each written token under the weights that sampled it."""
    born: int = 0
    """Version of those weights."""

    @property
    def length(self) -> int:
        return sum(self.written)


Group = list[Row]


# Models


class Model:
    """A Hugging Face model, asked about one row at a time, and its AdamW written by hand (arXiv 1711.05101)."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.updates = 0
        self.m = [torch.zeros_like(p) for p in net.parameters()]
        self.v = [torch.zeros_like(p) for p in net.parameters()]
        self.versions: list[dict[str, Tensor]] = []
        """The weights at the start of each step."""

    def hidden(self, row: Row) -> Tensor:
        return self.net.model(input_ids=torch.tensor([row.tokens])).last_hidden_state[0]

    def logprobs(self, row: Row) -> list[Tensor]:
        """log p(token | tokens before it) of each written token."""
        if not any(row.written):
            return []
        table = self.net.lm_head(self.hidden(row)).log_softmax(-1)
        return [table[t - 1, row.tokens[t]] for t in range(len(row.tokens)) if row.written[t]]

    def values(self, row: Row) -> list[Tensor]:
        """Value of the state before each written token."""
        if not any(row.written):
            return []
        table = self.net.score(self.hidden(row))
        return [table[t - 1, 0] for t in range(len(row.tokens)) if row.written[t]]

    def score(self, row: Row) -> Tensor:
        """The head's number at the last token of the row."""
        return self.net.score(self.hidden(row))[-1, 0]

    def train(
        self,
        loss: Tensor | float,
        lr: float,
        clip_norm: float = 0.0,
        weight_decay: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-2,
    ) -> tuple[float, float]:
        """One update; the loss and the norm of its gradient. `eps` is that of the tests' programs (`tiny.EPS`)."""
        parameters = list(self.net.parameters())
        gradients: list[Tensor] = [torch.zeros_like(p) for p in parameters]
        if isinstance(loss, Tensor) and loss.requires_grad:
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            gradients = [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]
        norm = math.sqrt(sum(float((g * g).sum()) for g in gradients))
        if clip_norm and norm > clip_norm:
            gradients = [g * (clip_norm / norm) for g in gradients]
        self.updates += 1
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, self.m, self.v, strict=True):
                m.copy_(beta1 * m + (1 - beta1) * g)
                v.copy_(beta2 * v + (1 - beta2) * g * g)
                m_hat = m / (1 - beta1**self.updates)
                v_hat = v / (1 - beta2**self.updates)
                p.copy_(p - lr * weight_decay * p - lr * m_hat / (v_hat.sqrt() + eps))
        return (loss.item() if isinstance(loss, Tensor) else loss), norm

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.net.state_dict().items()}

    def become(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)


def numbers(values: Sequence[Tensor]) -> list[float]:
    return [value.item() for value in values]


@torch.no_grad()
def sample(model: Model, groups: Sequence[Group], version: int | None = None) -> None:
    """Notes on each row what its tokens' log-probabilities were when it was sampled: by the weights as they are, or an
    old version."""
    now = model.weights()
    if version is not None:
        model.become(model.versions[version])
    for group in groups:
        for row in group:
            row.mu = numbers(model.logprobs(row))
            row.born = len(model.versions) - 1 if version is None else version
    model.become(now)


@torch.no_grad()
def frozen_logprobs(model: Model, row: Row) -> list[float]:
    return numbers(model.logprobs(row))


@torch.no_grad()
def frozen_values(model: Model, row: Row) -> list[float]:
    return numbers(model.values(row))


@torch.no_grad()
def frozen_score(model: Model, row: Row) -> float:
    return model.score(row).item()


# Statistics


def mean(xs: Sequence[float]) -> float:
    return math.fsum(xs) / len(xs) if xs else 0.0


def variance(xs: Sequence[float]) -> float:
    """Unbiased; 0 of a single one."""
    if len(xs) < 2:
        return 0.0
    middle = mean(xs)
    return math.fsum((x - middle) ** 2 for x in xs) / (len(xs) - 1)


def std(xs: Sequence[float]) -> float:
    return math.sqrt(variance(xs))


def whiten(rows: list[list[float]]) -> list[list[float]]:
    """Over all tokens of the batch."""
    flat = [x for row in rows for x in row]
    middle, spread = mean(flat), math.sqrt(variance(flat) + 1e-8)
    return [[(x - middle) / spread for x in row] for row in rows]


def slices(count: int, parts: int) -> list[range]:
    """`count` rows in `parts` runs whose sizes differ by at most one, the longer ones first; never an empty one."""
    parts = max(1, min(parts, count))
    small, longer = divmod(count, parts)
    ends = [0]
    for part in range(parts):
        ends.append(ends[-1] + small + (1 if part < longer else 0))
    return [range(a, b) for a, b in zip(ends, ends[1:], strict=False)]


# Estimators


def k1(p: float, q: float) -> float:
    return p - q


def k3(p, q):  # type: ignore[no-untyped-def]
    """exp(log q - log p) - (log q - log p) - 1, of numbers or of tensors."""
    d = q - p
    return (torch.exp(d) if isinstance(d, Tensor) else math.exp(d)) - d - 1


def group_advantages(scores: Sequence[float], eps: float = 1e-6) -> list[float]:
    """(R_i - mean) / (std + eps), std unbiased and 0 for a group of one."""
    return [(s - mean(scores)) / (std(scores) + eps) for s in scores]


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """delta_t = r_t + gamma V_{t+1} - V_t;  A_t = delta_t + gamma lam A_{t+1};  after the last token both are 0."""
    advantages = [0.0] * len(rewards)
    next_value = next_advantage = 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_value - values[t]
        advantages[t] = delta + gamma * lam * next_advantage
        next_value, next_advantage = values[t], advantages[t]
    return advantages


def rewards_to_come(rewards: Sequence[float], gamma: float) -> list[float]:
    gains, after = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        gains[t] = after = rewards[t] + gamma * after
    return gains


def at_end(score: float, length: int) -> list[float]:
    """The score as the reward of the last token."""
    return [score if t == length - 1 else 0.0 for t in range(length)]


def clipped(ratio: Tensor, advantage: float, low: float, high: float) -> Tensor:
    """min(ratio A, clip(ratio, 1 - low, 1 + high) A) (arXiv 1707.06347)."""
    cut = ratio.clamp(1 - low, 1 + high)
    return torch.minimum(ratio * advantage, cut * advantage)


def token_mean(rows: Sequence[Sequence[Tensor]]) -> Tensor | float:
    """(1 / N) sum over all tokens of the mini-batch, N their number."""
    total: Tensor | float = 0.0
    count = 0
    for row in rows:
        for x in row:
            total, count = total + x, count + 1
    return total / count if count else 0.0


def sequence_mean(rows: Sequence[Sequence[Tensor]]) -> Tensor | float:
    """(1 / B) sum over rows of (1 / L_i) sum over its tokens; a row without tokens counts in B and adds 0."""
    total: Tensor | float = 0.0
    for row in rows:
        if row:
            total = total + sum(row) / len(row)
    return total / len(rows)


# What a step returns


@dataclass
class Step:
    metrics: dict[str, float] = field(default_factory=dict)
    losses: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """For each trained model, loss and gradient norm of each update."""
    values: dict[str, list[float]] = field(default_factory=dict)
    """Values with rows or tokens, one row after another."""
    clips: int = 0
    """How often the clipped branch was the smaller one; a test that never clips shows little."""

    def trained(self, name: str, what: tuple[float, float]) -> None:
        self.losses.setdefault(name, []).append(what)


def flat(rows: Sequence[Sequence[float]]) -> list[float]:
    return [x for row in rows for x in row]


def begin(*models: Model) -> None:
    """The weights with which a step begins are a version."""
    for model in models:
        model.versions.append(model.weights())


# Algorithms


def grpo(
    actor: Model, ref: Model, groups: list[Group], *, eps: float, beta: float, lr: float, clip_norm: float, parts: int
) -> Step:
    """arXiv 2402.03300: mean over sequences of mean over tokens of -min(...) + beta k3."""
    begin(actor)
    sample(actor, groups)
    step = Step()
    adv = [group_advantages([row.score for row in group]) for group in groups]
    ref_logp = [[frozen_logprobs(ref, row) for row in group] for group in groups]
    kls: list[float] = []
    for part in slices(len(groups), parts):
        terms: list[list[Tensor]] = []
        for g in part:
            for i, row in enumerate(groups[g]):
                terms.append([])
                for lp, mu, q in zip(actor.logprobs(row), row.mu, ref_logp[g][i], strict=True):
                    ratio, kl = torch.exp(lp - mu), k3(lp, q)
                    surrogate = clipped(ratio, adv[g][i], eps, eps)
                    step.clips += bool(surrogate < ratio * adv[g][i])
                    terms[-1].append(-surrogate + beta * kl)
                    kls.append(kl.item())
        step.trained("actor", actor.train(sequence_mean(terms), lr, clip_norm))
    rows = [row for group in groups for row in group]
    step.metrics = {
        "reward": mean([row.score for row in rows]),
        "length": mean([row.length for row in rows]),
        "kl": mean(kls),
    }
    step.values = {"adv": flat(adv), "ref_logp": flat([lps for group in ref_logp for lps in group])}
    return step


def ppo(
    actor: Model,
    critic: Model,
    ref: Model,
    reward: Model,
    rows: list[Row],
    *,
    gamma: float,
    lam: float,
    eps: float,
    eps_v: float,
    beta: float,
    lr: float,
    lr_v: float,
    parts: int,
    epochs: int,
) -> Step:
    """arXiv 2203.02155: KL in the reward, GAE, whitened advantages, clipped value loss; means over tokens."""
    begin(actor, critic)
    sample(actor, [rows])
    step = Step()
    ref_logp = [frozen_logprobs(ref, row) for row in rows]
    value = [frozen_values(critic, row) for row in rows]
    score = [frozen_score(reward, row) for row in rows]
    adv, target = [], []
    for row, q, v, s in zip(rows, ref_logp, value, score, strict=True):
        r = [end - beta * k1(mu, lq) for end, mu, lq in zip(at_end(s, row.length), row.mu, q, strict=True)]
        adv.append(gae(r, v, gamma, lam))
        target.append([a + b for a, b in zip(adv[-1], v, strict=True)])
    adv_w = whiten(adv)
    for _ in range(epochs):
        for part in slices(len(rows), parts):
            errors: list[list[Tensor]] = []
            for i in part:
                errors.append([])
                for v, v_old, wanted in zip(critic.values(rows[i]), value[i], target[i], strict=True):
                    v_cut = v.clamp(v_old - eps_v, v_old + eps_v)
                    errors[-1].append(torch.maximum((v - wanted) ** 2, (v_cut - wanted) ** 2))
            step.trained("critic", critic.train(0.5 * token_mean(errors), lr_v))
            terms: list[list[Tensor]] = []
            for i in part:
                terms.append([])
                for lp, mu, a in zip(actor.logprobs(rows[i]), rows[i].mu, adv_w[i], strict=True):
                    ratio = torch.exp(lp - mu)
                    surrogate = clipped(ratio, a, eps, eps)
                    step.clips += bool(surrogate < ratio * a)
                    terms[-1].append(-surrogate)
            step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {
        "reward": mean(score),
        "value_error": mean([(v - t) ** 2 for v, t in zip(flat(value), flat(target), strict=True)]),
    }
    step.values = {"adv": flat(adv), "adv_w": flat(adv_w), "target": flat(target), "value": flat(value), "score": score}
    return step


def dapo(
    actor: Model,
    batches: Callable[[], list[Group]],
    carried: deque[Group],
    *,
    wanted: int,
    low: float,
    high: float,
    limit: int,
    cushion: int,
    lr: float,
    parts: int,
) -> Step:
    """arXiv 2503.14476: groups whose rewards are all equal are sampled anew; what is too much is for the next step.

    `batches` gives the next batch of groups. Rows that were carried over keep the log-probabilities they were sampled
    with.
    """
    begin(actor)
    step = Step()
    while len(carried) < wanted:
        fresh = batches()
        sample(actor, fresh)
        carried.extend(group for group in fresh if std([row.score for row in group]) > 0)
    groups = [carried.popleft() for _ in range(wanted)]
    score = [
        [row.score + min(0.0, max(-1.0, (limit - cushion - row.length) / cushion)) for row in group] for group in groups
    ]
    adv = [group_advantages(scores) for scores in score]
    for part in slices(len(groups), parts):
        terms: list[list[Tensor]] = []
        for g in part:
            for i, row in enumerate(groups[g]):
                terms.append([])
                for lp, mu in zip(actor.logprobs(row), row.mu, strict=True):
                    ratio = torch.exp(lp - mu)
                    surrogate = clipped(ratio, adv[g][i], low, high)
                    step.clips += bool(surrogate < ratio * adv[g][i])
                    terms[-1].append(-surrogate)
        step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {"reward": mean(flat(score)), "accuracy": mean([row.score for group in groups for row in group])}
    step.values = {"adv": flat(adv), "score": flat(score)}
    return step


def remax(
    actor: Model, ref: Model, reward: Model, rows: list[Row], greedy: list[Row], *, beta: float, lr: float
) -> Step:
    """arXiv 2310.10505: the greedy answer's score is the baseline; the loss is the mean over rows of sums over
    tokens."""
    begin(actor)
    sample(actor, [rows])
    step = Step()
    score = [frozen_score(reward, row) for row in rows]
    gains = []
    for row, other, s in zip(rows, greedy, score, strict=True):
        better = s - frozen_score(reward, other)
        q = frozen_logprobs(ref, row)
        r = [end - beta * k1(mu, lq) for end, mu, lq in zip(at_end(better, row.length), row.mu, q, strict=True)]
        gains.append(rewards_to_come(r, 1.0))
    loss: Tensor | float = 0.0
    for row, gain in zip(rows, gains, strict=True):
        for lp, g in zip(actor.logprobs(row), gain, strict=True):
            loss = loss - lp * g
    step.trained("actor", actor.train(loss / len(rows), lr))
    step.metrics = {"reward": mean(score)}
    step.values = {"gain": flat(gains), "score": score}
    return step


def online_dpo(
    actor: Model, ref: Model, reward: Model, groups: list[Group], *, beta: float, lr: float, parts: int, refresh: bool
) -> Step:
    """arXiv 2402.04792: best and worst of each group, -log sigmoid(beta (gap - gap of the reference))."""
    begin(actor)
    step = Step()
    score = [[frozen_score(reward, row) for row in group] for group in groups]
    pairs = [
        (group[scores.index(max(scores))], group[scores.index(min(scores))])
        for group, scores in zip(groups, score, strict=True)
    ]
    ref_gap = [sum(frozen_logprobs(ref, best)) - sum(frozen_logprobs(ref, worst)) for best, worst in pairs]
    margins: list[float] = []
    for part in slices(len(pairs), parts):
        loss: Tensor | float = 0.0
        for g in part:
            best, worst = pairs[g]
            gap = sum(actor.logprobs(best)) - sum(actor.logprobs(worst))
            loss = loss + torch.log(1 + torch.exp(-beta * (gap - ref_gap[g])))
            margins.append(gap.item() - ref_gap[g])
        step.trained("actor", actor.train(loss / len(part), lr))
    if refresh:
        ref.become(actor.weights())
    step.metrics = {"reward": mean(flat(score)), "margin": mean(margins)}
    step.values = {"score": flat(score), "ref_gap": ref_gap}
    return step


def distill(actor: Model, teacher: Model, groups: list[Group], *, lr: float) -> Step:
    """On-policy distillation: the advantage of a token is log p_teacher - log p_student when it was sampled."""
    begin(actor)
    sample(actor, groups)
    step = Step()
    rows = [row for group in groups for row in group]
    adv = [[q - mu for q, mu in zip(frozen_logprobs(teacher, row), row.mu, strict=True)] for row in rows]
    terms = [
        [-torch.exp(lp - mu) * a for lp, mu, a in zip(actor.logprobs(row), row.mu, a_row, strict=True)]
        for row, a_row in zip(rows, adv, strict=True)
    ]
    step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {"reverse_kl": -mean(flat(adv))}
    step.values = {"adv": flat(adv)}
    return step


def mopd(
    actor: Model, domains: list[tuple[Model, list[Row]]], *, least: float, most: float, lag: int, lr: float
) -> Step:
    """arXiv 2601.02780, equations 7 and 8: mean over a domain's answers of (1 / L) sum_t -w_t A_t lp_t, and over
    domains; A_t = log p_teacher - lp and w_t = exp(lp - mu) are constants, w_t is 0 outside of [least, most].

    domains: each teacher with the answers of its domain, sampled by the weights of `lag` steps before.
    """
    begin(actor)
    sample(actor, [rows for _, rows in domains], max(0, len(actor.versions) - 1 - lag))
    step = Step()
    loss: Tensor | float = 0.0
    told = []
    for teacher, rows in domains:
        told.append([frozen_logprobs(teacher, row) for row in rows])
        for row, marks in zip(rows, told[-1], strict=True):
            for lp, mu, mark in zip(actor.logprobs(row), row.mu, marks, strict=True):
                drift = math.exp(lp.item() - mu)
                inside = least <= drift <= most
                step.clips += not inside
                weight = drift if inside else 0.0
                loss = loss - weight * (mark - lp.item()) * lp / (row.length * len(rows) * len(domains))
    step.trained("actor", actor.train(loss, lr))
    gaps = [
        [mu - mark for row, marks in zip(rows, some, strict=True) for mu, mark in zip(row.mu, marks, strict=True)]
        for (_, rows), some in zip(domains, told, strict=True)
    ]
    step.metrics = {"kl_sums": mean(gaps[0]), "kl_talk": mean(gaps[1])}
    step.values = {"right": flat(told[0]), "fluent": flat(told[1])}
    return step


def sft(actor: Model, rows: list[Row], *, lr: float, weight_decay: float) -> Step:
    """Mean over all tokens of -log p."""
    begin(actor)
    step = Step()
    step.trained(
        "actor",
        actor.train(token_mean([[-lp for lp in actor.logprobs(row)] for row in rows]), lr, weight_decay=weight_decay),
    )
    step.metrics = {"loss": step.losses["actor"][0][0]}
    return step


def reward_model(reward: Model, chosen: list[Row], rejected: list[Row], *, lr: float) -> Step:
    """Bradley-Terry: mean over pairs of -log sigmoid(score of the chosen - score of the rejected)."""
    begin(reward)
    step = Step()
    margins = [reward.score(good) - reward.score(bad) for good, bad in zip(chosen, rejected, strict=True)]
    loss = sum(torch.log(1 + torch.exp(-margin)) for margin in margins) / len(margins)
    step.trained("reward", reward.train(loss, lr))
    step.metrics = {"accuracy": mean([float(margin.item() > 0) for margin in margins])}
    return step


def dpo(actor: Model, ref: Model, chosen: list[Row], rejected: list[Row], *, beta: float, lr: float) -> Step:
    """arXiv 2305.18290: -log sigmoid(beta (gap - gap of the reference)), the gap of the answers' log-probabilities."""
    begin(actor)
    step = Step()
    pairs = list(zip(chosen, rejected, strict=True))
    before = [sum(frozen_logprobs(ref, good)) - sum(frozen_logprobs(ref, bad)) for good, bad in pairs]
    margins = [
        sum(actor.logprobs(good)) - sum(actor.logprobs(bad)) - gap
        for (good, bad), gap in zip(pairs, before, strict=True)
    ]
    loss = sum(torch.log(1 + torch.exp(-beta * margin)) for margin in margins) / len(margins)
    step.trained("actor", actor.train(loss, lr))
    found = [float(margin.item()) for margin in margins]
    step.metrics = {"margin": mean(found), "accuracy": mean([float(margin > 0) for margin in found])}
    return step


def safe_rlhf(
    actor: Model,
    ref: Model,
    reward: Model,
    cost: Model,
    v_gain: Model,
    v_cost: Model,
    rows: list[Row],
    lagrange: float,
    *,
    budget: float,
    beta: float,
    eps: float,
    lr: float,
    lr_v: float,
    parts: int,
) -> tuple[Step, float]:
    """arXiv 2310.12773: A = (A_reward - lambda A_cost) / (1 + lambda), lambda grows by exp(0.1 (mean cost -
    budget))."""
    begin(actor, v_gain, v_cost)
    sample(actor, [rows])
    step = Step()
    gain = [frozen_score(reward, row) for row in rows]
    harm = [frozen_score(cost, row) for row in rows]
    value_g = [frozen_values(v_gain, row) for row in rows]
    value_c = [frozen_values(v_cost, row) for row in rows]
    adv_g, adv_c = [], []
    for i, row in enumerate(rows):
        kl = [k1(mu, q) for mu, q in zip(row.mu, frozen_logprobs(ref, row), strict=True)]
        r = [end - 0.5 * beta * k for end, k in zip(at_end(gain[i], row.length), kl, strict=True)]
        c = [end + 0.5 * beta * k for end, k in zip(at_end(harm[i], row.length), kl, strict=True)]
        adv_g.append(gae(r, value_g[i], 1.0, 0.95))
        adv_c.append(gae(c, value_c[i], 1.0, 0.95))
    adv = whiten(
        [
            [(a - lagrange * b) / (1 + lagrange) for a, b in zip(x, y, strict=True)]
            for x, y in zip(adv_g, adv_c, strict=True)
        ]
    )
    lagrange = max(0.0, lagrange * math.exp(0.1 * (mean(harm) - budget)))
    for part in slices(len(rows), parts):
        for name, critic, advantage, value in (
            ("v_gain", v_gain, adv_g, value_g),
            ("v_cost", v_cost, adv_c, value_c),
        ):
            errors = [
                [(v - (a + b)) ** 2 for v, a, b in zip(critic.values(rows[i]), advantage[i], value[i], strict=True)]
                for i in part
            ]
            step.trained(name, critic.train(token_mean(errors), lr_v))
        terms: list[list[Tensor]] = []
        for i in part:
            terms.append([])
            for lp, mu, a in zip(actor.logprobs(rows[i]), rows[i].mu, adv[i], strict=True):
                ratio = torch.exp(lp - mu)
                surrogate = clipped(ratio, a, eps, eps)
                step.clips += bool(surrogate < ratio * a)
                terms[-1].append(-surrogate)
        step.trained("actor", actor.train(token_mean(terms), lr))
    step.metrics = {"reward": mean(gain), "cost": mean(harm), "lagrange": lagrange}
    step.values = {"adv": flat(adv), "adv_g": flat(adv_g), "adv_c": flat(adv_c), "gain": gain, "harm": harm}
    return step, lagrange


def async_grpo(
    actor: Model, groups: list[Group], *, staleness: int, eps: float, cap: float, lr: float, parts: int
) -> Step:
    """arXiv 2505.24298: -w min(...), ratio to the policy at the start of the step, w = min(pi_start / pi_drawn, cap).

    Step s samples with the weights that step s - staleness began with, the first steps with the first weights.
    """
    begin(actor)
    now = len(actor.versions) - 1
    sample(actor, groups, max(0, now - staleness))
    step = Step()
    adv = [group_advantages([row.score for row in group]) for group in groups]
    prox = [[frozen_logprobs(actor, row) for row in group] for group in groups]
    weights = [
        [
            [min(math.exp(p - mu), cap) for p, mu in zip(lps, row.mu, strict=True)]
            for lps, row in zip(some, group, strict=True)
        ]
        for some, group in zip(prox, groups, strict=True)
    ]
    for part in slices(len(groups), parts):
        terms: list[list[Tensor]] = []
        for g in part:
            for i, row in enumerate(groups[g]):
                terms.append([])
                for lp, p, w in zip(actor.logprobs(row), prox[g][i], weights[g][i], strict=True):
                    ratio = torch.exp(lp - p)
                    surrogate = clipped(ratio, adv[g][i], eps, eps)
                    step.clips += bool(surrogate < ratio * adv[g][i])
                    terms[-1].append(-w * surrogate)
        step.trained("actor", actor.train(token_mean(terms), lr))
    rows = [row for group in groups for row in group]
    step.metrics = {"reward": mean([row.score for row in rows]), "age": mean([now - row.born for row in rows])}
    step.values = {"adv": flat(adv), "prox": flat(flat(prox)), "weight": flat(flat(weights))}
    return step


def agent(
    actor: Model,
    groups: list[Group],
    trials: list[Row] | None,
    *,
    eps: float,
    lr: float,
    parts: int,
) -> Step:
    """Multi-turn GRPO without the division by the standard deviation; tokens of the environment carry no loss.

    `trials`: greedy episodes, on the steps that evaluate; those come after the update.
    """
    begin(actor)
    sample(actor, groups)
    step = Step()
    score = [[sum(row.rewards) for row in group] for group in groups]
    adv = [[s - mean(scores) for s in scores] for scores in score]
    for part in slices(len(groups), parts):
        terms: list[list[Tensor]] = []
        for g in part:
            for i, row in enumerate(groups[g]):
                terms.append([])
                for lp, mu in zip(actor.logprobs(row), row.mu, strict=True):
                    ratio = torch.exp(lp - mu)
                    surrogate = clipped(ratio, adv[g][i], eps, eps)
                    step.clips += bool(surrogate < ratio * adv[g][i])
                    terms[-1].append(-surrogate)
        step.trained("actor", actor.train(token_mean(terms), lr))
    if trials is not None:
        step.metrics["solved"] = mean([float(sum(row.rewards) > 0) for row in trials])
    step.metrics |= {
        "reward": mean(flat(score)),
        "turns": mean([len(row.rewards) for group in groups for row in group]),
    }
    step.values = {"adv": flat(adv), "score": flat(score)}
    return step
