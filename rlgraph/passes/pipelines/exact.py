"""Schedules by constraints: CP-SAT of OR-Tools (Apache-2.0), where it is installed. It proves what it can.

A line's micro-batches keep their order on every stage, since all of them are alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

from rlgraph.passes.pipelines.problem import Problem
from rlgraph.passes.pipelines.timetable import Entry, Lists, timetable

TICKS = 1 << 24
"""Of the longest schedule, at most: durations that are no multiples of one are rounded up."""


def installed() -> bool:
    return find_spec("ortools") is not None


def by_constraints(
    problem: Problem,
    start: Lists | None,
    within: float,
    least: float,
    memory: tuple[float, float] | None,
    work: float,
) -> tuple[Lists | None, float]:
    """A schedule that ends `within` so many seconds, and is as short as possible, but no shorter than `least`; or, with
    `memory`, one that needs as little as possible between these two amounts.

    start: one that is known. None where nothing was found with so much work, which is counted by the solver and not by
    the clock: on a busy machine the same comes out, later. And the work that it took.
    """
    from ortools.sat.python import cp_model

    tick, unit = _unit([m.seconds(part) for m in problem.models for part in m.parts], within), 1.0
    most = memory[1] if memory else problem.capacity
    if most is not None:
        unit = _unit([each.memory / each.chunks for each in problem.models if each.memory] or [1.0], most)
    model, horizon = cp_model.CpModel(), math.floor(within / tick * (1 + 1e-12))
    stages: list[list[Any]] = [[] for _ in range(problem.stages)]
    kept: list[list[tuple[Any, int]]] = [[] for _ in range(problem.stages)]
    entries: list[list[tuple[Any, Entry]]] = [[] for _ in range(problem.stages)]
    ends = []
    known = _times(problem, start) if start else {}
    for number, line in enumerate(problem.lines):
        each = line.model
        forward, backward, weight = (math.ceil(each.seconds(x) / tick * (1 - 1e-12)) for x in ("F", "I", "W"))
        goes, returns, *later = each.parts
        amount = math.ceil(each.memory / each.chunks / unit * (1 - 1e-12))
        last: list[tuple[Any, ...]] = []
        for micro in range(each.micro_batches):
            made: list[tuple[Any, ...]] = []
            for at, stage in enumerate(line.path):
                chunk = at // each.stages
                own: list[Any] = []
                for part, long in ((goes, forward), (returns, backward), *((part, weight) for part in later)):
                    var, entry = model.new_int_var(0, max(0, horizon - long), ""), Entry(number, part, chunk)
                    if known:
                        model.add_hint(var, min(horizon, round(known[stage, entry][micro] / tick)))
                    entries[stage].append((var, entry))
                    stages[stage].append(model.new_fixed_size_interval_var(var, long, ""))
                    if last:
                        model.add(last[at][len(own)] + long <= var)
                    own.append(var)
                ahead, back, *_ = own
                if at:
                    model.add(made[-1][0] + forward <= ahead)
                    model.add(back + backward <= made[-1][1])
                if later:
                    model.add(back + backward <= own[2])
                end = own[2] + weight if later else back + backward
                if amount and (memory is not None or problem.capacity is not None):
                    size = model.new_int_var(0, horizon, "")
                    kept[stage].append((model.new_interval_var(ahead, size, end, ""), amount))
                made.append(tuple(own))
            model.add(made[-1][0] + forward <= made[-1][1])
            last = made
        ends += [each_end[2] + weight for each_end in last] if later else [last[0][1] + backward]
    for intervals in stages:
        model.add_no_overlap(intervals)
    room: Any
    if memory is not None:
        room = model.new_int_var(math.ceil(memory[0] / unit * (1 - 1e-12)), math.floor(memory[1] / unit), "")
        model.minimize(room)
    else:
        room = None if problem.capacity is None else math.floor(problem.capacity / unit * (1 + 1e-12))
        end = model.new_int_var(min(horizon, math.ceil(least / tick * (1 - 1e-12))), horizon, "")
        for each_end in ends:
            model.add(each_end <= end)
        model.minimize(end)
    if room is not None:
        for held in kept:
            model.add_cumulative([interval for interval, _ in held], [amount for _, amount in held], room)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = max(0.05, work)
    # Its strategies take turns: side by side it would depend on the threads which of them is the first to find
    # something.
    solver.parameters.num_workers = 2
    solver.parameters.interleave_search = True
    # It would take Ctrl-C from Python, and leave the system's way with it, which ends a run that is not saved.
    solver.parameters.catch_sigint_signal = False
    status, taken = solver.solve(model), solver.response_proto.deterministic_time
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, taken
    return tuple(tuple(entry for _, entry in sorted(_timed(solver, each))) for each in entries), taken


def _times(problem: Problem, lists: Lists) -> dict[tuple[int, Entry], list[float]]:
    """For each stage and what it does, when micro-batches begin."""
    found: dict[tuple[int, Entry], list[float]] = {}
    for stage, (own, starts) in enumerate(zip(lists, timetable(problem, lists).starts, strict=True)):
        for entry, start in zip(own, starts, strict=True):
            found.setdefault((stage, entry), []).append(start)
    return found


def _timed(solver: Any, entries: Sequence[tuple[Any, Entry]]) -> list[tuple[int, Entry]]:
    return [(solver.value(var), entry) for var, entry in entries]


def _unit(amounts: Sequence[float], most: float) -> float:
    """The largest number that divides all amounts, or the smallest of which `TICKS` make the most."""
    exact = [Fraction(str(amount)) for amount in amounts]
    below = math.lcm(*(each.denominator for each in exact))
    unit = math.gcd(*(int(each * below) for each in exact)) / below
    return unit if most / unit <= TICKS else most / TICKS
