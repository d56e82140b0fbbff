"""The bounds that count memory, beside all choices of options and beside brute force."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from operator import mul
from typing import cast

import pytest

import rlgraph
from rlgraph.passes.placement.search.candidates import Candidates
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.pool_knapsack import PoolKnapsack
from rlgraph.passes.placement.search.search import Search
from tests.passes.placement.test_choose import ALGORITHMS
from tests.passes.placement.test_memory_fit import narrowed
from tests.passes.placement.test_search import brute, random_case
from tests.suites import few

pytestmark = pytest.mark.usefixtures("slow_rows")

ROOM = 10.0


@dataclass(frozen=True, eq=False)
class Made:
    """What a knapsack asks of an option."""

    seconds: tuple[float, ...]
    resident: float
    active: tuple[float, ...]


Classes = Mapping[int, Sequence[Made]]


def random_classes(seed: int) -> dict[int, list[Made]]:
    """Options of three components: those that keep more bytes are faster."""
    draw = random.Random(seed)

    def option(resident: float) -> Made:
        seconds = (draw.uniform(1, 3) + 8 / (1 + resident), draw.random())
        return Made(seconds, resident, (draw.uniform(0, 4), draw.random()))

    return {number: [option(draw.uniform(0, 8)) for _ in range(draw.randint(1, 7))] for number in range(3)}


def taken(made: Made, shares: Sequence[float]) -> float:
    """The seconds that count."""
    return float(sum(map(mul, made.seconds, shares)))


def least(classes: Classes, counted: Mapping[int, Sequence[float]]) -> float:
    """The least seconds of all choices that fit."""
    totals = [
        sum(taken(made, counted[number]) for number, made in enumerate(chosen))
        for chosen in product(*classes.values())
        if sum(made.resident for made in chosen) + max(max(made.active) for made in chosen) <= ROOM
    ]
    return min(totals, default=inf)


def candidates(classes: Classes) -> dict[int, Candidates]:
    return {number: Candidates(cast(Sequence[Option], options)) for number, options in classes.items()}


@pytest.mark.parametrize("enough", [inf, 9.0])
def test_no_choice_takes_less_than_its_bound(enough: float) -> None:
    tight = 0
    for seed in range(60):
        classes = random_classes(seed)
        counted = {0: (1.0, 1.0), 1: (1.0, 0.0), 2: (1.0, 1.0)}
        whole = candidates(classes)
        knapsack, best = PoolKnapsack(whole, counted, ROOM, enough), least(classes, counted)
        assert knapsack.seconds <= best
        for number, options in classes.items():
            for index, option in enumerate(options):
                part = classes | {number: [option]}
                fixed = least(part, counted)
                assert knapsack.least_seconds(candidates(part)) <= fixed
                assert knapsack.least_seconds_with(number, whole)[index] <= fixed
        apart = sum(min(taken(made, counted[number]) for made in options) for number, options in classes.items())
        tight += knapsack.seconds > 1.01 * apart and best < inf
    # Without counting memory none would be above the sum.
    assert tight > 20


def test_what_does_not_fit_has_no_bound_below_infinity() -> None:
    classes = {0: [Made((1.0,), 6.0, (0.0,))], 1: [Made((1.0,), 3.0, (2.0,))]}
    knapsack = PoolKnapsack(candidates(classes), {0: (1.0,), 1: (1.0,)}, ROOM, inf)
    assert knapsack.seconds == inf
    assert knapsack.least_seconds(candidates(classes)) == inf


@pytest.mark.parametrize("seed", few(range(60), 20, 22, 26, 28))
@pytest.mark.parametrize(("share", "offload"), [(0.9, True), (0.8, False)])
def test_no_plan_is_better_where_memory_is_tight(seed: int, share: float, offload: bool) -> None:
    case = narrowed(random_case(seed), share, offload)
    found = Search(case.problem, case.candidates, 0.0).run()
    assert (found.value if found else inf) == pytest.approx(min(brute(case).values()))


def test_the_gap_of_a_full_pool_is_closed() -> None:
    """Six models with 7B on a node, some of which sleep: bounds that do not count memory leave 5%."""
    compiled = rlgraph.compile(
        ALGORITHMS / "archer.rlf", {"base": '"Qwen/Qwen2.5-7B-Instruct"'}, cluster="1x8:h100-80gb"
    )
    assert compiled.choice.search_result.gap < 1e-6
