"""Copies that sample rows end apart, each row by its own length; on average that takes what a plan is chosen by."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.ir.layout import even_range
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost import decoding
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.decoding_slots import decoding_slots
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.sampling import ContinuousBatch, SamplingPace, SamplingResult, predict_sampling

ISLAND = read_cluster("4x8:h100-80gb").islands[0]
PROMPT = 300.0


def config() -> ModelConfig:
    found = known_config("meta-llama/Llama-3.1-8B")
    assert found
    return ModelConfig("actor", shape_of(found), "causal_lm", "bfloat16")


def one(answers: list[float], copies: int = 1, samples: int = 1) -> SamplingResult:
    deployment = Deployment("vllm", ISLAND, make_mesh(copies))
    return predict_sampling(config(), deployment, default_constants("gpu"), [PROMPT] * len(answers), answers, samples)


def test_rows_end_by_their_lengths() -> None:
    found = one([70.0, 10.0, 300.0, 10.0])
    assert (
        found.end_times[1]
        == found.end_times[3]
        < found.end_times[0]
        < found.end_times[2]
        == pytest.approx(found.cost.seconds)
    )
    assert one([]).cost.seconds == 0


def test_rows_begin_when_others_have_ended() -> None:
    """Twice as many rows as are decoded together: half of them are there after half of the time."""
    row = Batch(1.0, Lengths((PROMPT,)), Lengths((40.0,)))
    room = int(decoding_slots(config(), Deployment("vllm", ISLAND, make_mesh(1)), row))
    found = one([40.0] * (2 * room))
    first, last = set(found.end_times[:room]), set(found.end_times[room:])
    assert max(first) < min(last) and max(last) == pytest.approx(found.cost.seconds)
    assert max(first) / max(last) == pytest.approx(0.5, abs=0.01)
    # A long one keeps its place, and the others go on beside it.
    beside = one([4000.0] + [40.0] * (2 * room))
    assert max(beside.end_times[1:]) < beside.end_times[0]


@pytest.mark.parametrize("copies, prompts, samples", [(1, 32, 4), (4, 64, 4), (6, 64, 16), (32, 64, 8)])
@pytest.mark.parametrize(
    "answers", [Lengths.lognormal(mean=500, p99=2000), Lengths.lognormal(mean=1000, p99=8192).capped(8192)]
)
def test_the_slowest_copy_takes_on_average_what_is_expected(
    copies: int, prompts: int, samples: int, answers: Lengths
) -> None:
    count = prompts * samples
    batch = Batch(float(count), Lengths((PROMPT,)), answers, samples)
    expected = decoding.generation_cost(
        config(), Deployment("vllm", ISLAND, make_mesh(copies)), default_constants("gpu"), batch
    ).seconds
    slowest, all_copies = [], []
    for seed in range(4):
        rows = [answers.quantile((place + 0.5) / count) for place in range(count)]
        Random(seed).shuffle(rows)
        bounds = ([samples * each for each in even_range(prompts, copies, copy)] for copy in range(copies))
        ends = [one(rows[start:stop], copies, samples).cost.seconds for start, stop in bounds]
        slowest.append(max(ends))
        all_copies += ends
    assert fmean(slowest) == pytest.approx(expected, rel=0.03)
    assert fmean(all_copies) < fmean(slowest) or copies == 1


@pytest.mark.parametrize("requests", [2, 5])
@pytest.mark.parametrize("mean, p99", [(1000, 2000), (1000, 8192)])
def test_calls_without_breaks_take_what_a_plan_is_chosen_by(requests: int, mean: int, p99: int) -> None:
    """So many calls are under way: the next one comes when the oldest one has ended."""
    rows, answers = 64, Lengths.lognormal(mean=mean, p99=p99).capped(8192)
    batch = Batch(float(rows), Lengths((PROMPT,)), answers, requests=requests)
    deployment = Deployment("vllm", ISLAND, make_mesh(1))
    expected = decoding.generation_cost(config(), deployment, default_constants("gpu"), batch).seconds
    together, ends, random = ContinuousBatch(), list[float](), Random(0)
    for number in range(8 * requests):
        drawn = [answers.quantile((place + 0.5) / rows) for place in range(rows)]
        random.shuffle(drawn)
        pace = one(drawn).pace
        assert pace is not None
        together.add_call(ends[number - requests] if number >= requests else 0.0, pace, drawn)
        ends = [max(each) for each in together.row_end_times()]
    measured = (ends[-1] - ends[2 * requests - 1]) / (len(ends) - 2 * requests)
    assert expected == pytest.approx(measured, rel=0.1)
    alone = decoding.generation_cost(config(), deployment, default_constants("gpu"), replace(batch, requests=1)).seconds
    assert alone > 1.2 * measured, "whole batches wait for their longest rows"


def test_a_call_that_is_alone_takes_what_it_takes() -> None:
    answers = [float(each) for each in range(2, 2000, 3)] * 3
    found, together = one(answers), ContinuousBatch()
    assert found.pace is not None
    together.add_call(7.0, found.pace, answers)
    assert together.row_end_times() == [pytest.approx([7.0 + end for end in found.end_times])]


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 6), st.lists(st.integers(1, 9), min_size=1, max_size=6)), min_size=1, max_size=5
    ),
    most=st.integers(1, 5),
)
def test_rows_of_several_calls_end_as_token_by_token(calls: list[tuple[int, list[int]]], most: int) -> None:
    """A step takes a second: whoever comes first has the first place that is free, and there are as many as the largest
    call has rows. Rows are given by their steps, and have a token more."""
    together, now = ContinuousBatch(), 0
    coming: dict[int, list[tuple[int, int, int]]] = {}
    for number, (after, rows) in enumerate(calls):
        now += after
        together.add_call(float(now), SamplingPace(0.0, 0.0, most, lambda rows: 1.0), [steps + 1.0 for steps in rows])
        coming.setdefault(now, []).extend((number, row, steps) for row, steps in enumerate(rows))
    expected = [[0.0] * len(rows) for _, rows in calls]
    waiting: list[tuple[int, int, int]] = []
    active: list[tuple[int, int, int]] = []
    second, last = 0, max(coming)
    while second <= last or waiting or active:
        waiting += coming.get(second, [])
        going = {call for call, *_ in [*waiting, *active]}
        while waiting and len(active) < min(most, max(len(calls[call][1]) for call in going)):
            active.append(waiting.pop(0))
        second += 1
        active = [(call, row, left - 1) for call, row, left in active]
        for call, row, left in active:
            if not left:
                expected[call][row] = float(second)
        active = [each for each in active if each[2]]
    assert together.row_end_times() == [pytest.approx(each) for each in expected]
