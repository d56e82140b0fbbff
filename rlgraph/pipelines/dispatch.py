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

from rlgraph.pipelines.problem import Problem
from rlgraph.pipelines.timetable import Entry, Lists


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


@dataclass(frozen=True, slots=True)
class Dispatched:
    makespan: float
    peak: float
    lists: Lists


def dispatched(problem: Problem, rule: Rule, draw: random.Random) -> Dispatched | None:
    """What comes out; None where it comes to a stop, since nobody has room for what would free some."""
    kinds = [problem.models.index(line.model) for line in problem.lines]
    paths = [line.stages for line in problem.lines]
    here: list[list[tuple[int, int, list[int], float, float, float, float, float, float, int]]]
    here = [[] for _ in range(problem.stages)]
    state: list[list[list[int]]] = []
    """Of each line, for each of its stages: forwards that came, backwards that came, forwards and backwards begun."""
    for number, line in enumerate(problem.lines):
        model, (forward, backward) = line.model, rule.urgency[kinds[number]]
        last, each = len(line.stages) - 1, (model.forward + model.backward) * rule.behind
        state.append([[0 if at else model.micro_batches, 0, 0, 0] for at in range(last + 1)])
        for at, stage in enumerate(line.stages):
            left = (last - at) * model.forward + (last + 1) * model.backward
            most = min(model.micro_batches, last + 1 - at + rule.ahead[kinds[number]])
            # Those behind a micro-batch are fewer, the later it comes.
            first, again = (
                put_off - path - (model.micro_batches - 1) * each
                for put_off, path in ((forward, left), (backward, at * model.backward))
            )
            own = state[number][at]
            here[stage].append((number, at, own, first, again, each, model.forward, model.backward, model.memory, most))
    lists: list[list[Entry]] = [[] for _ in here]
    held, peaks, busy = [0.0] * len(here), [0.0] * len(here), [False] * len(here)
    events: list[tuple[float, int, int, int, int, bool]] = []
    now, count, room, noise, drawn = 0.0, 0, rule.memory * (1 + 1e-9), rule.noise, draw.random
    free: Iterable[int] = range(len(here))
    while True:
        for stage in free:
            if busy[stage]:
                continue
            best, chosen, goes_back = math.inf, None, False
            for entry in here[stage]:
                _, _, (ahead, back, gone, returned), first, again, each, _, _, memory, most = entry
                if returned < back:
                    value = again + returned * each + (drawn() * noise if noise else 0.0)
                    if value < best:
                        best, chosen, goes_back = value, entry, True
                if gone < ahead and gone - returned < most and held[stage] + memory <= room:
                    value = first + gone * each + (drawn() * noise if noise else 0.0)
                    if value < best:
                        best, chosen, goes_back = value, entry, False
            if chosen is None:
                continue
            number, at, own, _, _, _, forward, backward, memory, _ = chosen
            if goes_back:
                own[3] += 1
                held[stage] -= memory
            else:
                own[2] += 1
                held[stage] += memory
                peaks[stage] = max(peaks[stage], held[stage])
            lists[stage].append((number, goes_back))
            busy[stage], count = True, count + 1
            heapq.heappush(events, (now + (backward if goes_back else forward), count, stage, number, at, goes_back))
        if not events:
            break
        now, ended = events[0][0], set[int]()
        while events and events[0][0] == now:
            _, _, stage, number, at, goes_back = heapq.heappop(events)
            busy[stage] = False
            ended.add(stage)
            stages = paths[number]
            if goes_back and at:
                state[number][at - 1][1] += 1
                ended.add(stages[at - 1])
            elif not goes_back and at + 1 < len(stages):
                state[number][at + 1][0] += 1
                ended.add(stages[at + 1])
            elif not goes_back:
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


_AHEAD, _BEHIND, _NOISE, _ROOM = (0, 0, 1, 2, 4, 8), (0.25, 0.5, 1.0), (0.0, 0.0, 0.25, 1.0), (1, 1, 1.05, 1.1, 1.5, 2)


def _spread(problem: Problem) -> float:
    return max(model.forward + model.backward for model in problem.models) * problem.stages / 2


def _fresh(problem: Problem, memory: float, draw: random.Random) -> Rule:
    spread, longest = _spread(problem), max(model.forward for model in problem.models)
    return Rule(
        tuple((draw.gauss(0, spread), draw.gauss(0, spread)) for _ in problem.models),
        draw.choice(_BEHIND),
        tuple(draw.choice(_AHEAD) for _ in problem.models),
        draw.choice(_NOISE) * longest,
        _room(problem, memory, draw),
    )


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
    return replace(rule, behind=fresh.behind) if which < 0.8 else replace(rule, noise=fresh.noise)
