"""What a simulation of many steps says: where steady state begins, who waits for whom, how old rows are, and the bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_flight import AHEAD, APART, ONE, Seconds, program
from tiny import data_folder

from rlgraph.api.compiled import Compiled
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.sim.steady_state import longest_cycle_seconds, warm_up_step_count
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.explain.simulate import simulate_plan
from rlgraph.explain.simulation import Simulation, mean_staleness_versions
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.workload import Workload

WORKLOAD = Workload(Lengths((2.0,)), Lengths((3.0,)), kept=0.6)
FILTERED = AHEAD.replace("    train actor", "    keep rollout where score > 0\n    train actor")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("steady"))


def simulation(made: Compiled, seconds: Seconds, steps: int = 8) -> Simulation:
    return simulate_plan(made, made.plan, read_cluster("1x2:cpu"), seconds, WORKLOAD, steps)


def cycle(made: Compiled, seconds: Seconds) -> float:
    return longest_cycle_seconds(SimBackend(made.program, made.plan, seconds, WORKLOAD, turns=False))


def waits(found: Simulation, pool: str) -> dict[str, float]:
    [own] = [each for each in found.pools if each.pool == pool]
    return {str(wait): round(seconds / found.steps, 6) for wait, seconds in own.waited}


@pytest.mark.parametrize(
    "seconds, skipped",
    [
        ([5.0] * 6, 0),
        ([9.0, 7.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0], 2),
        ([4.0, 6.0] * 4, 0),
        ([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], None),
        ([5.0, 5.0, 5.0, 5.04, 5.04, 5.04], 0),
    ],
)
def test_steady_state_begins_where_both_halves_of_the_rest_take_the_same(
    seconds: list[float], skipped: int | None
) -> None:
    assert warm_up_step_count(seconds) == skipped


def test_who_waits_for_whom(folder: Path) -> None:
    """Generation takes 10 s, training 4 s, weights 1 s on both."""
    in_turn = simulation(program(folder, 0), Seconds(10.0, 4.0))
    assert in_turn.seconds == 15.0 and in_turn.steady and in_turn.warm_up == 1 and in_turn.under_way == 1.0
    assert waits(in_turn, "learn") == {"rollout from play": 10.0}
    assert waits(in_turn, "play") == {"weights of step t-1": 4.0}
    ahead = simulation(program(folder, 1), Seconds(10.0, 4.0))
    assert ahead.seconds == 11.0 and ahead.steady and ahead.warm_up == 2
    assert waits(ahead, "learn") == {"rollout from play": 6.0} and waits(ahead, "play") == {}
    # Where training is slower, weights wait for it, and then for their turn on its devices.
    slow = simulation(program(folder, 1), Seconds(4.0, 10.0))
    assert slow.seconds == 11.0
    assert waits(slow, "play") == {"weights of step t-2": 6.0} and waits(slow, "learn") == {}


def test_the_bound_is_the_load_or_the_longest_cycle(folder: Path) -> None:
    for generate, train in ((10.0, 4.0), (4.0, 10.0)):
        seconds = Seconds(generate, train)
        # Rows of step t need the weights of the step before: the whole step is a cycle.
        assert cycle(program(folder, 0), seconds) == 15.0
        made = program(folder, 1)
        found = simulation(made, seconds)
        assert found.busiest_pool.busy / found.steps == 11.0 == found.least_step_seconds
        # Over two steps generation, training and the weights; over one the training, or the sampler's next rows.
        assert 10.0 <= cycle(made, seconds) <= found.seconds
    # On one pool that all work shares, its load is the bound, whatever the lag.
    seconds = Seconds(3.0, 5.0)
    found = simulation(program(folder, 2, ONE), seconds)
    assert found.least_step_seconds == found.seconds == 8.0 and cycle(program(folder, 2, ONE), seconds) < 8.0


def test_how_old_the_rows_are_and_which_are_trained_on(folder: Path) -> None:
    for lag in (0, 1, 2):
        found = simulation(program(folder, lag), Seconds(4.0, 10.0), 4)
        assert found.ages == {lag: 4 * 10.0} and found.trained == found.rows == 40
    bounded = program(folder, 0, text=AHEAD.replace("STEP:", "step async(staleness=2):"))
    found = simulation(bounded, Seconds(4.0, 10.0), 4)
    assert max(found.ages) <= 2 and (found.under_way > 1 or set(found.ages) == {0}), "what is, not what might be"
    half = simulation(program(folder, 0, APART, FILTERED), Seconds(4.0, 10.0), 4)
    assert half.rows == 40 and half.trained == 40 * WORKLOAD.kept


@pytest.mark.parametrize(
    "generate, train, bound, near",
    [
        # Rows wait for the training, then for the bound.
        *((1.3, 10.0, bound, 0.1 * bound) for bound in (1, 2, 4, 8)),
        # The training waits for rows.
        *((10.0, train, bound, 0.1) for train in (1.7, 4.3) for bound in (1, 4)),
        # Both wait in turn for each other's weights: versions are counted, and a part of one is lost.
        (4.2, 10.0, 8, 1.0),
        (7.1, 10.0, 4, 1.0),
    ],
)
def test_rows_are_as_old_as_batches_are_under_way(
    folder: Path, generate: float, train: float, bound: int, near: float
) -> None:
    """Little's law."""
    made = program(folder, 0, text=AHEAD.replace("STEP:", f"step async(staleness={bound}):"))
    found = simulation(made, Seconds(generate, train), 16)
    age = mean_staleness_versions(found.ages)
    assert 0 < age <= bound and found.mean_batches_in_flight == pytest.approx(age, abs=near)
