"""Steps in flight: what overlaps, what waits, and that asking for steps piece by piece changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import pytest
from scheduled import compiled
from tiny import data_folder, weights

from rlgraph.api.compiled import Compiled
from rlgraph.backends.frame import Frame
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.sim.works import Work
from rlgraph.backends.steps import StepResult
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.graph import Node
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.sampling import SamplingResult
from rlgraph.passes.cost.workload import Workload
from tests.backends.costs import Free

LONGEST = 3.0
WORKLOAD = Workload(Lengths((2.0,)), Lengths((LONGEST,)))

HEAD = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5)
func spread = python("rewards.py:spread")
state seen = 0
"""

AHEAD = (
    HEAD
    + """
STEP:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    score   = spread(rollout)
    seen   := seen + sum(score)
    train actor(lr=0.05):
        minimize mean(-actor.logprobs(rollout) * score)
    report age = mean(rollout.age), seen = seen
"""
)

APART = """
pool learn = 1 devices
pool play = 1 devices
place actor.train on learn(engine=transformers)
place actor.generate on play(engine=transformers)
"""

ONE = """
pool all = 1 devices
place actor.train on all(engine=transformers)
place actor.generate on all(engine=transformers)
"""


class Seconds(Free):
    """Each kind of work takes what it is said to take."""

    def __init__(self, generate: float, train: float, sync: float = 1.0) -> None:
        self.takes = {"generate": generate, "train": train}
        self.sent = sync

    def work_cost(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
        return Cost(compute=self.takes[operation])

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
        takes = self.takes[operation]
        return SamplingResult(Cost(compute=takes), [takes] * len(answers))

    def weight_sync_cost(self, model: str, source: str, target: str, copies: int | None = None) -> Cost:
        return Cost(communication=self.sent)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("flight"))


def program(folder: Path, lag: int, schedule: str = APART, text: str = AHEAD) -> Compiled:
    step = f"step async(lag={lag})" if lag else "step"
    return compiled(text.replace("STEP", step), {}, schedule, folder)


def simulated(made: Compiled, seconds: Seconds, count: int) -> tuple[list[Work], list[StepResult]]:
    backend = SimBackend(made.program, made.plan, seconds, WORKLOAD)
    steps = list(backend.run_steps(count))
    return backend.works, steps


@pytest.mark.parametrize("generate, train", [(10.0, 10.0), (10.0, 4.0), (4.0, 10.0)])
def test_a_step_takes_as_long_as_its_slower_half(folder: Path, generate: float, train: float) -> None:
    """One step ahead, weights go from one half to the other between them: both take part in that."""
    _, in_turn = simulated(program(folder, 0), Seconds(generate, train), 6)
    assert [step.seconds for step in in_turn] == [generate + train] + [1 + generate + train] * 5
    for lag in (1, 2, 3):
        _, ahead = simulated(program(folder, lag), Seconds(generate, train), 12)
        # At the end nothing is ahead any more.
        steady = [step.seconds for step in ahead][lag + 1 : -lag]
        assert steady == [1 + max(generate, train)] * len(steady)


def test_rows_come_from_the_weights_that_the_lag_says(folder: Path) -> None:
    """Step t generates once the step t-1-k has been trained and its weights have come, and not before."""
    for lag in (1, 2):
        works, _ = simulated(program(folder, lag), Seconds(3.0, 10.0), 8)
        generated = [work for work in works if work.op == "generate"]
        trained = [work for work in works if work.op == "train"]
        assert len(generated) == len(trained) == 8
        for number in range(lag + 1, 8):
            assert generated[number].start >= trained[number - lag - 1].end
        assert all(made.end <= read.start for made, read in zip(generated, trained, strict=True))
        assert sum(work.op == "sync" for work in works) == 8 - lag - 1
        ahead = [sum(made.start < read.end for made in generated) for read in trained]
        assert ahead == [min(8, number + lag) for number in range(1, 9)], "as far as it may be, and no further"


def test_on_one_pool_the_older_step_is_served_first(folder: Path) -> None:
    works, steps = simulated(program(folder, 2, ONE), Seconds(3.0, 5.0), 6)
    assert sum(step.seconds for step in steps) == 6 * 8.0
    own = sorted((work.start, work.end) for work in works if "all" in work.pools)
    assert all(before[1] <= after[0] for before, after in pairwise(own))
    ops = [work.op for work in works if work.op in ("generate", "train")]
    # While the scores of the first rows are worked out, the next ones are generated; from then on it is training's turn
    # whenever there is something to train on.
    assert ops == ["generate", *["generate", "train"] * 5, "train"]


class Functions(Seconds):
    """A function takes 6 s."""

    def host_work_cost(self, op: str, count: float) -> Cost:
        return Cost(overhead=6.0 if NODES[op].foreign else 0.0)


def test_evaluating_holds_nobody_up(folder: Path) -> None:
    """The next step samples while the samples that nobody trains on are judged, and has read its data by then."""
    evaluated = AHEAD.replace("data prompts", "data unseen = jsonl('prompts.jsonl', batch=5)\ndata prompts")
    evaluated += """
    every 1:
        tests = actor.generate(unseen, max_tokens=4)
        report solved = mean(spread(tests))
"""
    works, steps = simulated(program(folder, 0, text=evaluated), Functions(10.0, 4.0), 5)
    # Sampled, judged, trained, weights, sampled again: how long that is judged shows in the last step alone.
    assert sum(step.seconds for step in steps) == 5 * (10.0 + 6.0 + 4.0 + 1.0 + 10.0) + 6.0
    trained = [work.end for work in works if work.op == "train"]
    read = [work.end for work in works if work.name == "prompts"]
    assert len(read) == 5 and all(there <= end for there, end in zip(read[1:], trained, strict=False))


def test_asked_for_piece_by_piece_it_is_the_same(folder: Path) -> None:
    """Who stops in the middle leaves steps that are ahead under way: nothing is done twice."""
    made = program(folder, 2)
    seconds = Seconds(7.0, 5.0)
    whole = SimBackend(made.program, made.plan, seconds, WORKLOAD)
    expected = [step.number for step in whole.run_steps(7)]
    pieces = SimBackend(made.program, made.plan, seconds, WORKLOAD)
    found = []
    for wanted, taken in ((None, 2), (3, 1), (1, 1), (None, 3)):
        with closing(pieces.run_steps(wanted)) as steps:  # type: ignore[type-var]
            found += [step.number for step in islice(steps, taken)]
    assert found == expected == [*range(1, 8)]

    def times(backend: SimBackend, op: str) -> int:
        return sum(work.op == op for work in backend.works)

    assert times(pieces, "train") == times(whole, "train") == 7
    assert 7 <= times(pieces, "generate") <= 7 + 2 + 1, "those ahead, once each"


def test_a_step_that_failed_begins_again(folder: Path) -> None:
    backend = LocalBackend(program(folder, 0).program, Settings(folder=folder))
    fails = True

    def watch(node: Node, frame: Frame) -> None:
        if fails and node.op == "train" and frame.step.number == 2:
            raise LookupError("no such thing")

    backend.watch = watch
    try:
        with pytest.raises(LookupError):
            list(backend.run_steps(3))
        fails = False
        again = list(backend.run_steps(2))
    finally:
        backend.close()
    assert [(step.number, "seen" in step.metrics) for step in again] == [(2, True), (3, True)]


BOUND = AHEAD.replace("STEP", "step async(staleness=2)").replace(
    "minimize mean(-actor.logprobs(rollout) * score)",
    "logp = actor.logprobs(rollout)\n"
    "        minimize mean(-min(exp(detach(logp) - rollout.logprobs), 2.0) * logp * score)",
)


@pytest.mark.parametrize("generate, train, oldest", [(10.0, 4.0, 1), (4.0, 10.0, 2), (4.0, 3.0, 1)])
def test_rows_of_a_bounded_age_come_from_the_newest_weights(
    folder: Path, generate: float, train: float, oldest: int
) -> None:
    """The slower half sets the pace, and rows are as old as they have to be: where generating is the slower one, no
    step is ahead of the one before by more than itself."""
    made = program(folder, 2, text=BOUND)
    backend = SimBackend(made.program, made.plan, Seconds(generate, train), WORKLOAD)
    ages = []
    for frame, extra in backend.iter_step_frames(backend.upcoming_steps(12)):
        [age] = (int(name.removeprefix("age/")) for name in extra if name.startswith("age/"))
        ages.append(age)
        assert age <= min(2, frame.step.number - 1)
    assert ages[3:] == [oldest] * 9
    starts = [work.start for work in backend.works if work.op == "generate"]
    ends = [work.end for work in backend.works if work.op == "train"]
    for number, age in enumerate(ages):
        assert sum(end <= starts[number] for end in ends) >= number - age, "these weights had been made"


@pytest.mark.parametrize("rest, oldest", [("carry", 1), ("drop", 2), ("later", 2)])
def test_rows_that_may_be_carried_over_come_from_younger_weights(folder: Path, rest: str, oldest: int) -> None:
    """Training is the slower half, so that rows get as old as they may: what waits for a step is a step older there."""
    sampling = "    rollout = actor.generate(prompts, n=2, max_tokens=4)\n"
    collected = f"    collect prompts(4, rest={rest}):\n    {sampling}        keep prompts where prompts.place >= 0\n"
    made = program(folder, 2, text=BOUND.replace(sampling, collected))
    backend = SimBackend(made.program, made.plan, Seconds(4.0, 10.0), WORKLOAD)
    steps = [extra for _, extra in backend.iter_step_frames(backend.upcoming_steps(8))]
    assert max(int(name.removeprefix("age/")) for extra in steps for name in extra if "age/" in name) == oldest


@pytest.mark.parametrize("late", ["drop", "again"])
def test_rows_that_wait_until_they_are_too_old(folder: Path, late: str) -> None:
    """They may come from weights as old as the bound. What was read was used, waits, or was too old; asked again, none
    of it is lost."""
    sampling = "    rollout = actor.generate(prompts, n=2, max_tokens=4)\n"
    text = BOUND.replace(sampling, f"    collect prompts(1):\n    {sampling}")
    made = program(folder, 2, text=text.replace("staleness=2", f"staleness=2, late={late}"))
    backend = SimBackend(made.program, made.plan, Seconds(4.0, 10.0), WORKLOAD)
    steps = list(backend.iter_step_frames(backend.upcoming_steps(12)))
    assert max(int(name.removeprefix("age/")) for _, extra in steps for name in extra if "age/" in name) == 2
    gone, left = [frame.metrics["prompts.late"] for frame, _ in steps], backend.last_things
    assert gone[:4] == [0, 0, 0, 2], "those of the first step, of which three were used until they were three steps old"
    assert left is not None
    waiting = left["prompts.surplus"]
    kept = len(steps) + (waiting.row_count("prompts") if waiting else 0)
    assert left["prompts"] == kept + (sum(gone) if late == "drop" else 0)


class Uneven(Seconds):
    """Of the batches that are generated every third one takes long."""

    def __init__(self) -> None:
        super().__init__(10.0, 8.0)
        self.batches = 0

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
        self.batches += 1
        takes = 40.0 if self.batches % 3 == 1 else 10.0
        return SamplingResult(Cost(compute=takes), [takes] * len(answers))


def test_batches_that_are_taken_as_they_end(folder: Path) -> None:
    """A copy that is free goes on with the next batch, and a batch that takes long is of a later step: nobody who
    generates waits, and each row is used once."""
    sampling = "    rollout = actor.generate(prompts, n=2, max_tokens=4)\n"
    text = BOUND.replace(sampling, f"    collect prompts(15, ahead=2):\n    {sampling}")
    schedule = APART.replace("play = 1", "play = 2") + "stream rollout(block=10, deal=free)\n"
    took, idle, batches = {}, {}, {}
    for order in ("data", "arrival"):
        made = program(folder, 2, schedule, text.replace("staleness=2", f"staleness=3, order={order}"))
        backend = SimBackend(made.program, made.plan, Uneven(), WORKLOAD)
        told = list(backend.run_steps(12))
        took[order] = sum(step.seconds for step in told[2:])
        works = [work for work in backend.works if work.op == "generate"]
        end = sum(step.seconds for step in told)
        idle[order] = 2 * end - sum(min(work.end, end) - work.start for work in works if work.start < end)
        batches[order] = [batch for step in told for batch in (step.trace or {}).get("ended", ())]
        assert backend.last_things is not None and backend.last_things["prompts"] == 5 * len(works)
    assert took["arrival"] < 0.95 * took["data"] and idle["arrival"] < 0.25 * idle["data"]
    ended = batches["arrival"]
    assert not batches["data"] and len(ended) == len(set(ended)) and ended != sorted(ended)


class Tokens(Seconds):
    """A generated token of the longest row takes as long as any other."""

    def work_cost(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
        if operation == "train":
            return super().work_cost(model, operation, batches)
        return Cost(compute=self.takes["generate"] * batches[0].response.longest / LONGEST)


def test_newer_weights_come_to_rows_that_are_generated(folder: Path) -> None:
    """Once for each update: the group waits for them, and reads again what it has, which takes as long as a token."""
    text = BOUND.replace("staleness=2", "staleness=2, span=token")
    seconds = Tokens(12.0, 4.0)
    made = program(folder, 2, APART + "refresh actor on play(by=reread)\n", text)
    assert made.plan.holding("actor", "play.transformers").reread
    works, steps = simulated(made, seconds, 8)
    assert [step.metrics for step in steps] == [step.metrics for step in simulated(program(folder, 2), seconds, 8)[1]]
    updates = [work.end for work in works if work.op == "train"]
    rows = [work for work in works if work.op == "generate"]
    for work in rows:
        came = sum(work.start < end < work.end - 1 for end in updates)
        more = {name: each for name, each in work.parts.items() if name != "compute"}
        assert more == ({"sync": came * 1.0, "reading again": came * 12.0 / LONGEST} if came else {})
        assert work.seconds == pytest.approx(12.0 + sum(more.values()))
    assert sum("sync" in work.parts for work in rows) > 4
    # Rows that end first have what the group began with: then the weights go between two orders.
    drained, _ = simulated(program(folder, 2, text=text), seconds, 8)
    assert all(set(work.parts) == {"compute"} for work in drained if work.op == "generate")
    assert sum(work.op == "sync" and "play" in work.pools for work in drained) > 4


def test_copies_take_newer_weights_one_after_the_other(folder: Path) -> None:
    """A transfer to each, and a pause of each; what is kept is not read again."""
    text = BOUND.replace("staleness=2", "staleness=2, span=token")
    apart = APART.replace("play = 1", "play = 2") + "refresh actor on play(by=reread, each=replica)\n"
    made = program(folder, 2, apart, text)
    held = made.plan.holding("actor", "play.transformers")
    works, _ = simulated(made, Tokens(12.0, 4.0), 8)
    sent = Counter(work.step for work in works if work.op == "sync")
    assert sent.total() > 8 and all(count % 2 == 0 for count in sent.values())
    paused = [work.parts for work in works if work.op == "generate" and "sync" in work.parts]
    assert paused and all(parts["sync"] * 12 / LONGEST == parts["reading again"] for parts in paused)
    kept = replace(made.plan, holdings=(replace(held, reread=False, keep=True),))
    backend = SimBackend(made.program, kept, Tokens(12.0, 4.0), WORKLOAD)
    list(backend.run_steps(8))
    paused = [work.parts for work in backend.works if work.op == "generate" and "sync" in work.parts]
    assert paused and not any(parts.get("reading again") for parts in paused)


def test_a_bound_of_0_is_no_step_ahead(folder: Path) -> None:
    made = program(folder, 0, text=BOUND.replace("staleness=2", "staleness=0"))
    assert made.program == program(folder, 0, text=BOUND.replace("staleness=2", "lag=0")).program


PHASES = (
    HEAD
    + """
phase warm(steps=2):
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    train actor(lr=0.05):
        minimize mean(-actor.logprobs(rollout))

STEP:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    score   = spread(rollout)
    seen   := seen + sum(score)
    every 2:
        train actor(lr=0.05):
            minimize mean(-actor.logprobs(rollout) * score)
    report age = mean(rollout.age), seen = seen
"""
)


def test_phases_follow_each_other_and_steps_that_do_not_train_make_no_version(folder: Path) -> None:
    works, steps = simulated(program(folder, 1, text=PHASES), Seconds(4.0, 10.0), 6)
    assert [(step.number, step.phase) for step in steps] == [*enumerate(["warm"] * 2 + ["step"] * 6, 1)]
    generated = [work for work in works if work.op == "generate"]
    trained = [work for work in works if work.op == "train"]
    assert len(generated) == 8 and len(trained) == 5
    # Of the first two steps each waits for the one before; of the others, with a lag of one version, for older ones.
    assert generated[1].start >= trained[0].end
    assert generated[2].start < trained[1].end, "the weights of the first warm step"
    # Steps 4, 6 and 8 are trained: versions 3, 4 and 5; steps 7 and 8 work with version 3, one behind.
    assert generated[6].start >= trained[2].end and generated[6].start < trained[3].end
