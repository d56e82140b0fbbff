"""More devices are not slower: plans on fewer nodes, streams on large clusters, and other engines than the preferred
ones are looked at, where they may be better."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from unittest.mock import patch

import pytest

import rlgraph
from rlgraph.passes.compilation import (
    choose_plan,
    fewer_nodes,
    finalists,
    other_engines,
    overlapping_work,
    streamable,
    streaming,
)
from rlgraph.passes.compilation.fewer_nodes import SIZES, fewer_nodes_in_flight, no_slower_than_on_fewer_nodes
from rlgraph.passes.compilation.overlap_simulation import simulate_step_seconds
from rlgraph.passes.placement.choose import PlacementChoice, choose_before_deadline, choose_below, choose_placement

pytestmark = pytest.mark.usefixtures("quick_rows")

Models = dict[str, str | float | bool | Path]

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
SMALL: Models = {"base": '"Qwen/Qwen2.5-0.5B"'}
LARGE: Models = {"base": '"meta-llama/Llama-3.1-70B-Instruct"'}


def chosen(name: str, cluster: str, models: Models, stream: bool = True) -> PlacementChoice:
    return rlgraph.compile(ALGORITHMS / f"{name}.rlf", models, cluster=cluster, stream=stream).choice


def test_few_rows_may_stream_on_a_large_cluster() -> None:
    """Where the timetable promises something of it, else nothing is simulated; of many rows never."""

    def is_simulated(few: int = overlapping_work.FEW_ROWS, promised: float = streamable.PROMISED) -> bool:
        with (
            patch.object(streaming, "_promising", return_value=False) as asked,
            patch.object(overlapping_work, "FEW_ROWS", few),
            patch.object(streamable, "PROMISED", promised),
        ):
            chosen("dr_grpo", "9x8:h100-80gb", SMALL | {"n": 2, "limit": 300})
        return asked.called

    assert is_simulated()
    assert not is_simulated(few=255) and is_simulated(few=256)
    assert not is_simulated(promised=0.4)


def test_where_sampling_waits_for_no_training_they_get_pools_of_their_own() -> None:
    """The opponent stays as it is: one step samples while the one before it trains."""
    found = chosen("spin", "1x8:h100-80gb", SMALL, stream=False)
    one = choose_placement(replace(found.question, read_separately=(), sequential_steps=True))
    assert one and found.problem.staleness_steps == 1
    assert not chosen("grpo", "1x4:h100-80gb", SMALL, stream=False).problem.staleness_steps
    assert len(one.search_result.blocks) == 1 < len(found.search_result.blocks)
    assert one.search_result.seconds == pytest.approx(simulate_step_seconds(one), rel=0.02)
    assert found.simulated_step_s and found.simulated_step_s < 0.9 * one.search_result.seconds


def test_plans_on_fewer_nodes_are_simulated_down_to_those_that_are_too_slow() -> None:
    with (
        patch.object(fewer_nodes, "SLOWER", -1),
        patch.object(finalists, "simulate_step_seconds", lambda choice: 1.0),
    ):
        first = chosen("remax", "64x8:h100-80gb", SMALL | {"judge": SMALL["base"]})
    value, asked = first.search_result.value, list[int]()

    def simulated(other: PlacementChoice, least: float) -> PlacementChoice:
        asked.append(other.question.most_nodes)
        assert other.search_result.value <= 1.45 * value
        return replace(other, simulated_step_s=0.5 if len(asked) == 2 else 0.75)

    with patch.object(fewer_nodes, "SLOWER", 0.45), patch.object(fewer_nodes, "simulate_choice", simulated):
        best = no_slower_than_on_fewer_nodes(first, inf)
    assert asked[0] < 32 and asked == [asked[0] >> place for place in range(SIZES)], "the fewest last"
    half = choose_before_deadline(inf, replace(first.question, most_nodes=asked[-1] // 2))
    assert half and half.search_result.value > 1.45 * value
    assert best.simulated_step_s == 0.5 and best.question == first.question


def test_a_share_of_the_nodes_is_tried_where_steps_overlap() -> None:
    """One plan, if it is not far behind by the timetable, and then one on a share of its nodes: on many nodes all is
    tried that is tried on few. It is taken if the simulator says so."""
    with (
        patch.object(fewer_nodes, "FEW_NODES", 17),
        patch.object(finalists, "simulate_step_seconds", lambda choice: 1.0),
    ):
        first = replace(chosen("async_grpo", "16x8:h100-80gb", SMALL, stream=False), simulated_step_s=1.0)
    for few, behind, seconds, nodes, parts in (
        (16, 99, 0.5, [1], (16, 4)),
        (16, 99, 2.0, [1], (16, 4)),
        (4, 99, 2.0, [4, 1], (4,)),
        (4, 99, 0.5, [8, 4, 2], (2,)),
        (16, -1, 0.5, [], (16, 4)),
        (17, 99, 0.5, [], (16, 4)),
    ):
        tried = list[int]()

        def simulated(other: PlacementChoice, least: float, taken: float = seconds, to: list[int] = tried) -> object:
            to.append(other.question.most_nodes)
            return replace(other, simulated_step_s=taken)

        with (
            patch.object(fewer_nodes, "FEW_NODES", few),
            patch.object(fewer_nodes, "BEHIND", behind),
            patch.object(fewer_nodes, "PARTS", parts),
            patch.object(fewer_nodes, "simulate_choice", simulated),
        ):
            best = fewer_nodes_in_flight(first, inf, False)
        assert tried == nodes
        assert best.simulated_step_s == (0.5 if nodes and seconds < 1 else 1.0)
        assert best.question.most_nodes == 0


def test_another_engine_trains_where_its_weights_are_sooner_in_use() -> None:
    """On one node the preferred one has no room for the model; on eight it has, and is slower."""
    one, eight = (chosen("spo", f"{nodes}x8:b200-180gb", LARGE, stream=False) for nodes in (1, 8))
    assert [each.plan.group_of_role("actor", "train").engine for each in (one, eight)] == ["transformers"] * 2
    assert eight.search_result.bound <= eight.search_result.value <= one.search_result.value
    with patch.object(other_engines, "FASTER", 0.1), patch.object(other_engines, "choose_below", None):
        preferred = chosen("spo", "8x8:b200-180gb", LARGE, stream=False)
    assert preferred.plan.group_of_role("actor", "train").engine == "megatron"
    assert eight.search_result.value < (1 - other_engines.FASTER) * preferred.search_result.value


@pytest.mark.parametrize("share", [1.02, 0.99])
def test_a_plan_below_a_value_is_the_best_one_or_none(share: float) -> None:
    choice = chosen("grpo", "1x4:h100-80gb", SMALL, stream=False)
    value = choice.search_result.value
    found = choose_below(inf, replace(choice.question, read_separately=()), choice, share * value)
    assert (found and found.search_result.value) == (value if share > 1 else None)


def test_a_plan_with_a_shared_pipeline_is_asked_what_streams_promise_it() -> None:
    """Without the pipeline, which streams rule out."""
    models: Models = dict.fromkeys(("base", "judge"), '"Qwen/Qwen2.5-7B"')
    with (
        patch.object(choose_plan, "is_small", return_value=False) as asked,
        patch.object(streaming, "_promising", return_value=False),
    ):
        found = chosen("ppo", "2x4:a100-80gb", models)
    assert asked.called and found.search_result.pieces
