"""The last rows of a table go on on few copies: which, when, what becomes of the other copies' devices, and what that
takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from scheduled import compiled
from tiny import data_folder, weights

from rlgraph.api.compiled import Compiled
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.sim.works import Work
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.sampling import SamplingPace, SamplingResult
from rlgraph.passes.cost.workload import Workload
from tests.backends.costs import Free

COPIES = 4
ROWS = 24
SOURCE = weights(hidden=64)
PROGRAM = f"""algorithm t
model actor  = causal_lm({SOURCE}, dtype="float32")
model reward = reward_lm({SOURCE}, dtype="float32")
data prompts = jsonl("prompts.jsonl", batch={ROWS})

step:
    rollout = actor.generate(prompts, max_tokens=500)
    score   = reward.score(rollout)
    report best = max(score)
"""
SCHEDULE = f"""
pool all = {COPIES} devices
place actor on all(engine=vllm, dp={COPIES})
place reward on all(engine=transformers, dp={COPIES})
stream rollout(block=1, deal=free)
"""


class Alike(Free):
    """A token takes a second and a tenth for each row that is sampled with it, but for the first one, which comes with
    what is read; to read a row again takes a while, and to score one longer than that."""

    def __init__(self, score: float = 2.0, read: float = 0.0) -> None:
        self.score, self.read = score, read
        self.asked: list[list[int]] = []
        """Tokens of the rows of each copy."""

    def work_cost(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
        return Cost(compute=self.score * sum(batch.rows for batch in batches) / (copies or COPIES))

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
        pace, seconds, ends = SamplingPace(0.0, self.read, 1000, step), self.read * len(answers), [0.0] * len(answers)
        before = 1.0
        for number, row in enumerate(sorted(range(len(answers)), key=answers.__getitem__)):
            seconds += (answers[row] - before) * step(len(answers) - number)
            before, ends[row] = answers[row], seconds
        return SamplingResult(Cost(compute=seconds), ends, pace)


def step(rows: int) -> float:
    return 1.0 + 0.1 * rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("tails"))


def made(folder: Path, tail: str) -> Compiled:
    return compiled(PROGRAM, {}, SCHEDULE + tail if tail else SCHEDULE.replace(", deal=free", ""), folder)


def works(program: Compiled, answers: Lengths, seed: int = 0, how: Alike | None = None, steps: int = 1) -> list[Work]:
    backend = SimBackend(program.program, program.plan, how or Alike(), Workload(Lengths((2.0,)), answers), seed)
    assert len(list(backend.run_steps(steps))) == steps
    return [work for work in backend.works if work.op in ("generate", "score")]


def ends(found: Sequence[Work], op: str) -> float:
    return max(work.end for work in found if work.op == op)


def devices(work: Work) -> set[int]:
    """On which it was done."""
    copies = {name.partition(" ")[2] for name in work.groups}
    return {*range(COPIES)} if "" in copies else {int(copy) for copy in copies}


LONG = Lengths.from_lengths([3, 5, 6, 8, 9, 50])


def test_scoring_begins_on_devices_that_the_last_rows_leave(folder: Path) -> None:
    without, tailed = (
        works(made(folder, tail), LONG, how=Alike(6.0)) for tail in ("", "tail rollout(under=8, on=1)\n")
    )
    for found in (without, tailed):
        assert sum(work.rows for work in found if work.op == "score") == ROWS
        assert sum(work.rows for work in found if work.op == "generate") == ROWS
    assert sum(work.tokens for work in without) == sum(work.tokens for work in tailed), "the same rows"
    assert min(work.start for work in without if work.op == "score") >= ends(without, "generate")
    assert min(work.start for work in tailed if work.op == "score") < 0.6 * ends(tailed, "generate")
    assert max(ends(tailed, "score"), ends(tailed, "generate")) < 0.85 * ends(without, "score")
    alone = [work for work in tailed if work.op == "generate" and len(devices(work)) == 1]
    assert 0 < sum(work.rows for work in alone) < 8


@pytest.mark.parametrize("seed", range(4))
def test_a_device_does_one_thing_at_a_time(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    lengths = Lengths.from_lengths([round(chance.lognormvariate(2, 1)) + 1 for _ in range(20)])
    tail = f"tail rollout(under={chance.choice(['0.3', '0.5', '20', '5'])}, on={chance.choice([1, 2, 3])})\n"
    found = works(made(folder, tail), lengths, seed, Alike(chance.random(), chance.random()), steps=3)
    assert sum(work.rows for work in found if work.op == "score") == 3 * ROWS
    for one, other in combinations(found, 2):
        # Rows of several steps may be sampled together.
        if "score" in (one.op, other.op) and devices(one) & devices(other) and one.seconds and other.seconds:
            assert one.end <= other.start + 1e-9 or other.end <= one.start + 1e-9, (one, other)


@pytest.mark.parametrize(("under", "on", "read"), [(6, 1, 0.0), (8, 2, 0.0), (12, 3, 0.0), (16, 2, 0.0), (10, 1, 0.7)])
def test_rows_end_when_tokens_are_counted_one_by_one(folder: Path, under: int, on: int, read: float) -> None:
    """Beside a few lines that let all copies go on from row to row that ends."""
    chance = random.Random(under)
    lengths = Lengths.from_lengths(chance.sample(range(1, 480), 60))
    how = Alike(0.0, read)
    found = works(made(folder, f"tail rollout(under={under}, on={on})\n"), lengths, 3, how)
    tokens = [how.asked[row % COPIES][row // COPIES] for row in range(ROWS)]
    assert ends(found, "generate") == pytest.approx(counted(tokens, under, on, read), rel=1e-9)
    assert len(how.asked) > COPIES, "some were read again"


def counted(tokens: Sequence[int], under: int, on: int, read: float) -> float:
    """Seconds until the last of these rows has ended, dealt to the copies in turn."""
    left = [{row: count - 1.0 for row, count in enumerate(tokens) if row % COPIES == copy} for copy in range(COPIES)]
    waits, now, moved = [read * len(own) for own in left], 0.0, False
    while any(left):
        until = [wait + min(own.values()) * step(len(own)) for wait, own in zip(waits, left, strict=True) if own]
        passed = min(until)
        now += passed
        for copy, own in enumerate(left):
            waited = min(waits[copy], passed)
            waits[copy] -= waited
            done = (passed - waited) / step(len(own)) if own else 0.0
            left[copy] = {row: count - done for row, count in own.items() if count - done > 1e-9}
        if not moved and 0 < sum(map(len, left)) < under:
            moved = True
            kept = sorted(range(COPIES), key=lambda copy: (-len(left[copy]), copy))[:on]
            going = {row: count for copy in range(COPIES) if copy not in kept for row, count in left[copy].items()}
            for row, count in sorted(going.items()):
                to = min(kept, key=lambda copy: (len(left[copy]), copy))
                left[to][row] = max(1.0, count) - 1
                waits[to] += read
            left = [own if copy in kept else {} for copy, own in enumerate(left)]
    return now
