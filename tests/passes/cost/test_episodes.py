"""Episodes that are played turn by turn: what a clock that ticks finds, and what their prefixes cost."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.decoding import generation_cost, later_turn_cost, reading_cost
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.episodes import Episodes, EpisodeTurns, TurnPace, play_episodes
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.work import Tokens
from tests.suites import few

TICK = 1 / 64
"""Seconds; all that takes time here is a multiple of it, so that nothing is rounded."""


def pace(slots: int = 256, processes: int = 256, one_by_one: bool = True, in_rounds: bool = False) -> TurnPace:
    return TurnPace(0.0, 0.0, slots, lambda rows: 1.0, processes, one_by_one, in_rounds)


@pytest.mark.parametrize(
    ("one_by_one", "in_rounds", "ends"),
    [
        # The quick one has both its turns while the slow one waits.
        (True, False, [16.0, 8.0]),
        (False, True, [16.0, 12.0]),
        # After two quiet seconds it is sampled alone, and then the slow one waits for its end, and that for an answer.
        (False, False, [18.0, 10.0]),
    ],
)
def test_who_waits_for_whom(one_by_one: bool, in_rounds: bool, ends: list[float]) -> None:
    # Three steps a turn: reading gives the first token.
    episodes = [EpisodeTurns(4.0, [5.0, 5.0]), EpisodeTurns(4.0, [1.0, 1.0])]
    play = play_episodes(episodes, pace(one_by_one=one_by_one, in_rounds=in_rounds))
    assert play.ends == ends and (play.first_reads, play.later_reads) == (2, 2)


def test_a_process_answers_one_after_the_other() -> None:
    """Three episodes of two turns and a second for each answer: six seconds behind the first step."""
    episodes = [EpisodeTurns(2.0, [1.0, 1.0])] * 3
    assert max(play_episodes(episodes, pace(processes=1)).ends) == 7.0
    assert max(play_episodes(episodes, pace(processes=3)).ends) == 4.0


@pytest.mark.parametrize("seed", few(range(20), 0, 1, 2))
def test_a_clock_that_ticks_finds_the_same(seed: int) -> None:
    chance = random.Random(seed)
    episodes = [
        EpisodeTurns(
            chance.randint(5, 13) / 4, [chance.randint(1, 200) * TICK * 2 for _ in range(chance.randint(1, 4))]
        )
        for _ in range(chance.randint(1, 12))
    ]
    slots, processes = chance.randint(1, 6), chance.randint(1, 5)
    found = play_episodes(episodes, pace(slots, processes)).ends
    assert found == pytest.approx(ticked(episodes, slots, processes), abs=0.2 * len(episodes))


def ticked(episodes: list[EpisodeTurns], slots: int, processes: int) -> list[float]:
    """Return when episodes end, by looking at all of them at each tick; a token takes a second, but for the first of
    a turn."""
    waiting, sampled = list(range(len(episodes))), dict[int, float]()
    queues: list[list[int]] = [[] for _ in range(processes)]
    turn, left, ends, now = [0] * len(episodes), dict[int, float](), [0.0] * len(episodes), 0.0
    while waiting or sampled or any(queues):
        while waiting and len(sampled) < slots:
            number = waiting.pop(0)
            sampled[number] = episodes[number].tokens - 1
        now += TICK
        for queue in queues:
            if queue:
                left[queue[0]] -= TICK
                if left[queue[0]] <= 1e-9:
                    number = queue.pop(0)
                    turn[number] += 1
                    if turn[number] == len(episodes[number].answers_s):
                        ends[number] = now
                    else:
                        waiting.append(number)
        for number in list(sampled):
            sampled[number] -= TICK
            if sampled[number] <= 1e-9:
                del sampled[number]
                left[number] = episodes[number].answers_s[turn[number]]
                queues[number % processes].append(number)
    return ends


KNOWN = known_config("Qwen/Qwen2.5-7B-Instruct")
assert KNOWN
CONFIG = ModelConfig("actor", shape_of(KNOWN), "causal_lm", "bfloat16")
CONSTANTS = default_constants("gpu")


def deployment(kv_bytes: int = 1 << 35, tp: int = 1) -> Deployment:
    island = read_cluster("1x8:h100-80gb").islands[0]
    return Deployment("vllm", island, make_mesh(tp=tp), kv_bytes=kv_bytes)


def batch(turns: float, seconds: float, observation: float = 100.0, rows: float = 64, workers: int = 256) -> Batch:
    episodes = Episodes(Lengths((turns,)), Lengths((seconds,)), observation, workers)
    return Batch(rows, Lengths((500.0,)), Lengths((400.0,)), episodes=episodes)


def test_a_later_turn_reads_what_is_new_while_the_cache_holds() -> None:
    """The middle of an episode has 500 + (400 + 3 x 100) / 2 tokens; half a block of 16 is read once more."""
    rows, context = batch(4.0, 1.0), 850.0
    held = reading_cost(CONFIG, deployment(), CONSTANTS, Tokens(64, 64 * 108, 64 * 108 * context, 64), 64)
    assert later_turn_cost(CONFIG, deployment(), CONSTANTS, rows, 64).seconds == pytest.approx(held.seconds / 64)
    whole = reading_cost(CONFIG, deployment(), CONSTANTS, Tokens(64, 64 * context, 64 * context**2, 64), 64)
    little = deployment(kv_bytes=64 * 1 << 20)
    assert later_turn_cost(CONFIG, little, CONSTANTS, rows, 64).seconds == pytest.approx(whole.seconds / 64)
    assert whole.compute > 7 * held.compute
    once = batch(1.0, 1.0)
    assert later_turn_cost(CONFIG, deployment(), CONSTANTS, once, 64).seconds == 0.0


def test_environments_that_take_no_time_cost_nothing() -> None:
    """One turn with an answer that comes at once is a row that is generated."""
    rows = batch(1.0, 0.0, 0.0)
    alone = generation_cost(CONFIG, deployment(), CONSTANTS, replace(rows, episodes=None))
    assert generation_cost(CONFIG, deployment(), CONSTANTS, rows).seconds == pytest.approx(alone.seconds, rel=0.02)


def test_slow_environments_are_waited_for_side_by_side_or_in_turn() -> None:
    """64 episodes of 4 turns, 30 s each: 120 s with a process for each, 7,680 s with one, and what is sampled first."""
    sampled = generation_cost(CONFIG, deployment(), CONSTANTS, batch(4.0, 0.0)).seconds
    for workers, waited in ((256, 120.0), (1, 7680.0)):
        cost = generation_cost(CONFIG, deployment(), CONSTANTS, batch(4.0, 30.0, workers=workers))
        assert waited < cost.seconds < waited + 3 * sampled
        assert cost.environment == pytest.approx(waited, rel=0.15)


def test_ranks_that_sample_together_wait_for_the_slowest_of_each_turn() -> None:
    """Of many long-tailed answers the slowest of each turn is beyond what an episode takes in all."""
    rows = batch(6.0, 0.0)
    assert rows.episodes
    rows = replace(rows, episodes=replace(rows.episodes, answer_s=Lengths.lognormal(mean=10, p99=60)))
    alone, ranks = (generation_cost(CONFIG, deployment(tp=tp), CONSTANTS, rows).environment for tp in (1, 2))
    assert ranks > 1.8 * alone and math.isfinite(ranks)
