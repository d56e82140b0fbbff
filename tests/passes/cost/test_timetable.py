"""When the tasks of a step start, and that no timetable beats the bound: on random graphs, beside a simulation in small
steps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rlgraph.passes.cost.timetable import (
    Pools,
    TaskOrder,
    makespan,
    pool_task_chains,
    start_times,
    step_seconds_lower_bound,
)
from tests.suites import few

POOLS = 3
SEEDS = few(range(300), *range(40))


def random_order(seed: int) -> tuple[TaskOrder, list[float], Pools]:
    """A random graph of up to nine tasks with whole seconds, some of which need two pools, or take no time."""
    dice = random.Random(seed)
    count = dice.randint(1, 9)
    after = [sorted(dice.sample(range(number), dice.randint(0, min(number, 2)))) for number in range(count)]
    seconds = [float(dice.choice((0, 1, 1, 2, 3, 5, 8))) for _ in range(count)]
    pools = [tuple(sorted(dice.sample(range(POOLS), dice.choice((1, 1, 1, 2))))) for _ in range(count)]
    return TaskOrder.from_dependencies(after), seconds, pools


def simulated(order: TaskOrder, seconds: list[float], pools: Pools) -> list[float]:
    """The starts by a clock that goes on second by second: at each, those that asked first take their pools. A task
    asks once all that it waits for is done, and those that asked later do not overtake it on a pool that it waits
    for."""
    count = len(seconds)
    started: dict[int, float] = {}
    asked: dict[int, float] = {}
    clock = 0.0
    while len(started) < count:
        changed = True
        while changed:
            changed = False
            done = {number for number, at in started.items() if at + seconds[number] <= clock}
            for number in range(count):
                if number not in asked and done.issuperset(order.after[number]):
                    asked[number], changed = clock, True
            blocked = {pool for number, at in started.items() if at + seconds[number] > clock for pool in pools[number]}
            for number in sorted(asked.keys() - started.keys(), key=lambda each: (asked[each], each)):
                if blocked.isdisjoint(pools[number]):
                    started[number], changed = clock, True
                    break
                blocked |= set(pools[number])
        clock += 1
    return [started[number] for number in range(count)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_timetable_can_be_kept(seed: int) -> None:
    order, seconds, pools = random_order(seed)
    found = start_times(order, seconds, pools)
    ends = [start + length for start, length in zip(found, seconds, strict=True)]
    for number, others in enumerate(order.after):
        assert all(found[number] >= ends[other] for other in others)
    for pool in range(POOLS):
        turns = sorted((found[number], ends[number]) for number, own in enumerate(pools) if pool in own)
        assert all(later >= end for (_, end), (later, _) in zip(turns, turns[1:], strict=False))
    assert makespan(order, seconds, pools) == max(ends)


@pytest.mark.parametrize("seed", SEEDS)
def test_pools_serve_in_the_order_of_asking(seed: int) -> None:
    order, seconds, pools = random_order(seed)
    assert start_times(order, seconds, pools) == simulated(order, seconds, pools)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_timetable_beats_the_bound(seed: int) -> None:
    order, seconds, pools = random_order(seed)
    least = step_seconds_lower_bound(order, seconds, pool_task_chains(order, pools, POOLS))
    assert least <= makespan(order, seconds, pools)
    longest = 0.0
    ends: list[float] = []
    for number, length in enumerate(seconds):
        ends.append(max((ends[other] for other in order.after[number]), default=0.0) + length)
        longest = max(longest, ends[-1])
    busiest = max(sum(seconds[number] for number, own in enumerate(pools) if pool in own) for pool in range(POOLS))
    assert least >= max(longest, busiest)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bound_does_not_fall_when_a_task_takes_longer(seed: int) -> None:
    order, seconds, pools = random_order(seed)
    chained = pool_task_chains(order, pools, POOLS)
    before = step_seconds_lower_bound(order, seconds, chained)
    for number in range(len(seconds)):
        longer = [length + 2 * (at == number) for at, length in enumerate(seconds)]
        assert step_seconds_lower_bound(order, longer, chained) >= before


@pytest.mark.parametrize("seed", SEEDS)
def test_what_pools_serve_first_is_known_before(seed: int) -> None:
    """For whatever tasks take that take any time; also where some let others go first that ask at the same time."""
    order, some, pools = random_order(seed)
    dice = random.Random(-seed)
    order = replace(order, late=frozenset(number for number in range(len(some)) if dice.random() < seed % 2 / 3))
    served = order.with_pool_order(pools, [length > 0 for length in some])
    for _ in range(5):
        seconds = [length and float(dice.randint(1, 9)) for length in some]
        found = start_times(order, seconds, pools)
        for number, others in enumerate(served.after):
            assert all(found[number] >= found[other] + seconds[other] for other in others)
        least = step_seconds_lower_bound(served, seconds, pool_task_chains(served, pools, POOLS))
        assert (
            step_seconds_lower_bound(order, seconds, pool_task_chains(order, pools, POOLS))
            <= least
            <= makespan(order, seconds, pools)
        )


def test_a_report_that_asked_first_is_done_first() -> None:
    """A score of 5 s after a rollout, then what needs the score; a report on the rollout is served before that."""
    order, seconds, pools = (
        TaskOrder.from_dependencies([[], [0], [1], [0]]),
        [1.0, 5.0, 1.0, 3.0],
        [(0,), (1,), (1,), (1,)],
    )
    served = order.with_pool_order(pools, [True] * 4)
    assert served.after == ((), (0,), (1, 3), (0, 1))
    assert step_seconds_lower_bound(served, seconds, pool_task_chains(served, pools, 2)) == makespan(
        order, seconds, pools
    )


def test_a_step_of_nothing_takes_no_time() -> None:
    assert makespan(TaskOrder.from_dependencies([]), [], []) == 0
    assert (
        step_seconds_lower_bound(
            TaskOrder.from_dependencies([]), [], pool_task_chains(TaskOrder.from_dependencies([]), [], 2)
        )
        == 0
    )
