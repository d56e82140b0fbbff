"""The one rule: a node fires when a block of its unit is ready on all its inputs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import EPS, Run, compile_text, data_folder, run_text, weights

from rlgraph.backends.clocks import ThreadClock
from rlgraph.backends.executor import Executor
from rlgraph.backends.frame import Frame, NodeOutput, Part
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.row_blocks import BlockSizes
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.graph import Node
from tests.suites import few
from tests.waits import NEVER


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("executor"))


HEAD = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=6, shuffle=false)
func spread = python("rewards.py:spread", over=row)
"""

STREAM = (
    HEAD
    + """
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    score   = spread(rollout)
    half    = score / 2
    adv     = half - mean(half, by=prompts)
    white   = whiten(adv)
    report score = mean(score), adv = max(adv), white = max(white)
"""
)


class Fired:
    """Which nodes fired in what order, on how many rows of their unit."""

    def __init__(self, text: str, folder: Path, **settings: Any) -> None:
        self.order: list[tuple[str, int]] = []
        run = Run(compile_text(text), folder, **settings)
        run.also = self.note
        self.seen = run.steps(1)[0]

    def note(self, node: Node, frame: Frame) -> None:
        axis = node.unit.axis if node.unit else None
        rows = frame.row_count(axis) if axis else -1
        # Passes may have fused nodes: each value is noted.
        self.order += [(value.name, rows) for value in node.outputs]

    def times(self, name: str) -> list[int]:
        return [at for at, (other, _) in enumerate(self.order) if other == name]

    def sizes(self, name: str) -> list[int]:
        return [size for other, size in self.order if other == name]


def test_one_block_is_the_classical_step(folder: Path) -> None:
    fired = Fired(STREAM, folder)
    assert all(len(fired.times(name)) == 1 for name, _ in fired.order)
    assert fired.sizes("rollout") == [6] and fired.sizes("score") == [12]
    assert fired.times("prompts") < fired.times("rollout") < fired.times("score") < fired.times("adv")


def test_rows_stream_before_the_batch_is_there(folder: Path) -> None:
    fired = Fired(STREAM, folder, block=2)
    assert fired.sizes("rollout") == [2, 2, 2], "two prompts at a time"
    assert fired.sizes("score") == [2] * 6, "two answers at a time"
    assert fired.times("score")[0] < fired.times("rollout")[1], "scoring does not wait for the second block"


def test_a_group_node_waits_for_its_groups_and_no_longer(folder: Path) -> None:
    fired = Fired(STREAM, folder, block=2)
    scored = fired.times("score")
    first = fired.times("adv")[0]
    assert scored[1] < first, "two groups are four answers: two blocks of the scores"
    assert first < fired.times("score")[-1], "and not the whole batch"
    assert fired.sizes("adv") == [2, 2, 2]


def test_a_barrier_waits_for_all(folder: Path) -> None:
    fired = Fired(STREAM, folder, block=2)
    assert fired.sizes("report.white") == [-1]
    assert fired.times("report.white")[0] > fired.times("adv")[-1]


@pytest.mark.parametrize("block", few([1, 2, 3, 4, 5, 6, 7, 100], 2, 5, 7))
def test_the_last_block_may_be_smaller(folder: Path, block: int) -> None:
    fired = Fired(STREAM, folder, block=block)
    for name, rows in (("rollout", 6), ("adv", 6), ("score", 12)):
        sizes = fired.sizes(name)
        assert sum(sizes) == rows
        assert all(size == block for size in sizes[:-1]) and sizes[-1] <= max(block, rows)
    assert fired.seen.metrics == Fired(STREAM, folder).seen.metrics


def test_a_blocks_frame_holds_whole_groups(folder: Path) -> None:
    groups: list[list[int]] = []

    def note(node: Node, frame: Frame) -> None:
        if node.name == "adv":
            groups.append(
                np.bincount(frame.ancestor_rows("rollout", "prompts"), minlength=frame.row_count("prompts")).tolist()
            )

    run = Run(compile_text(STREAM), folder, block=2)
    run.also = note
    run.steps(1)
    assert groups == [[2, 2]] * 3


class Streamed(Fired):
    """A run whose schedule says how many rows of some tables are a block."""

    def __init__(self, text: str, folder: Path, **tables: int) -> None:
        self.order = []
        run = Run(compile_text(text), folder)
        run.backend.executor = Executor(run.backend, BlockSizes(tables=tables))
        run.also = self.note
        self.seen = run.steps(1)[0]


@pytest.mark.parametrize(
    ("block", "answers", "prompts"),
    few(
        [
            (1, [2] * 6, [1] * 6),
            (2, [2] * 6, [1] * 6),
            (3, [3, 3, 6], [2] * 3),
            (4, [4] * 3, [2] * 3),
            (8, [8, 4], [4, 2]),
            (100, [12], [6]),
        ],
        1,
        3,
        8,
    ),
)
def test_a_block_of_a_table_is_so_many_of_its_rows_at_every_node(
    folder: Path, block: int, answers: list[int], prompts: list[int]
) -> None:
    """Two answers for each prompt: where prompts go through, the fewest in which so many answers lie. Nobody works on
    with the scores of one block: scoring takes all whole blocks that are there."""
    fired = Streamed(STREAM, folder, rollout=block)
    assert fired.sizes("rollout") == prompts
    assert fired.sizes("score") == answers and sum(fired.sizes("adv")) == 6
    assert fired.seen.metrics == Fired(STREAM, folder).seen.metrics


TABLES = (
    HEAD
    + """
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    other   = actor.generate(prompts, n=3, max_tokens=4)
    greedy  = actor.generate(prompts, max_tokens=4, temperature=0)
    score   = spread(rollout)
    second  = spread(other)
    third   = spread(greedy)
    report score = mean(score), second = mean(second), third = mean(third)
"""
)


def test_a_block_that_others_work_on_with_is_no_larger(folder: Path) -> None:
    text = STREAM.replace(
        "    half ",
        "    keep rollout where score > -1\n    chances = actor.logprobs(rollout, temperature=2.0)\n    half ",
    )
    text = text.replace("report ", "report chance = mean(chances), ")
    assert Streamed(text, folder, rollout=3).sizes("score") == [3] * 4


def test_only_the_table_that_is_streamed_goes_in_blocks(folder: Path) -> None:
    fired = Streamed(TABLES, folder, rollout=4)
    assert (fired.sizes("rollout"), fired.sizes("score")) == ([2, 2, 2], [4, 4, 4])
    assert [fired.sizes(name) for name in ("other", "second", "greedy", "third")] == [[6], [18], [6], [6]]


def test_each_table_has_blocks_of_its_own(folder: Path) -> None:
    fired = Streamed(TABLES, folder, other=6, greedy=3)
    assert (fired.sizes("other"), fired.sizes("second")) == ([2, 2, 2], [6, 6, 6])
    assert (fired.sizes("greedy"), fired.sizes("third")) == ([3, 3], [3, 3])
    assert (fired.sizes("rollout"), fired.sizes("score")) == ([6], [12])


@pytest.mark.parametrize(
    "tables", few([{"rollout": 3}, {"more": 3}, {"rollout": 5, "more": 2}], {"rollout": 5, "more": 2})
)
def test_a_filtered_table_streams(folder: Path, tables: dict[str, int]) -> None:
    fired, whole = Streamed(FILTERED, folder, **tables), Fired(FILTERED, folder)
    assert fired.seen.metrics == pytest.approx(whole.seen.metrics, abs=1e-12)
    if "more" in tables:
        rows = fired.sizes("again")
        assert len(rows) > 1 and set(rows[:-1]) == {tables["more"]} and sum(rows) == sum(whole.sizes("again"))


LATE = (
    HEAD
    + f"""
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    before  = actor.logprobs(rollout, temperature=0.5)
    train actor(lr=0.1, eps={EPS}):
        minimize mean(-actor.logprobs(rollout))
    report before = mean(before), after = mean(actor.logprobs(rollout, temperature=0.5))
"""
)


@pytest.mark.parametrize("block", few([1, 3, 4], 3))
def test_a_writer_waits_for_the_readers_of_the_old_weights(folder: Path, block: int) -> None:
    """Generation is in blocks of prompts and `before` in blocks of answers, so that it lags behind."""
    fired = Fired(LATE, folder, block=block)
    train = next(at for at, (name, _) in enumerate(fired.order) if name.startswith("actor@"))
    assert fired.times("before")[-1] < train
    whole = Fired(LATE, folder).seen.metrics
    assert fired.seen.metrics == pytest.approx(whole, abs=1e-12)
    assert abs(whole["after"] - whole["before"]) > 0.1, "the weights did change"


CHOSEN = (
    HEAD
    + """
step:
    rollout = actor.generate(prompts, n=3, max_tokens=4)
    score   = spread(rollout)
    best    = pick(rollout, argmax(score - mean(score), by=prompts))
    own     = pick(rollout, argmax(score, by=prompts))
    report best = mean(spread(best)), own = mean(spread(own)), top = mean(max(score, by=prompts))
"""
)


@pytest.mark.parametrize("block", few([None, 1, 2, 4], None, 2))
def test_a_choice_of_rows_means_the_same_rows_in_every_block(folder: Path, block: int | None) -> None:
    """One choice is made over the whole batch, because of its mean, and used in blocks."""
    metrics = run_text(CHOSEN, folder, block=block)[0].metrics
    assert metrics["best"] == metrics["own"] == pytest.approx(metrics["top"], abs=1e-12)


FILTERED = (
    HEAD
    + """
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    score   = spread(rollout)
    keep rollout where score > 0.4
    left    = size(score, by=prompts)
    keep prompts where left > 0
    more    = actor.generate(prompts, n=2, max_tokens=3)
    again   = spread(more)
    lp      = actor.logprobs(more, temperature=2.0)
    report left = sum(left), rows = size(left), again = sum(again), lp = mean(lp), both = sum(mean(score, by=prompts) * left)
"""
)


@pytest.mark.parametrize("block", few([1, 2, 3, 5], 2, 3))
def test_filters_and_tables_of_tables_stream(folder: Path, block: int) -> None:
    assert run_text(FILTERED, folder, block=block)[0].metrics == pytest.approx(
        run_text(FILTERED, folder)[0].metrics, abs=1e-12
    )


def test_a_node_is_done_when_nothing_comes_after_its_last_block(folder: Path) -> None:
    """The last prompts are dropped: what had all of its rows before must not wait for more."""
    text = (
        HEAD
        + """
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    score   = spread(rollout)
    keep prompts where prompts.place < 3
    high    = max(score, by=prompts)
    report high = sum(high), length = sum(rollout.length), n = size(high)
"""
    )
    whole = run_text(text, folder)[0].metrics
    assert whole["n"] == 3
    for block in (1, 2, 3, 5):
        assert run_text(text, folder, block=block)[0].metrics == whole


@pytest.mark.parametrize("block", few([None, 1, 2], None, 2))
def test_an_axis_is_closed_by_the_node_that_makes_it(folder: Path, block: int | None) -> None:
    """The first filter leaves rows of prompts that no value lies on: only tables in them are used afterwards."""
    text = (
        HEAD
        + """
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    score   = spread(rollout)
    keep prompts where mean(score, by=prompts) > 5
    keep rollout where score > 0.4
    top     = score - max(score, by=prompts)
    keep prompts where mean(score, by=prompts) > 0.4
    report top = sum(top), n = size(top)
"""
    )
    assert run_text(text, folder, block=block)[0].metrics == {"top": 0, "n": 0}


class InParts(LocalBackend):
    """Makes the second part only when somebody has worked on the first."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.executor = Executor(self, BlockSizes(2), ThreadClock())
        self.scored = threading.Event()
        self.early: list[bool] = []

    def streams_output(self, node: Node, frame: Frame) -> bool:
        return node.op == "generate"

    def run_in_parts(self, node: Node, frame: Frame, sizes: Sequence[int]) -> Iterator[Part]:
        for number, (start, stop) in enumerate(pairwise(accumulate(sizes, initial=0))):
            self.early.append(start == 0 or self.scored.wait(NEVER))
            block, _ = frame.slice_rows("prompts", np.arange(start, stop), node.inputs)
            yield number, self.fire(node, block)

    def fire(self, node: Node, frame: Frame) -> NodeOutput:
        made = super().fire(node, frame)
        if node.op == "call":
            self.scored.set()
        return made


def test_parts_go_on_before_the_whole_is_done(folder: Path) -> None:
    backend = InParts(compile_text(STREAM), Settings(folder=folder))
    try:
        [step] = backend.run_steps(1)
    finally:
        backend.close()
    assert backend.early == [True, True, True]
    assert step.metrics == pytest.approx(Fired(STREAM, folder).seen.metrics, abs=1e-12)


class Dealt(LocalBackend):
    """Its function is called on three blocks at a time, and the first block is the last one that is done."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.executor = Executor(self, BlockSizes(), ThreadClock(), 3)
        self.begun: list[int] = []
        self.numbers = count()
        """Of blocks: threads that begin at once have different ones."""
        self.others = threading.Semaphore(0)
        self.waited: list[bool] = []

    def max_concurrent_blocks(self, node: Node, frame: Frame) -> int:
        return 3 if node.op == "call" else 1

    def fire(self, node: Node, frame: Frame) -> NodeOutput:
        if node.op != "call":
            return super().fire(node, frame)
        self.begun.append(frame.row_count("rollout"))
        if next(self.numbers) == 0:
            self.waited = [self.others.acquire(timeout=NEVER) for _ in range(3)]
        made = super().fire(node, frame)
        self.others.release()
        return made


def test_who_takes_rows_by_itself_gets_shares_and_their_values_come_back_in_order(folder: Path) -> None:
    backend = Dealt(compile_text(STREAM), Settings(folder=folder))
    seen: list[torch.Tensor] = []
    backend.watch = lambda node, frame: seen.append(frame.values["half"]) if "half" in frame.values else None
    try:
        [step] = backend.run_steps(1)
    finally:
        backend.close()
    assert backend.waited == [True] * 3, "others are done before the first block"
    assert sum(backend.begun) == 12 and len(backend.begun) > 4
    assert max(backend.begun) == 2, "a sixth of what is left each time"
    assert step.metrics == pytest.approx(Fired(STREAM, folder).seen.metrics, abs=1e-12)
    told = Run(compile_text(STREAM), folder).steps(1)[0]
    assert torch.equal(seen[-1], told.values["half"])


def test_a_failure_in_a_thread_ends_the_run(folder: Path) -> None:
    class Fails(InParts):
        def fire(self, node: Node, frame: Frame) -> NodeOutput:
            if node.op == "call":
                raise LookupError("no such thing")
            return super().fire(node, frame)

        def fail_pending_work(self, why: BaseException) -> None:
            self.scored.set()

    backend = Fails(compile_text(STREAM), Settings(folder=folder))
    try:
        with pytest.raises(LookupError, match="no such thing"):
            list(backend.run_steps(1))
    finally:
        backend.close()
