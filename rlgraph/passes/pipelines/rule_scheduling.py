"""List scheduling by rules: a free stage takes the most urgent work. Rules are drawn at random, and those that did well
are varied further.

A backward frees memory, and a micro-batch that is far from its end has others behind it: how much either counts, and
how many micro-batches each model may have in flight, are the numbers of a rule that are drawn.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from rlgraph.passes.pipelines.problem import PipelineProblem
from rlgraph.passes.pipelines.timetable import Lists, ScheduleEntry

_BACK, _AHEAD, _WEIGHTS = range(3)
_NEVER = 1e30
"""Seconds."""


@dataclass(frozen=True, slots=True)
class DispatchRule:
    """The numbers that decide which work of a stage is the most urgent."""

    urgency: tuple[tuple[float, float], ...]
    """For each model the seconds by which its forwards and its backwards are put off, beyond what is still to come of
    their micro-batch."""
    behind: float
    """How much the micro-batches behind one count."""
    ahead: tuple[int, ...]
    """For each model the micro-batches that may be in flight beyond those of 1F1B."""
    noise: float
    """Seconds of the random part of urgency."""
    memory: float
    """The memory of a stage."""
    weights: tuple[float, ...] = ()
    """Seconds that the gradients of each model's weights are put off, where they are separate; if empty, until nothing
    else can be done."""

    def weight_gradient_delay_seconds(self, model: int) -> float:
        """Return the seconds by which the gradients of a model's weights are put off."""
        return self.weights[model] if self.weights else _NEVER


@dataclass(frozen=True, slots=True)
class RuleSchedule:
    """A schedule that a rule made, with its seconds and the memory of its fullest stage."""

    makespan: float
    peak: float
    lists: Lists


def schedule_by_rule(problem: PipelineProblem, rule: DispatchRule, draw: random.Random) -> RuleSchedule | None:
    """Return the schedule that a rule makes; None where it gets stuck because no stage has memory for the work that
    would free some."""
    model_numbers = [problem.models.index(line.model) for line in problem.replicas]
    paths = [line.forward_path for line in problem.replicas]
    # Backward, forward, and the gradients of weights where they are separate, each with its seconds.
    actions: list[list[tuple[ScheduleEntry, float]]] = []
    candidates: list[list[tuple[int, int, list[int], float, float, float | None, float, float, int, int]]]
    candidates = [[] for _ in range(problem.stage_count)]
    state: list[list[list[int]]] = []
    """For each line, along its path: forwards that came, backwards that came, and forwards, backwards and gradients of
    weights that were begun."""
    for number, line in enumerate(problem.replicas):
        model, (forward, backward) = line.model, rule.urgency[model_numbers[number]]
        goes, returns, *apart = model.micro_batch_parts
        ahead_s, back_s = model.part_seconds(goes), model.part_seconds(returns)
        last, delay = len(paths[number]) - 1, (ahead_s + back_s) * rule.behind
        state.append([[0 if at else model.micro_batches, 0, 0, 0, 0] for at in range(last + 1)])
        for at, stage in enumerate(paths[number]):
            left = (last - at) * ahead_s + (last + 1) * back_s
            most = min(model.micro_batches, last + 1 - at + rule.ahead[model_numbers[number]])
            # The later a micro-batch comes, the fewer are behind it.
            behind = (model.micro_batches - 1) * delay
            f_base, b_base = (put_off - path - behind for put_off, path in ((forward, left), (backward, at * back_s)))
            weights = rule.weight_gradient_delay_seconds(model_numbers[number]) - behind if apart else None
            parts = (returns, goes, *apart)
            actions.append(
                [(ScheduleEntry(number, part, at // model.stages), model.part_seconds(part)) for part in parts]
            )
            counts = state[number][at]
            memory = model.memory / model.chunks
            candidates[stage].append(
                (number, at, counts, f_base, b_base, weights, delay, memory, most, len(actions) - 1)
            )
    lists: list[list[ScheduleEntry]] = [[] for _ in candidates]
    held, peaks, busy = [0.0] * len(candidates), [0.0] * len(candidates), [False] * len(candidates)
    events: list[tuple[float, int, int, int, int, int]] = []
    now, count, room, noise, uniform = 0.0, 0, rule.memory * (1 + 1e-9), rule.noise, draw.random
    free: Iterable[int] = range(len(candidates))
    while True:
        for stage in free:
            if busy[stage]:
                continue
            best, chosen, kind = math.inf, None, _BACK
            for entry in candidates[stage]:
                _, _, (ahead, back, gone, returned, weighted), f_base, b_base, weights, delay, memory, most, _ = entry
                if returned < back:
                    value = b_base + returned * delay + (uniform() * noise if noise else 0.0)
                    if value < best:
                        best, chosen, kind = value, entry, _BACK
                if gone < ahead and gone - returned < most and held[stage] + memory <= room:
                    value = f_base + gone * delay + (uniform() * noise if noise else 0.0)
                    if value < best:
                        best, chosen, kind = value, entry, _AHEAD
                if weights is not None and weighted < returned:
                    value = weights + weighted * delay + (uniform() * noise if noise else 0.0)
                    if value < best:
                        best, chosen, kind = value, entry, _WEIGHTS
            if chosen is None:
                continue
            number, at, counts, _, _, weights, _, memory, _, action = chosen
            entry_done, seconds = actions[action][kind]
            if kind == _AHEAD:
                counts[2] += 1
                held[stage] += memory
                peaks[stage] = max(peaks[stage], held[stage])
            else:
                counts[3 if kind == _BACK else 4] += 1
                if kind == _WEIGHTS or weights is None:
                    held[stage] -= memory
            lists[stage].append(entry_done)
            busy[stage], count = True, count + 1
            heapq.heappush(events, (now + seconds, count, stage, number, at, kind))
        if not events:
            break
        now, ended = events[0][0], set[int]()
        while events and events[0][0] == now:
            _, _, stage, number, at, kind = heapq.heappop(events)
            busy[stage] = False
            ended.add(stage)
            stages = paths[number]
            if kind == _WEIGHTS:
                continue
            if kind == _BACK and at:
                state[number][at - 1][1] += 1
                ended.add(stages[at - 1])
            elif kind == _AHEAD and at + 1 < len(stages):
                state[number][at + 1][0] += 1
                ended.add(stages[at + 1])
            elif kind == _AHEAD:
                state[number][at][1] += 1
        free = sorted(ended)
    if count < problem.forward_backward_count:
        return None
    return RuleSchedule(now, max(peaks), tuple(map(tuple, lists)))


def search_rules(
    problem: PipelineProblem,
    memory: float,
    draw: random.Random,
    better: Callable[[RuleSchedule], bool],
    over: Callable[[], bool],
    kept: DispatchRule | None = None,
) -> DispatchRule | None:
    """Try rules until `over()`, first the plain ones, or, where a rule is `kept`, rules near it, and return the rule
    that did best. `better` says whether a schedule is good enough to vary its rule. memory: that of a stage, around
    which memory is drawn."""
    first = deterministic_rules(problem, memory) if kept is None else iter(())
    while not over():
        rule = next(first, None)
        if rule is None:
            rule = _fresh(problem, memory, draw) if kept is None or draw.random() < 0.15 else _near(problem, kept, draw)
        schedule = schedule_by_rule(problem, rule, draw)
        if schedule and better(schedule):
            kept = rule
    return kept


def deterministic_rules(problem: PipelineProblem, memory: float) -> Iterator[DispatchRule]:
    """Yield the rules without random numbers, by which the micro-batch with most work to come is the most urgent. Two
    equal models in opposite directions reach the bound with them, with half as many micro-batches again in flight as
    one after the other."""
    stages = problem.stage_count
    for ahead in sorted({0, 1, stages // 4, stages // 2}, reverse=True):
        for room in (math.inf, 1.5, 1.25, 1.0):
            alike = ((0.0, 0.0),) * len(problem.models), (ahead,) * len(problem.models)
            yield DispatchRule(alike[0], 1.0, alike[1], 0.0, min(room * memory, problem.memory_capacity_or_inf))


def extra_deterministic_rules(problem: PipelineProblem) -> Iterator[DispatchRule]:
    """Yield a few more rules without random numbers, by which two models with few micro-batches often reach the bound.
    First come the backwards of every other model and the forwards of those between; or the first model; or the forwards
    of those with the smallest micro-batches."""
    soon, count = -2 * _spread(problem), len(problem.models)
    small = min(model.forward for model in problem.models)
    turns = tuple((soon, 0.0) if number % 2 else (0.0, soon) for number in range(count))
    first = ((soon, soon), *((0.0, 0.0) for _ in range(1, count)))
    least = tuple((soon if model.forward == small else 0.0, 0.0) for model in problem.models)
    for urgency, ahead in ((turns, 0), (turns, 1), (first, 0), (least, problem.stage_count)):
        yield DispatchRule(urgency, 1.0, (ahead,) * count, 0.0, math.inf)


_MORE, _BEHIND, _NOISE, _ROOM = (0, 0, 1, 2, 4, 8), (0.25, 0.5, 1.0), (0.0, 0.0, 0.25, 1.0), (1, 1, 1.05, 1.1, 1.5, 2)


def _spread(problem: PipelineProblem) -> float:
    return max(model.forward + model.backward for model in problem.models) * problem.stage_count / 2


def _fresh(problem: PipelineProblem, memory: float, draw: random.Random) -> DispatchRule:
    spread, longest = _spread(problem), max(model.forward for model in problem.models)
    return DispatchRule(
        tuple((draw.gauss(0, spread), draw.gauss(0, spread)) for _ in problem.models),
        draw.choice(_BEHIND),
        tuple(draw.choice(_MORE) for _ in problem.models),
        draw.choice(_NOISE) * longest,
        _room(problem, memory, draw),
        _weights(problem, spread, draw),
    )


def _weights(problem: PipelineProblem, spread: float, draw: random.Random) -> tuple[float, ...]:
    if not any(model.weight for model in problem.models) or draw.random() < 0.5:
        return ()
    return tuple(draw.gauss(0, spread) for _ in problem.models)


def _room(problem: PipelineProblem, memory: float, draw: random.Random) -> float:
    return min(draw.choice(_ROOM) * memory, problem.memory_capacity_or_inf)


def _near(problem: PipelineProblem, rule: DispatchRule, draw: random.Random) -> DispatchRule:
    """Return the rule with one number changed."""
    which, model = draw.random(), draw.randrange(len(problem.models))
    if which < 0.6:
        urgency = [list(pair) for pair in rule.urgency]
        urgency[model][draw.randrange(2)] += draw.gauss(0, _spread(problem) * draw.choice((0.03, 0.1, 0.3)))
        return replace(rule, urgency=tuple((forward, backward) for forward, backward in urgency))
    if which > 0.9:
        share = draw.choice((0.85, 0.93, 0.97, 1.05))
        least = max(other.memory for other in problem.models)
        return replace(rule, memory=max(least, min(share * rule.memory, problem.memory_capacity_or_inf)))
    fresh = _fresh(problem, rule.memory, draw)
    if which < 0.7:
        return replace(rule, ahead=(*rule.ahead[:model], fresh.ahead[model], *rule.ahead[model + 1 :]))
    if fresh.weights != rule.weights and draw.random() < 0.5:
        return replace(rule, weights=fresh.weights)
    return replace(rule, behind=fresh.behind) if which < 0.8 else replace(rule, noise=fresh.noise)
