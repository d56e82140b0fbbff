"""Schedules by rule: whoever is free takes what is most urgent. What is urgent is drawn at random, and what did well is
drawn from again.

The rule is list scheduling. A backward frees memory, and a micro-batch that is far from its end has others behind it:
how much either counts, and how many micro-batches each model may have in flight, are the numbers that are drawn.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from rlgraph.passes.pipelines.problem import Problem
from rlgraph.passes.pipelines.timetable import Entry, Lists

_BACK, _AHEAD, _WEIGHTS = range(3)
_NEVER = 1e30
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Rule:
    urgency: tuple[tuple[float, float], ...]
    """Seconds that each model's forwards and backwards are put off, beyond what is still to come of their
    micro-batch."""
    behind: float
    """How much those behind it count."""
    ahead: tuple[int, ...]
    """Micro-batches of each model that may be in flight beyond those of 1F1B."""
    noise: float
    """Seconds."""
    memory: float
    """Of a stage."""
    weights: tuple[float, ...] = ()
    """Seconds that gradients of each model's weights are put off, where they are apart; if it is not said, until
    nothing else can be done."""

    def late(self, model: int) -> float:
        return self.weights[model] if self.weights else _NEVER


@dataclass(frozen=True, slots=True)
class Dispatched:
    makespan: float
    peak: float
    lists: Lists


def dispatched(problem: Problem, rule: Rule, draw: random.Random) -> Dispatched | None:
    """What comes out; None where it comes to a stop, since nobody has room for what would free some."""
    kinds = [problem.models.index(line.model) for line in problem.lines]
    paths = [line.path for line in problem.lines]
    # Backward, forward, and the gradients of weights where they are apart, each with its seconds.
    does: list[list[tuple[Entry, float]]] = []
    here: list[list[tuple[int, int, list[int], float, float, float | None, float, float, int, int]]]
    here = [[] for _ in range(problem.stages)]
    state: list[list[list[int]]] = []
    """Of each line, along its path: forwards that came, backwards that came, forwards, backwards and gradients of
    weights begun."""
    for number, line in enumerate(problem.lines):
        model, (forward, backward) = line.model, rule.urgency[kinds[number]]
        goes, returns, *apart = model.parts
        ahead_s, back_s = model.seconds(goes), model.seconds(returns)
        last, each = len(paths[number]) - 1, (ahead_s + back_s) * rule.behind
        state.append([[0 if at else model.micro_batches, 0, 0, 0, 0] for at in range(last + 1)])
        for at, stage in enumerate(paths[number]):
            left = (last - at) * ahead_s + (last + 1) * back_s
            most = min(model.micro_batches, last + 1 - at + rule.ahead[kinds[number]])
            # Those behind a micro-batch are fewer, the later it comes.
            behind = (model.micro_batches - 1) * each
            first, again = (put_off - path - behind for put_off, path in ((forward, left), (backward, at * back_s)))
            weights = rule.late(kinds[number]) - behind if apart else None
            parts = (returns, goes, *apart)
            does.append([(Entry(number, part, at // model.stages), model.seconds(part)) for part in parts])
            own = state[number][at]
            memory = model.memory / model.chunks
            here[stage].append((number, at, own, first, again, weights, each, memory, most, len(does) - 1))
    lists: list[list[Entry]] = [[] for _ in here]
    held, peaks, busy = [0.0] * len(here), [0.0] * len(here), [False] * len(here)
    events: list[tuple[float, int, int, int, int, int]] = []
    now, count, room, noise, drawn = 0.0, 0, rule.memory * (1 + 1e-9), rule.noise, draw.random
    free: Iterable[int] = range(len(here))
    while True:
        for stage in free:
            if busy[stage]:
                continue
            best, chosen, what = math.inf, None, _BACK
            for entry in here[stage]:
                _, _, (ahead, back, gone, returned, weighted), first, again, weights, each, memory, most, _ = entry
                if returned < back:
                    value = again + returned * each + (drawn() * noise if noise else 0.0)
                    if value < best:
                        best, chosen, what = value, entry, _BACK
                if gone < ahead and gone - returned < most and held[stage] + memory <= room:
                    value = first + gone * each + (drawn() * noise if noise else 0.0)
                    if value < best:
                        best, chosen, what = value, entry, _AHEAD
                if weights is not None and weighted < returned:
                    value = weights + weighted * each + (drawn() * noise if noise else 0.0)
                    if value < best:
                        best, chosen, what = value, entry, _WEIGHTS
            if chosen is None:
                continue
            number, at, own, _, _, weights, _, memory, _, line_part = chosen
            entry_done, seconds = does[line_part][what]
            if what == _AHEAD:
                own[2] += 1
                held[stage] += memory
                peaks[stage] = max(peaks[stage], held[stage])
            else:
                own[3 if what == _BACK else 4] += 1
                if what == _WEIGHTS or weights is None:
                    held[stage] -= memory
            lists[stage].append(entry_done)
            busy[stage], count = True, count + 1
            heapq.heappush(events, (now + seconds, count, stage, number, at, what))
        if not events:
            break
        now, ended = events[0][0], set[int]()
        while events and events[0][0] == now:
            _, _, stage, number, at, what = heapq.heappop(events)
            busy[stage] = False
            ended.add(stage)
            stages = paths[number]
            if what == _WEIGHTS:
                continue
            if what == _BACK and at:
                state[number][at - 1][1] += 1
                ended.add(stages[at - 1])
            elif what == _AHEAD and at + 1 < len(stages):
                state[number][at + 1][0] += 1
                ended.add(stages[at + 1])
            elif what == _AHEAD:
                state[number][at][1] += 1
        free = sorted(ended)
    if count < problem.work:
        return None
    return Dispatched(now, max(peaks), tuple(map(tuple, lists)))


def by_rule(
    problem: Problem,
    memory: float,
    draw: random.Random,
    better: Callable[[Dispatched], bool],
    over: Callable[[], bool],
    kept: Rule | None = None,
) -> Rule | None:
    """Tries rules until it is `over`, first plain ones, or beginning near the one that is `kept`; whether what one
    makes is to be drawn from `better` says. memory: of a stage, what is drawn around. The rule that did best."""
    first = plain(problem, memory) if kept is None else iter(())
    while not over():
        rule = next(first, None)
        if rule is None:
            rule = _fresh(problem, memory, draw) if kept is None or draw.random() < 0.15 else _near(problem, kept, draw)
        found = dispatched(problem, rule, draw)
        if found and better(found):
            kept = rule
    return kept


def plain(problem: Problem, memory: float) -> Iterator[Rule]:
    """Those without anything drawn: what has most to come is most urgent. Two models that are alike, in opposite
    directions, come to the bound so, with half as many micro-batches again in flight as one after the other."""
    stages = problem.stages
    for ahead in sorted({0, 1, stages // 4, stages // 2}, reverse=True):
        for room in (math.inf, 1.5, 1.25, 1.0):
            alike = ((0.0, 0.0),) * len(problem.models), (ahead,) * len(problem.models)
            yield Rule(alike[0], 1.0, alike[1], 0.0, min(room * memory, problem.room))


def urgent(problem: Problem) -> Iterator[Rule]:
    """A few more without anything drawn, by which two models with few micro-batches often come to the bound: the
    backwards of every other model and the forwards of those between go before all else; the first model does; the
    forwards of those with the smallest micro-batches do."""
    soon, count = -2 * _spread(problem), len(problem.models)
    small = min(model.forward for model in problem.models)
    turns = tuple((soon, 0.0) if number % 2 else (0.0, soon) for number in range(count))
    first = ((soon, soon), *((0.0, 0.0) for _ in range(1, count)))
    least = tuple((soon if model.forward == small else 0.0, 0.0) for model in problem.models)
    for urgency, ahead in ((turns, 0), (turns, 1), (first, 0), (least, problem.stages)):
        yield Rule(urgency, 1.0, (ahead,) * count, 0.0, math.inf)


_MORE, _BEHIND, _NOISE, _ROOM = (0, 0, 1, 2, 4, 8), (0.25, 0.5, 1.0), (0.0, 0.0, 0.25, 1.0), (1, 1, 1.05, 1.1, 1.5, 2)


def _spread(problem: Problem) -> float:
    return max(model.forward + model.backward for model in problem.models) * problem.stages / 2


def _fresh(problem: Problem, memory: float, draw: random.Random) -> Rule:
    spread, longest = _spread(problem), max(model.forward for model in problem.models)
    return Rule(
        tuple((draw.gauss(0, spread), draw.gauss(0, spread)) for _ in problem.models),
        draw.choice(_BEHIND),
        tuple(draw.choice(_MORE) for _ in problem.models),
        draw.choice(_NOISE) * longest,
        _room(problem, memory, draw),
        _weights(problem, spread, draw),
    )


def _weights(problem: Problem, spread: float, draw: random.Random) -> tuple[float, ...]:
    if not any(model.weight for model in problem.models) or draw.random() < 0.5:
        return ()
    return tuple(draw.gauss(0, spread) for _ in problem.models)


def _room(problem: Problem, memory: float, draw: random.Random) -> float:
    return min(draw.choice(_ROOM) * memory, problem.room)


def _near(problem: Problem, rule: Rule, draw: random.Random) -> Rule:
    """The same with one number changed."""
    which, model = draw.random(), draw.randrange(len(problem.models))
    if which < 0.6:
        urgency = [list(each) for each in rule.urgency]
        urgency[model][draw.randrange(2)] += draw.gauss(0, _spread(problem) * draw.choice((0.03, 0.1, 0.3)))
        return replace(rule, urgency=tuple((forward, backward) for forward, backward in urgency))
    if which > 0.9:
        share = draw.choice((0.85, 0.93, 0.97, 1.05))
        least = max(each.memory for each in problem.models)
        return replace(rule, memory=max(least, min(share * rule.memory, problem.room)))
    fresh = _fresh(problem, rule.memory, draw)
    if which < 0.7:
        return replace(rule, ahead=(*rule.ahead[:model], fresh.ahead[model], *rule.ahead[model + 1 :]))
    if fresh.weights != rule.weights and draw.random() < 0.5:
        return replace(rule, weights=fresh.weights)
    return replace(rule, behind=fresh.behind) if which < 0.8 else replace(rule, noise=fresh.noise)
