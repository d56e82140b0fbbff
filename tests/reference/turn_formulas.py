"""Policy gradients whose advantages are of the turns of episodes, written from their formulas.

As in `formulas.py`, every sum is a loop, and every log-probability is computed here. What is a turn is read from the
tokens: those that the model wrote one behind the other.

    r_t  reward of a turn     s_t  what the environment said before it     mu, lp  log-probability when sampled, now
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from formulas import (
    Group,
    Model,
    Row,
    Step,
    begin,
    clipped,
    frozen_logprobs,
    frozen_values,
    group_advantages,
    mean,
    rewards_to_come,
    sample,
    slices,
)
from torch import Tensor


@dataclass
class Turn:
    """A turn of an episode."""

    state: Hashable
    """The tokens that the environment wrote before it."""
    places: list[int]
    """The model's tokens in it, counted among those of the episode."""


def turns_of(row: Row, asked: int) -> list[Turn]:
    """The turns of an episode, which begins with so many tokens of its prompt."""
    turns: list[Turn] = []
    heard: list[int] = []
    number = 0
    for place, (token, written) in enumerate(zip(row.tokens, row.written, strict=True)):
        if not written:
            heard += [token] if place >= asked else []
            continue
        if place == 0 or not row.written[place - 1]:
            turns.append(Turn(tuple(heard), []))
            heard = []
        turns[-1].places.append(number)
        number += 1
    return turns


def gigpo(
    actor: Model,
    ref: Model,
    groups: list[Group],
    asked: list[int],
    *,
    eps: float,
    beta: float,
    gamma: float,
    omega: float,
    lr: float,
    parts: int,
) -> Step:
    """arXiv 2505.10978, equations 3 to 9: A_t = A(episode) + omega A(turn among the turns of its prompt's episodes with
    the same state); mean over turns of the mean over tokens of -min(...) + beta (exp(d) - d - 1), d = ref - lp.

    asked: the tokens of each prompt."""
    begin(actor)
    sample(actor, groups)
    step = Step()
    adv: list[list[list[float]]] = []
    alike: list[float] = []
    for group, prompt in zip(groups, asked, strict=True):
        of_episode = group_advantages([sum(row.rewards) for row in group])
        turns = [turns_of(row, prompt) for row in group]
        assert [len(of_row) for of_row in turns] == [len(row.rewards) for row in group]
        to_come = [rewards_to_come(row.rewards, gamma) for row in group]
        same: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        for i, of_row in enumerate(turns):
            for t, turn in enumerate(of_row):
                same[turn.state].append((i, t))
        adv.append([[a] * len(of_row) for a, of_row in zip(of_episode, turns, strict=True)])
        for members in same.values():
            alike += [float(len(members))] * len(members)
            of_turns = group_advantages([to_come[i][t] for i, t in members])
            for (i, t), a in zip(members, of_turns, strict=True):
                adv[-1][i][t] += omega * a
    ref_logp = [[frozen_logprobs(ref, row) for row in group] for group in groups]
    for part in slices(len(groups), parts):
        total: Tensor | float = 0.0
        count = 0
        for g in part:
            for i, row in enumerate(groups[g]):
                lps = actor.logprobs(row)
                for t, turn in enumerate(turns_of(row, asked[g])):
                    terms = []
                    for at in turn.places:
                        ratio, a = torch.exp(lps[at] - row.mu[at]), adv[g][i][t]
                        surrogate = clipped(ratio, a, eps, eps)
                        step.clips += bool(surrogate < ratio * a)
                        less = ref_logp[g][i][at] - lps[at]
                        terms.append(-surrogate + beta * (torch.exp(less) - less - 1))
                    total, count = total + sum(terms) / len(terms), count + 1
        step.trained("actor", actor.train(total / count if count else 0.0, lr))
    rows = [row for group in groups for row in group]
    step.metrics = {
        "reward": mean([math.fsum(row.rewards) for row in rows]),
        "turns": mean([float(len(row.rewards)) for row in rows]),
        "alike": mean(alike),
    }
    step.values = {"adv": [a for group in adv for of_row in group for a in of_row]}
    return step


def archer(
    actor: Model,
    q: Model,
    v: Model,
    slow_q: Model,
    slow_v: Model,
    groups: list[Group],
    old: list[Row],
    *,
    gamma: float,
    slow: float,
    lr: float,
    lr_v: float,
    parts: int,
) -> Step:
    """arXiv 2402.19446, equations 1 to 4: Q(turn), at its last token, to r + gamma V'(next turn), over past episodes;
    V(turn), at its first one, to Q'(turn) of new ones; then -(sum of a turn's lp) (Q - V), mean over turns. Q' and V'
    move by 1 - slow of their way a step. A value is of the state before its token.

    old: the episodes that were drawn from the buffer."""
    begin(actor)
    step = Step()
    rows = [row for group in groups for row in group]

    def ends(row: Row, values: list[Any]) -> list[tuple[Any, Any]]:
        return [(values[turn.places[0]], values[turn.places[-1]]) for turn in turns_of(row, 0)]

    goal = []
    for row in old:
        after = [first for first, _ in ends(row, frozen_values(slow_v, row))][1:]
        goal.append([r + gamma * later for r, later in zip(row.rewards, [*after, 0.0], strict=False)])
    level = [[last for _, last in ends(row, frozen_values(slow_q, row))] for row in rows]

    def fit(model: Model, chosen: list[Row], goals: list[list[float]], side: int) -> tuple[float, float]:
        errors = [
            (value[side] - wanted) ** 2
            for row, wants in zip(chosen, goals, strict=True)
            for value, wanted in zip(ends(row, model.values(row)), wants, strict=True)
        ]
        return model.train(sum(errors) / len(errors) if errors else 0.0, lr_v)

    for part in slices(len(old), parts):
        step.trained("q", fit(q, [old[i] for i in part], [goal[i] for i in part], 1))
    size = len(groups[0])
    of_parts = [[g * size + i for g in part for i in range(size)] for part in slices(len(groups), parts)]
    for chosen in of_parts:
        step.trained("v", fit(v, [rows[i] for i in chosen], [level[i] for i in chosen], 0))
    for kept, model in ((slow_q, q), (slow_v, v)):
        now = model.weights()
        kept.become({name: slow * old_value + (1 - slow) * now[name] for name, old_value in kept.weights().items()})
    adv = [
        [last - first for (_, last), (first, _) in zip(ends(row, of_q), ends(row, of_v), strict=True)]
        for row in rows
        for of_q, of_v in [(frozen_values(q, row), frozen_values(v, row))]
    ]
    for chosen in of_parts:
        terms = []
        for i in chosen:
            lps = actor.logprobs(rows[i])
            terms += [-sum(lps[at] for at in t.places) * a for t, a in zip(turns_of(rows[i], 0), adv[i], strict=True)]
        step.trained("actor", actor.train(sum(terms) / len(terms) if terms else 0.0, lr))
    wrong = [
        (last - wanted) ** 2
        for row, wants in zip(old, goal, strict=True)
        for (_, last), wanted in zip(ends(row, frozen_values(q, row)), wants, strict=True)
    ]
    step.metrics = {
        "reward": mean([math.fsum(row.rewards) for row in rows]),
        "turns": mean([float(len(row.rewards)) for row in rows]),
        "adv": mean([a for of_row in adv for a in of_row]),
        "q_error": mean(wrong),
    }
    step.values = {
        "goal": [x for of_row in goal for x in of_row],
        "level": [x for of_row in level for x in of_row],
        "adv": [x for of_row in adv for x in of_row],
    }
    return step


def spiral(players: dict[str, tuple[Model, list[Row]]], usual: dict[str, float], *, decay: float, lr: float) -> Step:
    """arXiv 2506.24119, role-conditioned advantages: the mean over games of -(sum of a player's lp) (R_role - b_role),
    for each its own model; then b_role becomes decay b_role + (1 - decay) R_role, with the mean R of the step's games.
    The baseline is that before the games, as in the authors' `prepare_trajectories` (github.com/spiral-rl/spiral).

    players: the model and the games of white and of black; usual: their baselines, which are changed.
    """
    begin(*(model for model, _ in players.values()))
    step = Step()
    gains = {}
    for role, (model, rows) in players.items():
        gains[role] = [math.fsum(row.rewards) for row in rows]
        adv = [gain - usual[role] for gain in gains[role]]
        usual[role] = decay * usual[role] + (1 - decay) * mean(gains[role])
        terms = [-lp * a for row, a in zip(rows, adv, strict=True) for lp in model.logprobs(row)]
        name = {"white": "first", "black": "second"}[role]
        step.trained(name, model.train(sum(terms) / len(rows) if terms else 0.0, lr, clip_norm=1.0))
        step.values[f"adv_{role[0]}"] = adv
        step.metrics[f"{role}_usual"] = usual[role]
    turns = [[float(len(row.rewards)) for row in rows] for _, rows in players.values()]
    step.metrics |= {
        "white": mean(gains["white"]),
        "drawn": mean([float(gain == 0) for gain in gains["white"]]),
        "turns": mean([white + black for white, black in zip(*turns, strict=True)]),
    }
    return step
