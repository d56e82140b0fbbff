"""Searches for a schedule in which pipelines fill each other's bubbles: a short one and, of the short ones, one with
little memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from rlgraph.passes.pipelines import exact
from rlgraph.passes.pipelines.bounds import makespan_lower_bound, serial_peak_memory, serial_seconds
from rlgraph.passes.pipelines.messages import make_stage_programs
from rlgraph.passes.pipelines.problem import PipelineProblem
from rlgraph.passes.pipelines.published_schedules import serial_lists
from rlgraph.passes.pipelines.rule_scheduling import RuleSchedule, search_rules
from rlgraph.passes.pipelines.timetable import Lists, compute_timetable

SMALL = 1500
"""Problems of up to this many forwards and backwards, on all stages, are given to the constraint solver from the
start."""

PACE = 100_000
"""The forwards and backwards that rules put into lists with a unit of work."""


@dataclass(frozen=True, slots=True)
class FusedSchedule:
    """The schedule that was found, and what it is compared with."""

    lists: Lists
    makespan: float
    """Seconds."""
    peak: float
    """Memory of the fullest stage."""
    bound: float
    """Seconds that no schedule can beat."""
    serial: float
    """Seconds of one model after the other, each by 1F1B."""
    serial_peak: float
    """Memory of the fullest stage then."""
    published_seconds: float
    """Seconds of one model after the other, each by the published schedule for its chunks and halves."""
    published_peak: float
    """Memory of the fullest stage then."""


def search_schedule(
    problem: PipelineProblem, work: float = 10.0, within: float = 0.01, seed: int = 0
) -> FusedSchedule | None:
    """Return the best schedule found with at most so much work, of which a unit takes about a second of an idle core;
    None where none was found that keeps to the capacity. Work is counted, not seconds: a problem has the same lists on
    every machine. Its messages can be sent without a ring of stages that wait for each other.

    Of schedules that are at most `within` longer than the shortest one, it is the one that needs the least memory. The
    search ends early where a schedule is as short as any can be, and needs no more memory than one model after the
    other.
    """
    bound, spare = makespan_lower_bound(problem), serial_peak_memory(problem)
    best: RuleSchedule | None = None
    left, rule_work = work, problem.forward_backward_count / PACE

    def is_as_good_as_bounds() -> bool:
        return best is not None and best.makespan <= bound * (1 + 1e-9) and best.peak <= spare * (1 + 1e-9)

    def keep_if_better(schedule: RuleSchedule | None) -> bool:
        nonlocal best
        if schedule is None or (best and _rank(schedule, shortest) > _rank(best, shortest)):
            return False
        best = schedule
        return True

    def work_limit_check(rest: float) -> Callable[[], bool]:
        """Return a function that says whether to stop trying rules, because only the work `rest` is left."""

        def is_work_spent() -> bool:
            nonlocal left
            if is_as_good_as_bounds() or left < rest:
                return True
            left -= rule_work
            return False

        return is_work_spent

    def improve_with_solver(
        to_solve: PipelineProblem, start: Lists | None, longest: float, memory: tuple[float, float] | None, most: float
    ) -> bool:
        """Return whether the constraint solver finds something better."""
        nonlocal left
        least = shortest if to_solve is not problem else bound
        lists, taken = exact.solve_with_cp_sat(to_solve, start, longest, least, memory, most)
        left -= taken
        return keep_if_better(_dispatched(problem, lists))

    shortest = (1 + within) * bound
    # The published schedule of each model, one after the other.
    first = _dispatched(problem, serial_lists(problem))
    assert first
    if first.peak <= problem.memory_capacity_or_inf * (1 + 1e-9):
        keep_if_better(first)
    small = exact.solver_installed() and problem.forward_backward_count <= SMALL
    draw, share = random.Random(seed), 0.1 if small else 0.5
    rule = search_rules(problem, spare, draw, keep_if_better, work_limit_check((1 - share) * work))
    if best and not small:
        # Look for one as short as that with less memory.
        shortest = max(shortest, best.makespan)
        search_rules(problem, spare, draw, keep_if_better, work_limit_check(0.05 * work), rule)
    if exact.solver_installed() and best is None:
        # Rules get stuck where memory hardly suffices for one micro-batch; one after the other it always suffices.
        one_by_one = sum(
            line.model.micro_batches * line.model.stages * (line.model.forward + line.model.backward)
            for line in problem.replicas
        )
        improve_with_solver(problem, None, one_by_one, None, 0.5 * left)
    if best is None:
        return None
    if small and not is_as_good_as_bounds():
        # A schedule as short as any can be, that is no fuller than one model after the other, is often found at once.
        tight = replace(problem, capacity=min(spare, problem.memory_capacity_or_inf))
        if not improve_with_solver(tight, None, shortest, None, 0.4 * left) and best.makespan > shortest:
            improve_with_solver(problem, best.lists, best.makespan, None, 0.6 * left)
        shortest = max(shortest, (1 + within) * best.makespan)
    if exact.solver_installed() and best.peak > spare and problem.capacity is None and left > 0.1:
        improve_with_solver(problem, best.lists, max(shortest, best.makespan), (spare, best.peak), left)
    make_stage_programs(problem, best.lists)
    return FusedSchedule(
        best.lists,
        best.makespan,
        best.peak,
        bound,
        serial_seconds(problem),
        spare,
        first.makespan,
        first.peak,
    )


@lru_cache(maxsize=256)
def best_rule_schedule(problem: PipelineProblem) -> Lists:
    """Return, of a number of rules' schedules, the shortest one and, of those within 1% of the shortest possible one,
    the one with the least memory: it is the same wherever it is computed."""
    shortest, spare = 1.01 * makespan_lower_bound(problem), serial_peak_memory(problem)
    best: RuleSchedule | None = None
    left = max(20, 20_000 // problem.forward_backward_count)

    def keep_if_better(schedule: RuleSchedule) -> bool:
        nonlocal best
        if best and _rank(schedule, shortest) >= _rank(best, shortest):
            return False
        best = schedule
        return True

    def is_work_spent() -> bool:
        nonlocal left
        left -= 1
        return left < 0 or (best is not None and best.makespan <= shortest and best.peak <= spare * (1 + 1e-9))

    search_rules(problem, spare, random.Random(0), keep_if_better, is_work_spent)
    assert best, "without a capacity every rule comes to an end"
    return best.lists


def _rank(schedule: RuleSchedule, shortest: float) -> tuple[float, float, float]:
    """Return the sort key of a schedule, smaller is better. shortest: seconds below which memory counts for more."""
    return max(schedule.makespan, shortest), schedule.peak, schedule.makespan


def _dispatched(problem: PipelineProblem, lists: Lists | None) -> RuleSchedule | None:
    if lists is None:
        return None
    table = compute_timetable(problem, lists)
    return RuleSchedule(table.makespan, max(table.peaks), lists)
