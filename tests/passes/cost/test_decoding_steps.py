"""The pass over its prompt gives a row its first token, as it does in every engine: a row of so many tokens takes part
in one decoding step less. The search's formula and the simulator's rows have it from one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.decoding import DecodeStepCost, generation_cost, prefill_cost
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.episodes import Episodes, EpisodeTurns, TurnPace, play_episodes
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.sampling import ContinuousBatch, EpisodeRows, SamplingPace, predict_sampling

KNOWN = known_config("Qwen/Qwen2.5-7B-Instruct")
assert KNOWN
CONFIG = ModelConfig("actor", shape_of(KNOWN), "causal_lm", "bfloat16")
CONSTANTS = default_constants("gpu")
ENGINES = ("vllm", "transformers")
PROMPT = 300.0


def deployment(engine: str) -> Deployment:
    return Deployment(engine, read_cluster("1x8:h100-80gb").islands[0], make_mesh(), kv_bytes=1 << 35)


def batch(*answers: float) -> Batch:
    return Batch(float(len(answers)), Lengths((PROMPT,)), Lengths.from_lengths(answers))


def decoded_s(engine: str, rows: Batch) -> float:
    """Return the seconds of the search's formula beside the call and the prompts."""
    at = deployment(engine)
    read = prefill_cost(CONFIG, at, CONSTANTS, rows, rows.rows).seconds
    return generation_cost(CONFIG, at, CONSTANTS, rows).seconds - read - CONSTANTS.rates[engine, "generate"].call


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tokens", [1, 2, 100])
def test_rows_of_one_length(engine: str, tokens: int) -> None:
    rows = batch(*[float(tokens)] * 8)
    step = DecodeStepCost(CONFIG, deployment(engine), CONSTANTS, rows).cost(8).seconds
    assert decoded_s(engine, rows) == pytest.approx((tokens - 1) * step)
    simulated = predict_sampling(CONFIG, deployment(engine), CONSTANTS, [PROMPT] * 8, [float(tokens)] * 8, 1)
    expected = generation_cost(CONFIG, deployment(engine), CONSTANTS, rows).seconds
    assert simulated.cost.seconds == pytest.approx(expected)
    assert list(simulated.end_times) == [pytest.approx(expected)] * 8


def test_lengths_with_a_tail() -> None:
    """Each row ends a step before its own length, the rows that end at once with the pass over their prompts."""
    answers = [1.0, 1.0, 3.0, 11.0]
    at, rows = deployment("vllm"), batch(*answers)
    step = DecodeStepCost(CONFIG, at, CONSTANTS, rows)
    decoded = 2 * step.cost(2).seconds + 8 * step.cost(1).seconds
    assert decoded_s("vllm", rows) == pytest.approx(decoded)
    found = predict_sampling(CONFIG, at, CONSTANTS, [PROMPT] * 4, answers, 1)
    ended = [end - found.end_times[0] for end in found.end_times]
    assert ended == [0.0, 0.0, pytest.approx(2 * step.cost(2).seconds), pytest.approx(decoded)]
    assert found.cost.seconds == pytest.approx(found.end_times[3])


def test_rows_that_wait() -> None:
    """Rows of one token hold no place, and end one after the other as their prompts are read."""
    little = replace(deployment("vllm"), kv_bytes=1 << 27)
    found = predict_sampling(CONFIG, little, CONSTANTS, [PROMPT] * 64, [1.0] * 64, 1)
    assert found.pace and found.pace.max_rows < 32
    assert found.end_times[-1] == max(found.end_times) == pytest.approx(found.cost.seconds)
    assert list(found.end_times) == sorted(found.end_times) and found.end_times[0] < found.end_times[-1]
    assert found.cost.seconds == pytest.approx(generation_cost(CONFIG, little, CONSTANTS, batch(*[1.0] * 64)).seconds)


def test_calls_that_follow_each_other() -> None:
    """A step takes a second, and to read a prompt a tenth. Where others come in between nothing else is counted."""
    together = ContinuousBatch()
    together.add_call(0.0, SamplingPace(0.0, 0.1, 4, lambda rows: 1.0), [1.0, 5.0])
    assert together.row_end_times() == [[pytest.approx(0.2), pytest.approx(4.2)]]
    assert [left for *_, left in together.unfinished_rows(2.2)] == [pytest.approx(2.0)], "three tokens are there"
    once = replace(batch(*[9.0] * 8), requests=2)
    step = DecodeStepCost(CONFIG, deployment("vllm"), CONSTANTS, once).cost(8).seconds
    assert decoded_s("vllm", once) == pytest.approx(8 * step)


def test_each_turn_of_an_episode_has_a_pass_of_its_own() -> None:
    """Two episodes of three turns of five tokens: twelve steps, in one process or in another order."""
    for one_by_one in (True, False):
        pace = TurnPace(0.0, 0.0, 8, lambda rows: 1.0, 2, one_by_one, in_rounds=not one_by_one)
        play = play_episodes([EpisodeTurns(5.0, [0.0] * 3)] * 2, pace)
        assert play.ends == [12.0, 12.0] and play.steps[2] == sum(play.steps.values()) == 12.0
        quick = play_episodes([EpisodeTurns(1.0, [0.0] * 3)] * 2, pace)
        assert quick.ends == [0.0, 0.0] and (quick.first_reads, quick.later_reads) == (2, 4)


def test_episodes_of_a_plan_are_those_of_a_simulation() -> None:
    """Four turns of one token each are never decoded."""
    at, episodes = deployment("vllm"), Episodes(Lengths((4.0,)), Lengths((0.0,)), observation=50.0)
    rows = replace(batch(*[4.0] * 8), episodes=episodes)
    planned = generation_cost(CONFIG, at, CONSTANTS, rows)
    played = EpisodeRows(episodes, [[0.0] * 4] * 8, 1)
    simulated = predict_sampling(CONFIG, at, CONSTANTS, [PROMPT] * 8, [4.0] * 8, 1, played).cost
    assert simulated.seconds == pytest.approx(planned.seconds)
    longer = generation_cost(CONFIG, at, CONSTANTS, replace(rows, response=Lengths((4.0 * 3,))))
    step = DecodeStepCost(CONFIG, at, CONSTANTS, replace(rows, response=Lengths((4.0 * 3,)))).cost(8).seconds
    assert longer.seconds - planned.seconds == pytest.approx(4 * 2 * step, rel=0.02)
