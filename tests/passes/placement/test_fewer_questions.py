"""What a search does not ask twice, or not at all, and that its answers are the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from math import inf
from operator import le
from pathlib import Path
from random import Random
from typing import Any, cast
from weakref import WeakSet

import pytest

import rlgraph
from rlgraph.catalog.clusters.devices import known_devices
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.explain.variants import (
    ONE_STEP_OFF,
    possible_variants,
    with_device_kind,
    with_device_memory,
    with_lengths,
    with_network,
    with_node_count,
)
from rlgraph.ir.schedule import StreamLine
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.placement.choose import SPARE, PlacementChoice, choose_before_deadline, choose_placement
from rlgraph.passes.placement.known_answer import answer_with_less_room, plan_elsewhere
from rlgraph.passes.placement.query import make_problem
from rlgraph.passes.placement.search import dominance
from rlgraph.passes.placement.search.allocation_boxes import ROUND, AllocationBoxes
from rlgraph.passes.placement.search.candidates import Candidates
from rlgraph.passes.placement.search.colocation import PartitionBlock
from rlgraph.passes.placement.search.dominance import undominated
from rlgraph.passes.placement.search.incumbent import Incumbent, SearchResult
from rlgraph.passes.placement.search.limit import Limit
from rlgraph.passes.placement.search.progress import OutOfWork, SearchProgress, Work

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
SMALL_PPO = {"base": '"Qwen/Qwen2.5-0.5B"', "judge": '"Qwen/Qwen2.5-0.5B"'}


class Numbers:
    """As much of an option as comparisons ask for."""

    def __init__(self, kind: int, key: tuple[float, ...]) -> None:
        self.kind, self.key, self.floor, self.peak, self.host = kind, key, key, key[0], 0.0
        self.total, self.order, self.counted, self.beaten = sum(key[1:]), (sum(key[1:]), key), False, None


@pytest.mark.parametrize("seed", range(2))
def test_options_that_are_compared_at_once_are_those_that_are_compared_one_by_one(seed: int) -> None:
    dice = Random(seed)
    keys = [tuple(dice.randrange(200) / 20 for _ in range(5)) for _ in range(900)]
    options = [Numbers(dice.randrange(2), key) for key in dict.fromkeys(keys)]
    best = {
        option
        for option in options
        if option.peak <= 7
        and not any(
            other is not option and other.kind == option.kind and all(map(le, other.key, option.key))
            for other in options
        )
    }
    assert min(sum(option.kind == kind for option in best) for kind in (0, 1)) > dominance.FEW
    assert set(undominated(cast(Any, options), 7.0)) == cast(Any, best)


def blocks_of(sizes: int) -> tuple[PartitionBlock, ...]:
    return tuple(PartitionBlock((number,), 0) for number in range(sizes))


@pytest.mark.parametrize("cluster", ["128x8:h100-80gb", "40x6:h100-80gb", "1x8:h100-80gb"])
def test_ranges_are_bounded_with_few_numbers_of_devices(cluster: str) -> None:
    """None is less than the most of a range, nor much more; a single size is asked for as it is."""
    boxes, dice, pools = AllocationBoxes(read_cluster(cluster)), Random(0), blocks_of(1)
    sizes, asked = boxes.sizes[0,], set()
    for _ in range(400):
        low, high = sorted(dice.randrange(len(sizes)) for _ in range(2))
        (place,) = boxes.rounded_up(pools, ((low,), (high,)))
        node = boxes.cluster.islands[0].per_node
        assert place >= high and (low < high or place == high)
        assert sizes[place] <= sizes[high] + ROUND * (sizes[high] - sizes[low]) + node
        asked.add(place)
        middle = boxes.round_place(pools[0], low, high)
        assert low + (high - low) // 4 <= middle <= high
    assert len(asked) < len({*range(len(sizes))}) or len(sizes) < 10
    if cluster.startswith("128"):
        assert sizes[boxes.round_place(pools[0], 0, len(sizes) - 1)] == 512


@pytest.mark.parametrize(("gap", "steps"), [(0.05, 11), (0.2, 31)])
def test_work_goes_on_where_the_plan_may_be_far_from_the_best(gap: float, steps: int) -> None:
    """And does not end when it is nearer a little later."""
    done = [0]
    watch = SearchProgress(inf, most_work=Work(10, 30, 0.1), work_done=lambda: done[0])
    with pytest.raises(OutOfWork):
        while True:
            done[0] += 1
            watch.check_time(lambda: (1.0, gap if done[0] < 20 else 0.0))
    assert done[0] == steps


def test_a_known_plan_has_to_be_beaten_by_its_margin() -> None:
    known = SearchResult((), (), (), 100.0, 100.0, 0.0, 0)
    incumbent = Incumbent(0.0, 0.01, known, 0.01)
    assert incumbent.good_enough_bound() == 99
    incumbent.keep_if_better(replace(known, value=99.5))
    assert incumbent.best is known and incumbent.proven_bound() == 0.0
    incumbent.least_open_bound = inf
    assert incumbent.proven_bound() == 99.5
    better = replace(known, value=98.0)
    incumbent.keep_if_better(better)
    assert incumbent.best is better and incumbent.good_enough_bound() == 98


@pytest.fixture(scope="module")
def chosen() -> PlacementChoice:
    made = rlgraph.compile(
        ALGORITHMS / "grpo.rlf", {"base": '"Qwen/Qwen2.5-0.5B"'}, cluster="1x2:h100-80gb", offload=False
    )
    return made.choice


def test_questions_about_equal_work_share_their_options(chosen: PlacementChoice) -> None:
    question, options = chosen.question, chosen.problem.options
    alike = (replace(question, sequential_steps=True), replace(question, most_nodes=1), replace(question, fuse=False))
    others = (replace(question, offload=True), replace(question, host_optimizer=True), replace(question, engines=()))
    assert all(make_problem(other).options is options for other in alike)
    assert all(make_problem(other).options is not options for other in others)
    made = options.options_made
    again = choose_before_deadline(inf, replace(question, most_nodes=1))
    assert again and again.search_result.value == chosen.search_result.value and options.options_made == made


@pytest.mark.parametrize("change", ["offload", "nodes", "memory", "device", "network"])
def test_options_are_the_same_with_strategies_that_are_known(change: str) -> None:
    """Of the same nodes with models that may be offloaded, of more nodes, of others that hold more, of other devices,
    of another network: where everything takes as long or needs as much that is not worked out again."""
    made = rlgraph.compile(
        ALGORITHMS / "grpo.rlf", {"base": '"Qwen/Qwen2.5-7B"'}, cluster="2x8:h100-80gb", offload=False, stream=False
    )
    asked, first = made.choice.question, made.choice.problem
    others = {
        "offload": replace(asked, offload=True),
        "nodes": with_node_count(asked, 0, 3),
        "memory": with_device_memory(asked, 2),
        "device": with_device_kind(asked, known_devices()["b200-180gb"]),
        "network": with_network(asked, 2),
    }
    problem = make_problem(others[change])
    alone = make_problem(replace(others[change], known=WeakSet()))
    (island,), (own,) = problem.cluster.islands, alone.cluster.islands
    strategies = [*chain.from_iterable(problem.options.strategies_by_split(problem.components[0], island))]
    known = [*chain.from_iterable(first.options.strategies.values())]
    memory = {id(each.memory) for same_split in known for each in same_split}
    assert any(id(each.memory) in memory for each in strategies), "nothing is shared"
    for devices in (8, island.device_count):
        for component, twin in zip(problem.components, alone.components, strict=True):
            options, fresh = (
                each.options.undominated_options(part, where, devices)
                for each, part, where in ((problem, component, island), (alone, twin, own))
            )
            assert [(each.seconds, each.resident, each.active, each.host, each.copies) for each in options] == [
                (each.seconds, each.resident, each.active, each.host, each.copies) for each in fresh
            ]


def test_no_option_takes_less_than_its_strategy_does_at_least(chosen: PlacementChoice) -> None:
    """Alone, and in a pipeline with others; and what is left out for that is what takes longer than allowed."""
    problem, (island,) = chosen.problem, chosen.problem.cluster.islands
    options, checked, cut = problem.options, 0, 0
    for component in problem.components:
        for same_split in options.strategies_by_split(component, island):
            most = same_split[0].most_replicas(island.device_count)
            every = options.options_of_split(component, same_split, most)
            for shares in (False, True):
                for strategy in same_split:
                    once = strategy.least_task_seconds(most, shares)
                    for option in options.options_of_strategy(component, strategy, most):
                        taken = option.least_seconds if shares else option.seconds
                        assert all(
                            options.tasks[task].repetitions * least <= (1 + 1e-12) * seconds
                            for task, least, seconds in zip(component.tasks, once, taken, strict=True)
                        )
                        checked += 1
            for allowed in sorted(option.total for option in every)[::5]:
                limit = Limit(allowed)
                within = [*options.options_within(component, same_split, most, limit)]
                assert within == [option for option in every if option.total < allowed]
                cut += len(within) < len(every)
    assert checked and cut


def test_a_plan_that_has_room_for_more_is_the_best_one_with_more(chosen: PlacementChoice) -> None:
    streams = replace(chosen.question.schedule, streams=(StreamLine("rollout"),))
    question = replace(chosen.question, schedule=streams)
    known, searched = answer_with_less_room(chosen, question), choose_placement(question)
    assert known and searched and known.problem.options.settings.streams
    assert known.search_result.value == searched.search_result.value == chosen.search_result.value
    assert known.plan == searched.plan
    fuller = replace(question.constants, reserved=question.constants.reserved + 60 * 2**30)
    assert answer_with_less_room(chosen, replace(question, constants=fuller)) is None


@pytest.mark.parametrize("change", ["nothing", "network", "device", "answers", "nodes"])
def test_a_plan_is_a_plan_elsewhere(chosen: PlacementChoice, change: str) -> None:
    """With the seconds that it takes there: no fewer than a plan can take, and the best plan takes no more."""
    asked = chosen.question
    changed = {
        "nothing": asked,
        "network": with_network(asked, 2),
        "device": with_device_kind(asked, known_devices()["h200-141gb"]),
        "answers": with_lengths(asked, response=Lengths((64.0,))),
        "nodes": with_node_count(asked, 0, 2),
    }[change]
    problem = make_problem(replace(changed, known=WeakSet()))
    found = plan_elsewhere(chosen.search_result, chosen.problem, problem)
    searched = choose_placement(replace(changed, known=WeakSet()))
    assert found is not None and searched is not None
    assert found.blocks == chosen.search_result.blocks and found.devices == chosen.search_result.devices
    # Other answers have other longest rows, of which micro-batches are multiples.
    assert searched.search_result.bound <= found.value or change == "answers"
    assert searched.search_result.value <= found.value / (1 - SPARE)
    before = chosen.search_result.value
    assert found.value < before if change in ("network", "device", "answers") else found.value == before


def test_a_plan_is_none_where_it_does_not_fit_or_other_work_is_done(chosen: PlacementChoice) -> None:
    small = with_device_memory(chosen.question, size=4 * 2**30)
    assert plan_elsewhere(chosen.search_result, chosen.problem, make_problem(small)) is None
    other = rlgraph.compile(ALGORITHMS / "ppo.rlf", SMALL_PPO, cluster="1x2:h100-80gb", offload=False).choice
    assert plan_elsewhere(chosen.search_result, chosen.problem, other.problem) is None


def test_options_that_are_too_slow_are_left_out_and_no_others(chosen: PlacementChoice) -> None:
    problem, left_out = chosen.problem, 0
    (island,) = problem.cluster.islands
    for component in problem.components:
        fresh = make_problem(replace(chosen.question, known=WeakSet())).options
        every = problem.options.undominated_options(component, island, 2)
        limit = Limit(1.5 * every[0].total, 0.25 * every[0].total)
        fast = fresh.undominated_options(component, island, 2, limit)
        assert [option.key for option in fast] == [
            option.key for option in every if option.total < 1.25 * every[0].total
        ]
        left_out += len(every) - len(fast)
    assert left_out


def test_questions_about_fewer_nodes_later_weights_or_pipelines_ask_for_no_options_anew() -> None:
    choice = rlgraph.compile(
        ALGORITHMS / "ppo.rlf",
        {"base": '"Qwen/Qwen2.5-0.5B"', "judge": '"Qwen/Qwen2.5-0.5B"'},
        cluster="2x2:h100-80gb",
        offload=False,
        stream=False,
    ).choice
    apart = make_problem(replace(choice.question, fuse=False))
    assert apart.options is choice.problem.options and choice.problem.fusing.partners and not apart.fusing.partners
    variants = {variant.name: variant for variant in possible_variants(choice)}
    assert {variants[name].question.most_nodes for name in ("one node less", ONE_STEP_OFF)} == {0, 1}
    for name in ("one node less", ONE_STEP_OFF):
        problem = make_problem(variants[name].question)
        assert problem.options is choice.problem.options
        own = [component for component in problem.components if component.model_name != "actor"]
        assert len(own) > 2 and all(any(one is other for other in choice.problem.components) for one in own)
    trained = next(one for one in make_problem(variants[ONE_STEP_OFF].question).components if one.model_name == "actor")
    assert trained not in choice.problem.components


def test_weights_come_fastest_from_one_of_a_few_splits(chosen: PlacementChoice) -> None:
    problem = chosen.problem
    (island,) = problem.cluster.islands
    for ends in problem.sync_pairs:
        source, target = (
            Candidates(problem.options.undominated_options(problem.components[end], island, 2)) for end in ends
        )
        for together in (True, False):
            taken = {
                (a, b): problem.pair_sync_seconds(ends, a, b, together) for a in source.options for b in target.options
            }
            few = [taken[a, b] for a in source.quickest_ends for b in target.quickest_ends]
            assert min(few) == min(taken.values())
