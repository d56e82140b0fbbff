"""Rows begin in the order of how long they are expected to be: in a plan, in the processes of one, and in the simulator.
No number changes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from scheduled import compiled
from test_tails import COPIES, ROWS, Alike, step
from tiny import EPS, data_folder, weights

from rlgraph.api.compiled import Compiled
from rlgraph.backends.distributed.row_balancing import balance_rows, blocks_by_replica
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.length_history import LengthHistory
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import HISTORY, RayBackend
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.sim.fake_rows import FakeRows
from rlgraph.backends.worker.session import Settings
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.sampling import ContinuousBatch, SamplingPace, SamplingResult
from rlgraph.passes.cost.workload import Workload
from tests.suites import few

PROGRAM = f"""algorithm t
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5)
func spread  = python("rewards.py:spread")
func longest = python("rewards.py:spread")

step:
    rollout = actor.generate(prompts, n=2, max_tokens=6)
    score   = spread(rollout)
    adv     = center(score, prompts)
    train actor(lr=0.02, eps={EPS}):
        minimize mean(-actor.logprobs(rollout) * adv)
    report score = mean(score), length = mean(rollout.length), first = mean(rollout.logprobs), best = sum(score * adv)
"""
SCHEDULE = """pool learn = 1 devices
pool play = 1 devices
place actor.train on learn(engine=transformers)
place actor.generate on play(engine=transformers)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("admit"))


# Who gets what


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_go_first_to_who_has_least(seed: int) -> None:
    chance = random.Random(seed)
    copies, expected = chance.randint(1, 5), [chance.choice([1.0, 5.0, chance.random() * 9]) for _ in range(13)]
    found = balance_rows(expected, copies)
    assert sorted(place for own in found for place in own) == list(range(13))
    loads = [0.0] * copies
    order = sorted(range(13), key=lambda place: -expected[place])
    for place in order:
        mine = next(copy for copy, own in enumerate(found) if place in own)
        assert loads[mine] == min(loads)
        loads[mine] += expected[place]
    for own in found:
        assert [expected[place] for place in own] == sorted((expected[place] for place in own), reverse=True)


def test_where_nothing_is_known_all_have_as_many() -> None:
    assert balance_rows([0.0] * 7, 3) == [[0, 3, 6], [1, 4], [2, 5]]
    assert blocks_by_replica([0.0] * 5, [2, 2, 1], 2) == [[0, 2], [1]]
    assert blocks_by_replica(None, [1] * 5, 2) == [[0, 2, 4], [1, 3]]
    assert blocks_by_replica([1.0, 1.0, 9.0, 1.0, 1.0, 1.0], [2, 2, 2], 2) == [[1], [0, 2]]


def test_what_a_prompt_gave_before() -> None:
    history = LengthHistory()
    asked = [("prompts", 1, place) for place in range(3)]
    assert history.expected_lengths("rollout", asked) == [0.0, 0.0, 0.0]
    history.add_lengths("rollout", [("prompts", 0, 0, 0), ("prompts", 0, 0, 1), ("prompts", 0, 2, 0)], [4, 8, 30], True)
    history.add_lengths("other", [("prompts", 0, 0)], [500], False)
    # One that was never asked is as all of them.
    assert history.expected_lengths("rollout", asked) == [6.0, 14.0, 30.0]
    assert history.expected_lengths("other", asked[:1]) == [500.0]


# In processes


def run(made: Compiled, folder: Path) -> list[dict[str, float]]:
    backend = RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)
    try:
        return [step.metrics for step in backend.run_steps(4)]
    finally:
        backend.close()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[float]]]:
    """What the engine is told of the rows of each call, and nothing where it is not."""
    found: list[list[float]] = []
    before = TransformersEngine.generate

    def generate(self: TransformersEngine, *args: object, expected: Sequence[float] | None = None, **more: object):  # type: ignore[no-untyped-def]
        found.append(list(expected or ()))
        return before(self, *args, expected=expected, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(TransformersEngine, "generate", generate)
    yield found


@pytest.mark.parametrize("by", few(["longest", "spread", '"place"'], "spread"))
def test_no_number_changes(folder: Path, told: list[list[float]], by: str) -> None:
    local = LocalBackend(compiled(PROGRAM, {}, SCHEDULE, folder).program, Settings(folder=folder))
    wanted = [step.metrics for step in local.run_steps(4)]
    local.close()
    told.clear()
    found = run(compiled(PROGRAM, {}, SCHEDULE + f"admit rollout(by={by})\n", folder), folder)
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    assert len(told) == 4
    assert all(len(each) == 5 for each in told)
    if by == '"place"':
        assert sorted(told[0] + told[1]) == [float(place) for place in range(10)]
    if by == "longest":
        # The step after the next one knows what a prompt gave.
        assert any(len(set(each)) > 1 for each in told[1:]), told


def test_a_run_that_goes_on_knows_what_prompts_gave(folder: Path) -> None:
    made = compiled(PROGRAM, {}, SCHEDULE + "admit rollout\n", folder)
    first = RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)
    try:
        list(first.run_steps(2))
        assert first.extra_state_names == (HISTORY,)
        kept = first.last_state_value(HISTORY)
        assert sum(rows for rows, _ in kept["rollout"].values()) == 2 * 5 * 2
    finally:
        first.close()
    later = RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)
    try:
        later.resume(0, {HISTORY: kept}, {})
        assert later.last_state_value(HISTORY) == kept
    finally:
        later.close()


def test_rows_that_are_expected_to_be_as_long_are_decoded_together() -> None:
    from rlgraph.backends.engines.transformers.decode import _blocks, _order

    lengths = np.array([3, 3, 1, 1, 2, 2, 2, 2])
    import torch

    order = _order(torch.from_numpy(lengths), 2, [4.0, 9.0, 4.0, 7.0])
    assert order.tolist() == [2, 3, 6, 7, 4, 5, 0, 1]
    assert [each.tolist() for each in _blocks(order, torch.from_numpy(lengths), 5, 2, 1 << 18, 2)] == [
        [2, 3, 6, 7],
        [4, 5, 0, 1],
    ]


# In the simulator


class Narrow(Alike):
    """A copy decodes two rows at a time."""

    def sampling_result(
        self,
        model: str,
        operation: str,
        prompts: Sequence[float],
        answers: Sequence[float],
        samples: int,
        copy: int,
        *played: object,
    ) -> SamplingResult:
        self.asked.append([int(tokens) for tokens in answers])
        pace, copy = SamplingPace(0.0, 0.0, 2, step), ContinuousBatch()
        copy.add_call(0.0, pace, answers)
        [found] = copy.row_end_times()
        return SamplingResult(Cost(compute=max(found, default=0.0)), found, pace)


SIMULATED = f"""
pool all = {COPIES} devices
place actor on all(engine=vllm, dp={COPIES})
place reward on all(engine=transformers, dp={COPIES})
"""
LONG = Lengths.from_lengths([round(float(each)) for each in np.exp(np.linspace(1, 6, 40))])


def seconds(folder: Path, lines: str, foresight: float = 1.0, seed: int = 0) -> tuple[float, Narrow]:
    from test_tails import PROGRAM

    made = compiled(PROGRAM, {}, SIMULATED + lines, folder)
    how = Narrow(0.0)
    backend = SimBackend(made.program, made.plan, how, Workload(Lengths((2.0,)), LONG, foresight=foresight), seed)
    assert len(list(backend.run_steps(1))) == 1
    done = [work for work in backend.works if work.op == "generate"]
    assert sum(work.rows for work in done) == ROWS
    return max(work.end for work in done), how


@pytest.mark.parametrize("stream", ["", "stream rollout(block=1)\n", "stream rollout(block=1, deal=free)\n"])
def test_it_is_faster_where_rows_wait_for_room(folder: Path, stream: str) -> None:
    pairs = [
        (seconds(folder, stream, seed=seed)[0], seconds(folder, f"{stream}admit rollout\n", seed=seed)[0])
        for seed in range(5)
    ]
    assert sum(with_it for _, with_it in pairs) < 0.9 * sum(without for without, _ in pairs)
    # The longest first is no optimum: 4/3 of it at most.
    assert all(with_it <= without * 4 / 3 for without, with_it in pairs), pairs


def test_each_copy_begins_with_its_longest(folder: Path) -> None:
    _, how = seconds(folder, "stream rollout(block=1)\nadmit rollout\n")
    own = how.asked[:COPIES]
    assert [sorted(each, reverse=True) for each in own] == own
    loads = [sum(each) for each in own]
    assert max(loads) - min(loads) < max(map(max, own))
    _, how = seconds(folder, "stream rollout(block=1)\n")
    assert [sorted(each, reverse=True) for each in how.asked[:COPIES]] != how.asked[:COPIES]


def test_with_a_tail_the_same_rows_end(folder: Path) -> None:
    lines = "stream rollout(block=1, deal=free)\ntail rollout(under=8, on=1)\n"
    found, how = seconds(folder, lines + "admit rollout\n")
    assert len(how.asked) > COPIES, "some have moved"
    without, _ = seconds(folder, lines)
    assert found < without


def test_who_knows_nothing_gains_nothing(folder: Path) -> None:
    lines = "stream rollout(block=1)\nadmit rollout\n"
    knows, guesses = (sum(seconds(folder, lines, each, seed)[0] for seed in range(5)) for each in (1.0, 0.0))
    assert knows < 0.95 * guesses


def test_answers_to_one_prompt_are_alike() -> None:
    numbers = np.arange(4000)
    rows = FakeRows(
        "rollout", "play", numbers, numbers, numbers, numbers * 0.0, numbers, 4000, given_up=numbers, turns=numbers
    )
    for alike in (0.0, 0.6):
        shares = rows.uniform_quantiles("key", 4, alike)
        assert sorted(shares) == pytest.approx((np.arange(4000) + 0.5) / 4000)
        pairs = shares.reshape(-1, 4)
        assert np.corrcoef(pairs[:, 0], pairs[:, 1])[0, 1] == pytest.approx(alike, abs=0.06)
    assert rows.pick(np.arange(8, 12)).uniform_quantiles("key", 4, 0.6) == pytest.approx(shares[8:12])
