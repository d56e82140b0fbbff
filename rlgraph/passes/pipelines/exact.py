"""Schedules by constraint programming: CP-SAT of OR-Tools (Apache-2.0), where it is installed. It proves optimality
where it can.

A line's micro-batches keep their order on every stage, since all of them are alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

from rlgraph.passes.pipelines.problem import PipelineProblem
from rlgraph.passes.pipelines.timetable import Lists, ScheduleEntry, compute_timetable

TICKS = 1 << 24
"""The longest schedule has at most this many ticks: durations that are no multiples of a tick are rounded up."""


def solver_installed() -> bool:
    """Return whether OR-Tools is installed."""
    return find_spec("ortools") is not None


def solve_with_cp_sat(
    problem: PipelineProblem,
    start: Lists | None,
    within: float,
    least: float,
    memory: tuple[float, float] | None,
    work: float,
) -> tuple[Lists | None, float]:
    """Return a schedule that takes at most `within` seconds and is as short as possible, but no shorter than `least`;
    or, with `memory`, one that needs as little as possible between these two amounts. None where none was found with so
    much `work`. Also return the work that it took.

    start: a schedule to begin with. Work is counted by the solver and not by the clock: on a busy machine the result is
    the same, only later.
    """
    from ortools.sat.python import cp_model

    tick, unit = _unit([m.part_seconds(part) for m in problem.models for part in m.micro_batch_parts], within), 1.0
    most = memory[1] if memory else problem.capacity
    if most is not None:
        unit = _unit([trained.memory / trained.chunks for trained in problem.models if trained.memory] or [1.0], most)
    model, horizon = cp_model.CpModel(), math.floor(within / tick * (1 + 1e-12))
    stages: list[list[Any]] = [[] for _ in range(problem.stage_count)]
    held_intervals: list[list[tuple[Any, int]]] = [[] for _ in range(problem.stage_count)]
    entries: list[list[tuple[Any, ScheduleEntry]]] = [[] for _ in range(problem.stage_count)]
    ends = []
    hints = _times(problem, start) if start else {}
    for number, line in enumerate(problem.replicas):
        trained = line.model
        forward, backward, weight = (
            math.ceil(trained.part_seconds(kind) / tick * (1 - 1e-12)) for kind in ("F", "I", "W")
        )
        goes, returns, *later = trained.micro_batch_parts
        amount = math.ceil(trained.memory / trained.chunks / unit * (1 - 1e-12))
        previous: list[tuple[Any, ...]] = []
        for micro in range(trained.micro_batches):
            micro_batch: list[tuple[Any, ...]] = []
            for position, stage in enumerate(line.forward_path):
                chunk = position // trained.stages
                variables: list[Any] = []
                for part, duration in ((goes, forward), (returns, backward), *((part, weight) for part in later)):
                    variable, entry = (
                        model.new_int_var(0, max(0, horizon - duration), ""),
                        ScheduleEntry(number, part, chunk),
                    )
                    if hints:
                        model.add_hint(variable, min(horizon, round(hints[stage, entry][micro] / tick)))
                    entries[stage].append((variable, entry))
                    stages[stage].append(model.new_fixed_size_interval_var(variable, duration, ""))
                    if previous:
                        model.add(previous[position][len(variables)] + duration <= variable)
                    variables.append(variable)
                ahead, back, *_ = variables
                if position:
                    model.add(micro_batch[-1][0] + forward <= ahead)
                    model.add(back + backward <= micro_batch[-1][1])
                if later:
                    model.add(back + backward <= variables[2])
                end = variables[2] + weight if later else back + backward
                if amount and (memory is not None or problem.capacity is not None):
                    size = model.new_int_var(0, horizon, "")
                    held_intervals[stage].append((model.new_interval_var(ahead, size, end, ""), amount))
                micro_batch.append(tuple(variables))
            model.add(micro_batch[-1][0] + forward <= micro_batch[-1][1])
            previous = micro_batch
        ends += [each_end[2] + weight for each_end in previous] if later else [previous[0][1] + backward]
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
        for held in held_intervals:
            model.add_cumulative([interval for interval, _ in held], [amount for _, amount in held], room)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = max(0.05, work)
    # Its strategies take turns: in parallel, which of them is the first to find something would depend on the threads.
    solver.parameters.num_workers = 2
    solver.parameters.interleave_search = True
    # It would replace Python's handler of Ctrl-C by the system's, which ends the process before a run is saved.
    solver.parameters.catch_sigint_signal = False
    status, taken = solver.solve(model), solver.response_proto.deterministic_time
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, taken
    return tuple(tuple(entry for _, entry in sorted(_timed(solver, on_stage))) for on_stage in entries), taken


def _times(problem: PipelineProblem, lists: Lists) -> dict[tuple[int, ScheduleEntry], list[float]]:
    """Return for each stage and kind of entry the times at which the micro-batches begin."""
    begins: dict[tuple[int, ScheduleEntry], list[float]] = {}
    for stage, (entries, starts) in enumerate(zip(lists, compute_timetable(problem, lists).starts, strict=True)):
        for entry, start in zip(entries, starts, strict=True):
            begins.setdefault((stage, entry), []).append(start)
    return begins


def _timed(solver: Any, entries: Sequence[tuple[Any, ScheduleEntry]]) -> list[tuple[int, ScheduleEntry]]:
    """Return the entries with the start times that the solver found."""
    return [(solver.value(variable), entry) for variable, entry in entries]


def _unit(amounts: Sequence[float], most: float) -> float:
    """Return the largest number that divides all amounts, or `most / TICKS` where that is larger."""
    exact = [Fraction(str(amount)) for amount in amounts]
    denominator = math.lcm(*(fraction.denominator for fraction in exact))
    unit = math.gcd(*(int(fraction * denominator) for fraction in exact)) / denominator
    return unit if most / unit <= TICKS else most / TICKS
