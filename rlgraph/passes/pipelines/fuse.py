"""A schedule in which pipelines fill each other's bubbles: short, and of those that are one with little memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from rlgraph.passes.pipelines import exact
from rlgraph.passes.pipelines.bounds import least_seconds, serial_memory, serial_seconds
from rlgraph.passes.pipelines.dispatch import Dispatched, by_rule
from rlgraph.passes.pipelines.problem import Problem
from rlgraph.passes.pipelines.published import in_turn
from rlgraph.passes.pipelines.timetable import Lists, timetable

SMALL = 1500
"""Forwards and backwards of a problem, on all stages, that constraints are given from the start."""

PACE = 100_000
"""Forwards and backwards that rules put into lists with a unit of work."""


@dataclass(frozen=True, slots=True)
class Fused:
    lists: Lists
    makespan: float
    """Seconds."""
    peak: float
    """Of the fullest stage."""
    bound: float
    """Seconds that no schedule can beat."""
    serial: float
    """Seconds of one model after the other, each by 1F1B."""
    serial_peak: float
    """Of the fullest stage then."""
    in_turn: float
    """Seconds of one model after the other, each by what is published for its chunks and halves."""
    in_turn_peak: float
    """Of the fullest stage then."""


def fused(problem: Problem, work: float = 10.0, within: float = 0.01, seed: int = 0) -> Fused | None:
    """Searches with so much work at most, of which a unit takes about a second of an idle core; None where nothing was
    found that keeps to the capacity. Work is counted, and no seconds: one problem has one list on every machine.

    Of schedules that are at most `within` longer than the shortest one, the one that needs the least memory. The search
    ends sooner where a schedule is as short as any can be, and needs no more memory than one model after the other.
    """
    bound, spare = least_seconds(problem), serial_memory(problem)
    best: Dispatched | None = None
    left, rule_work = work, problem.work / PACE

    def perfect() -> bool:
        return best is not None and best.makespan <= bound * (1 + 1e-9) and best.peak <= spare * (1 + 1e-9)

    def better(found: Dispatched | None) -> bool:
        nonlocal best
        if found is None or (best and _rank(found, shortest) > _rank(best, shortest)):
            return False
        best = found
        return True

    def until(rest: float) -> Callable[[], bool]:
        """Whether no rule is tried any more: so much work is left."""

        def over() -> bool:
            nonlocal left
            if perfect() or left < rest:
                return True
            left -= rule_work
            return False

        return over

    def constrained(
        asked: Problem, start: Lists | None, longest: float, memory: tuple[float, float] | None, most: float
    ) -> bool:
        """Whether constraints find something better."""
        nonlocal left
        least = shortest if asked is not problem else bound
        lists, taken = exact.by_constraints(asked, start, longest, least, memory, most)
        left -= taken
        return better(_dispatched(problem, lists))

    shortest = (1 + within) * bound
    # What is published of each model, one after the other.
    first = _dispatched(problem, in_turn(problem))
    assert first
    if first.peak <= problem.room * (1 + 1e-9):
        better(first)
    small = exact.installed() and problem.work <= SMALL
    draw, share = random.Random(seed), 0.1 if small else 0.5
    rule = by_rule(problem, spare, draw, better, until((1 - share) * work))
    if best and not small:
        # As short as that, with less memory.
        shortest = max(shortest, best.makespan)
        by_rule(problem, spare, draw, better, until(0.05 * work), rule)
    if exact.installed() and best is None:
        # Rules come to a stop where there is hardly room for one; one after the other there always is.
        one_by_one = sum(
            line.model.micro_batches * line.model.stages * (line.model.forward + line.model.backward)
            for line in problem.lines
        )
        constrained(problem, None, one_by_one, None, 0.5 * left)
    if best is None:
        return None
    if small and not perfect():
        # Where there is one as short as any, and no fuller than one model after the other, it is often found at once.
        tight = replace(problem, capacity=min(spare, problem.room))
        if not constrained(tight, None, shortest, None, 0.4 * left) and best.makespan > shortest:
            constrained(problem, best.lists, best.makespan, None, 0.6 * left)
        shortest = max(shortest, (1 + within) * best.makespan)
    if exact.installed() and best.peak > spare and problem.capacity is None and left > 0.1:
        constrained(problem, best.lists, max(shortest, best.makespan), (spare, best.peak), left)
    return Fused(
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
def drawn(problem: Problem) -> Lists:
    """Of a number of rules, the schedule that is shortest and, of those within 1% of the shortest possible one, needs
    the least memory: the same one wherever it is asked for."""
    shortest, spare = 1.01 * least_seconds(problem), serial_memory(problem)
    best: Dispatched | None = None
    left = max(20, 20_000 // problem.work)

    def better(found: Dispatched) -> bool:
        nonlocal best
        if best and _rank(found, shortest) >= _rank(best, shortest):
            return False
        best = found
        return True

    def over() -> bool:
        nonlocal left
        left -= 1
        return left < 0 or (best is not None and best.makespan <= shortest and best.peak <= spare * (1 + 1e-9))

    by_rule(problem, spare, random.Random(0), better, over)
    assert best, "without a capacity every rule comes to an end"
    return best.lists


def _rank(found: Dispatched, shortest: float) -> tuple[float, float, float]:
    """The lesser the better. shortest: seconds below which memory counts for more."""
    return max(found.makespan, shortest), found.peak, found.makespan


def _dispatched(problem: Problem, lists: Lists | None) -> Dispatched | None:
    if lists is None:
        return None
    found = timetable(problem, lists)
    return Dispatched(found.makespan, max(found.peaks), lists)
