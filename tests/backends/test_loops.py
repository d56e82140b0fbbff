"""Loops, phases and what lives across steps."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import EPS, Run, Seen, compile_text, data_folder, run_text, weights, without_answers

from rlgraph.backends.frame import Frame
from rlgraph.backends.loops import LOOPS
from rlgraph.backends.regions import Loop, LoopPolicy
from rlgraph.errors import RunError
from rlgraph.ir.graph import Node
from rlgraph.ops.nodes import NODES
from tests.suites import few


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("loops"))


MODEL = f'model actor = causal_lm({weights()}, dtype="float64")\n'
DATA = 'data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)\n'
FUNC = 'func spread = python("rewards.py:spread")\n'
HEAD = "algorithm t\n" + MODEL + DATA + FUNC


def ids_of(seen: Seen, name: str) -> list[Any]:
    return [row for table in seen.sampled if table.name == name for row in table.ids]


# minibatch


SLICED = (
    HEAD
    + """
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    minibatch prompts(parts=PARTS, epochs=EPOCHS, shuffle=SHUFFLE):
        train actor(lr=LR, eps=EPS):
            lp = actor.logprobs(rollout)
            minimize mean(-lp)
        own = lp - 0.5
    report lp = sum(lp), off = max(abs(lp - rollout.logprobs)), own = max(abs(own - lp)), loss = -mean(lp)
"""
)


def sliced(parts: int = 2, epochs: int = 1, shuffle: str = "false", lr: float = 0.05) -> str:
    text = SLICED.replace("PARTS", str(parts)).replace("EPOCHS", str(epochs))
    return text.replace("SHUFFLE", shuffle).replace("LR", str(lr)).replace("EPS", str(EPS))


def slices(text: str, folder: Path, **settings: Any) -> tuple[Seen, list[list[Any]]]:
    """A step, and the ids of the prompts of each slice."""
    found: list[list[Any]] = []

    def note(node: Node, frame: Frame) -> None:
        if node.op == "train":
            found.append(list(frame.rows["prompts"].ids or ()))

    run = Run(compile_text(text), folder, **settings)
    run.also = note
    return run.steps(1)[0], found


@pytest.mark.parametrize(
    ("parts", "sizes"), few([(1, [5]), (2, [3, 2]), (3, [2, 2, 1]), (5, [1] * 5), (9, [1] * 5)], 3, 9)
)
def test_slices_differ_by_one_row_at_most_and_none_is_empty(folder: Path, parts: int, sizes: list[int]) -> None:
    seen, found = slices(sliced(parts), folder)
    assert [len(part) for part in found] == sizes
    assert [row for part in found for row in part] == ids_of(seen, "rollout")[::2] or len(ids_of(seen, "rollout")) == 10
    assert [row[2] for part in found for row in part] == [0, 1, 2, 3, 4]


def test_every_epoch_has_every_row_once_and_a_shuffled_one_other_slices(folder: Path) -> None:
    _, found = slices(sliced(2, epochs=4, shuffle="true"), folder)
    epochs = [found[at : at + 2] for at in range(0, 8, 2)]
    for epoch in epochs:
        assert sorted(row[2] for part in epoch for row in part) == [0, 1, 2, 3, 4]
    assert len({str([sorted(part) for part in epoch]) for epoch in epochs}) > 1


@pytest.mark.parametrize("shuffle", ["true", "false"])
@pytest.mark.parametrize(("parts", "epochs"), few([(2, 1), (3, 2), (5, 3)], (3, 2)))
def test_values_after_a_loop_lie_in_the_rows_of_before(folder: Path, parts: int, epochs: int, shuffle: str) -> None:
    """At a rate of 0 what the loop computes is what sampling knew, row by row and token by token."""
    seen, _ = slices(sliced(parts, epochs, shuffle, lr=0.0), folder, micro_rows=2)
    assert seen.metrics["off"] < 1e-12
    assert seen.metrics["own"] == pytest.approx(0.5, abs=1e-12)


def test_a_shuffled_loop_is_the_same_in_any_blocks(folder: Path) -> None:
    text = sliced(2, epochs=2, shuffle="true")
    whole, found = slices(text, folder)
    for block in (1, 2, 3):
        other, again = slices(text, folder, block=block, micro_rows=1)
        assert again == found
        assert other.metrics == pytest.approx(whole.metrics, abs=1e-11)


def test_values_after_a_loop_are_those_of_the_last_pass(folder: Path) -> None:
    last = run_text(sliced(1, epochs=2), folder)[0].metrics["lp"]
    text = sliced(1).replace("report lp = sum(lp)", "report lp = sum(actor.logprobs(rollout))")
    assert last == pytest.approx(run_text(text, folder)[0].metrics["lp"], abs=1e-12)


@pytest.mark.parametrize("micro", few([1, 2, 100], 2))
def test_a_metric_of_a_loop_is_over_all_rows_of_all_slices(folder: Path, micro: int) -> None:
    """Slices of 2, 2 and 1 prompts with answers of unlike length: an average of averages would differ."""
    inside = sliced(3, lr=0.0).replace(
        "        own = lp - 0.5\n", "            report inner = mean(-lp)\n        own = lp - 0.5\n"
    )
    metrics = run_text(inside, folder, micro_rows=micro)[0].metrics
    assert metrics["inner"] == pytest.approx(metrics["loss"], abs=1e-12)


# collect


COLLECT = (
    "algorithm t\n"
    + MODEL
    + """data prompts = jsonl("prompts.jsonl", batch=4, shuffle=false)

STEP
    collect prompts(WANTED, rounds=ROUNDSMORE):
        rollout = actor.generate(prompts, n=2, max_tokens=3)
        keep prompts where CONDITION
    train actor(lr=0.01):
        minimize mean(-actor.logprobs(rollout))
    report age = sum(rollout.age), oldest = max(rollout.age), rows = size(rollout.length), off = max(abs(old))
"""
)


def collected(
    condition: str,
    folder: Path,
    steps: int,
    wanted: int = 3,
    rounds: int = 8,
    more: str = "",
    step: str = "step:",
    **settings: Any,
) -> Any:
    text = COLLECT.replace("WANTED", str(wanted)).replace("ROUNDS", str(rounds)).replace("CONDITION", condition)
    text = text.replace("MORE", more).replace("STEP", step)
    text = text.replace(", off = max(abs(old))", "")
    kept: list[list[Any]] = []

    def note(node: Node, frame: Frame) -> None:
        if node.op == "collect":
            axis = node.attr("axis")
            kept.append(list(frame.rows[axis].ids or ()))

    run = Run(compile_text(text), folder, **settings)
    run.also = note
    return run.steps(steps), kept


@pytest.mark.parametrize("block", few([None, 1, 3], None, 3))
def test_collect_loses_no_row_and_repeats_none(folder: Path, block: int | None) -> None:
    """Rows 3 .. 9 of ten are kept, four are read at a time, three are used in a step."""
    steps, kept = collected("prompts.place > 2", folder, 6, block=block)
    wanted = [("prompts", epoch, row) for epoch in range(4) for row in range(3, 10)]
    assert [row for step in kept for row in step] == wanted[:18]
    assert all(len(step) == 3 for step in kept)
    assert all(seen.metrics["rows"] == 6 for seen in steps)


def test_what_is_carried_over_keeps_its_age(folder: Path) -> None:
    """Four rows are kept in each round: 3 + 1 left, then 3 of 5, 2 left, then 3 of 6: rows that wait are a step old."""
    steps, _ = collected("prompts.place >= 0", folder, 5)
    counts = [len(seen.sampled) for seen in steps]
    assert counts == [1, 1, 1, 0, 1], "in the fourth step the surplus is enough"
    assert [seen.metrics["age"] / 2 for seen in steps] == [0, 1, 2, 3, 0]
    assert [seen.metrics["oldest"] for seen in steps] == [0, 1, 1, 1, 0]


def test_a_surplus_may_last_for_several_steps(folder: Path) -> None:
    steps, _ = collected("prompts.place >= 0", folder, 4, wanted=1)
    assert [len(seen.sampled) for seen in steps] == [1, 0, 0, 0]
    assert [seen.metrics["oldest"] for seen in steps] == [0, 1, 2, 3]


def test_collect_gives_up_after_so_many_rounds(folder: Path) -> None:
    with pytest.raises(RunError) as error:
        collected("prompts.place == 0", folder, 1, wanted=3, rounds=2)
    text = str(error.value)
    assert "error[E0737]: 1 of 3 rows were kept after 2 batches" in text
    assert "    collect prompts(3, rounds=2):" in text and "^" in text


def test_rows_of_all_rounds_are_there_exactly_once_however_many_rounds(folder: Path) -> None:
    steps, kept = collected("prompts.place % 4 == 1", folder, 4, wanted=2)
    assert [row[2] for step in kept for row in step] == [1, 5, 9, 1, 5, 9, 1, 5]
    assert max(len(seen.sampled) for seen in steps) > 1


def test_a_surplus_that_is_dropped(folder: Path) -> None:
    """Of each batch of four the first three are used; what is left over is told, and no row is older than its step."""
    steps, kept = collected("prompts.place >= 0", folder, 5, more=", rest=drop")
    assert [[row[2] for row in step] for step in kept] == [[0, 1, 2], [4, 5, 6], [8, 9, 0], [2, 3, 4], [6, 7, 8]]
    assert [seen.metrics["prompts.dropped"] for seen in steps] == [1] * 5
    assert [seen.metrics["oldest"] for seen in steps] == [0] * 5


@pytest.mark.parametrize("more, sampled", [("", [1, 2, 2, 1, 1]), (", ahead=1.5", [2, 1, 2, 1, 2])])
def test_a_surplus_that_is_asked_again(folder: Path, more: str, sampled: list[int]) -> None:
    """It comes first, as a batch of its own, and its answers are new ones: no row is lost, and none is older than its
    step."""
    steps, kept = collected("prompts.place >= 0", folder, 5, more=more + ", rest=later")
    assert [row[2] for step in kept for row in step] == [*range(10), *range(5)]
    assert [len(seen.sampled) for seen in steps] == sampled
    assert [seen.metrics["oldest"] for seen in steps] == [0] * 5
    asked = [{row[:3] for table in seen.sampled for row in table.ids} for seen in steps]
    for before, used, seen, now in zip(asked, kept, steps, asked[1:], strict=False):
        left = before - set(used)
        assert seen.metrics["prompts.later"] == len(left) and left <= now


def ended(steps: Any) -> list[dict[tuple[Any, ...], int]]:
    """For each step and row of the data that it asked the tokens of its longest answer."""
    found = []
    for seen in steps:
        longest: dict[tuple[Any, ...], int] = {}
        for table in seen.sampled:
            for row, scored in zip(table.ids, table.scored, strict=True):
                longest[row[:3]] = max(longest.get(row[:3], 0), sum(scored))
        found.append(longest)
    return found


def test_the_longest_have_a_round_of_their_own(folder: Path) -> None:
    """Of eight rows that are asked those four are taken whose answers end first; when four wait, a step asks them alone,
    and all of them are taken. No row is lost, none is trained on twice, and no answer is older than its step."""
    more = ", ahead=2, rest=longest"
    steps, kept = collected("prompts.place >= 0", folder, 6, wanted=4, more=more)
    asked = ended(steps)
    waiting: list[tuple[Any, ...]] = []
    for seen, used, longest in zip(steps, kept, asked, strict=True):
        again = len(waiting) >= 4
        assert seen.metrics["prompts.again"] == (4 if again else 0)
        assert len(longest) == (4 if again else 8) and len(used) == 4
        if again:
            assert list(longest) == waiting[:4] == used
            waiting = waiting[4:]
        first = sorted(longest, key=lambda row: (longest[row], list(longest).index(row)))[:4]
        assert sorted(first) == sorted(used)
        waiting += [row for row in longest if row not in used]
        assert seen.metrics["prompts.later"] == len(waiting) and seen.metrics["oldest"] == 0
    assert [len(longest) for longest in asked] == [8, 4, 8, 4, 8, 4]
    trained = [row for step in kept for row in step]
    assert len(trained) == len(set(trained)) == 24
    assert any(used != list(longest)[:4] for used, longest in zip(kept, asked, strict=True)), (
        "not the first of the data"
    )


def test_the_longest_beside_a_filter(folder: Path) -> None:
    """What a condition leaves out is gone, and more is read until enough rows are left to choose from."""
    steps, kept = collected("prompts.place % 2 == 0", folder, 4, wanted=3, more=", ahead=1.5, rest=longest")
    assert all(len(used) == 3 and all(row[2] % 2 == 0 for row in used) for used in kept)
    trained = [row for step in kept for row in step]
    assert len(trained) == len(set(trained))


def test_a_surplus_that_a_bound_lets_wait_once(folder: Path) -> None:
    """Of a batch of four one is used, one is carried over, and two would be older than any bound some day."""
    steps, kept = collected("prompts.place >= 0", folder, 4, wanted=1, step="step async(staleness=2):")
    assert [row[2] for step in kept for row in step] == [0, 1, 4, 5]
    assert [len(seen.sampled) for seen in steps] == [1, 0, 1, 0]
    assert [seen.metrics["oldest"] for seen in steps] == [0, 1, 0, 1]
    assert [seen.metrics["prompts.dropped"] for seen in steps] == [0, 2, 0, 2]


@pytest.mark.parametrize(
    "late, rows, sampled",
    [
        ("drop", [0, 1, 2, 4, 5, 6, 8], [1, 0, 0, 1, 0, 0, 1]),
        ("again", [0, 1, 2, 3, 4, 5, 6], [1, 0, 0, 1, 1, 0, 0]),
    ],
)
def test_a_surplus_that_waits_until_it_is_too_old(folder: Path, late: str, rows: list[int], sampled: list[int]) -> None:
    """Of a batch of four three are used, one in each step; the fourth is three steps old then."""
    steps, kept = collected("prompts.place >= 0", folder, 7, wanted=1, step=f"step async(staleness=2, late={late}):")
    assert [row[2] for step in kept for row in step] == rows
    assert [len(seen.sampled) for seen in steps] == sampled
    ages = [0, 1, 2, 0, 1, 2, 0] if late == "drop" else [0, 1, 2, 0, 0, 1, 2]
    assert [seen.metrics["oldest"] for seen in steps] == ages
    assert [step for step, seen in enumerate(steps, 1) if seen.metrics["prompts.late"]] == (
        [4, 7] if late == "drop" else [4]
    )
    asked = [{row[:3] for table in seen.sampled for row in table.ids} for seen in steps]
    assert (asked[0] & asked[3] == {("prompts", 0, 3)}) == (late == "again")


def test_what_is_asked_again_comes_before_what_is_new(folder: Path) -> None:
    """Of two batches of four three rows are used in each step; the last two are asked again beside a batch of new ones."""
    step = "step async(staleness=1, late=again):"
    steps, kept = collected("prompts.place >= 0", folder, 3, more=", ahead=2", step=step)
    assert [seen.metrics["prompts.late"] for seen in steps] == [0, 0, 2]
    assert [len(seen.sampled) for seen in steps] == [2, 0, 2], "a batch of them, and one that is new"
    assert [row[2] for step in kept for row in step] == list(range(9))


def test_rows_without_a_token_get_too_old_too(folder: Path) -> None:
    """Where versions are those of tokens, they are of the one with which they ended."""
    head, body = COLLECT.replace("STEP", "step async(staleness=1, span=token, late=drop):").split("    collect")
    body = body.replace("WANTED", "1").replace("ROUNDSMORE", "8").replace("max_tokens=3", "max_tokens=1")
    body = body.split("    train")[0].replace("        keep prompts where CONDITION\n", "")
    text = f"""{head.replace("step", 'data tasks = jsonl("tasks.jsonl", batch=2)' + chr(10) * 2 + "step", 1)}    collect{body}
    other = actor.generate(tasks, max_tokens=3)
    train actor(lr=0.01):
        minimize mean(-min(exp(actor.logprobs(other) - other.logprobs), 5.0))
    report rows = size(rollout.length)
"""
    late = [seen.metrics["prompts.late"] for seen in Run(without_answers(compile_text(text)), folder).steps(6)]
    assert late == [0, 0, 2, 0, 2, 0]


@pytest.mark.parametrize("block", few([None, 1, 3], 3))
def test_batches_that_are_begun_ahead(folder: Path, block: int | None) -> None:
    """Six rows are missing and four are in a batch: with `ahead=1.5` three are begun at once, with 1 two. The rows are
    those of one batch after the other, as long as nothing is dropped."""
    condition = "prompts.place % 3 == 1"
    plain, rows = collected(condition, folder, 3, wanted=6)
    same, again = collected(condition, folder, 3, wanted=6, more=", ahead=1", block=block)
    assert again == rows and [len(seen.sampled) for seen in plain] == [5, 5, 5]
    if block is None:
        assert [seen.metrics for seen in same] == [seen.metrics for seen in plain]
    steps, more = collected(condition, folder, 3, wanted=6, more=", ahead=1.5", block=block)
    assert more == rows, "the rows are those of one batch after the other"
    assert steps[0].metrics["oldest"] == 0
    dropped, first = collected(condition, folder, 2, wanted=6, more=", ahead=1.5, rest=drop", block=block)
    assert first[0] == rows[0]
    assert [seen.metrics["prompts.dropped"] for seen in dropped] == [0, 0]


def test_the_surplus_of_batches_that_are_begun_ahead(folder: Path) -> None:
    """Two batches of four are begun for four rows: the other four are next step's, or nobody's."""
    steps, kept = collected("prompts.place >= 0", folder, 3, wanted=4, more=", ahead=2")
    assert [[row[2] for row in step] for step in kept] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    assert [len(seen.sampled) for seen in steps] == [2, 0, 2]
    steps, kept = collected("prompts.place >= 0", folder, 3, wanted=4, more=", ahead=2, rest=drop")
    assert [[row[2] for row in step] for step in kept] == [[0, 1, 2, 3], [8, 9, 0, 1], [6, 7, 8, 9]]
    assert [(len(seen.sampled), seen.metrics["prompts.dropped"]) for seen in steps] == [(2, 4)] * 3


def test_batches_ahead_of_a_collect_that_gives_up(folder: Path) -> None:
    with pytest.raises(RunError, match="rows were kept after 2 batches"):
        collected("prompts.place == 0", folder, 1, wanted=3, rounds=2, more=", ahead=8")


def test_batches_ahead_share_a_state_and_a_model(folder: Path) -> None:
    """What is carried from one batch to the next is, however many are begun: a state, weights that the body trains."""
    lines = """state seen = 0.0

step:
    collect prompts(6, MORE):
        rollout = actor.generate(prompts, n=2, max_tokens=3)
        seen   := seen + sum(rollout.length)
        train actor(lr=0.01):
            minimize mean(-actor.logprobs(rollout))
        keep prompts where prompts.place % 3 == 1
    report seen = seen, age = sum(rollout.age)
"""
    head = "algorithm t\n" + MODEL + 'data prompts = jsonl("prompts.jsonl", batch=4, shuffle=false)\n'
    one = run_text(head + lines.replace(", MORE", ""), folder)[0]
    ahead = run_text(head + lines.replace("MORE", "ahead=1"), folder)[0]
    assert ahead.metrics == one.metrics
    assert all(torch.equal(value, one.weights["actor"][name]) for name, value in ahead.weights["actor"].items())


# every, phases, async


EVERY = (
    HEAD
    + """
step:
    rollout = actor.generate(prompts, max_tokens=2)
    train actor(lr=0.01):
        minimize mean(-actor.logprobs(rollout))
    every 3:
        trial = actor.generate(prompts, max_tokens=2, temperature=0)
        report trial = mean(trial.length)
    report length = mean(rollout.length)
"""
)


def test_every_runs_on_every_so_many_steps_counted_from_one(folder: Path) -> None:
    steps = run_text(EVERY, folder, 7)
    assert ["trial" in seen.metrics for seen in steps] == [False, False, True, False, False, True, False]


def test_data_that_only_every_reads_does_not_move_on_other_steps(folder: Path) -> None:
    text = EVERY.replace("func", 'data held = jsonl("gsm8k.jsonl", batch=2, shuffle=false)\nfunc').replace(
        "trial = actor.generate(prompts", "trial = actor.generate(held"
    )
    steps = run_text(text, folder, 6)
    rows = [row[2] for seen in steps for row in ids_of(seen, "trial")]
    assert rows == [0, 1, 2, 3]


PHASES = (
    "algorithm t\n"
    + MODEL
    + DATA
    + """data pairs = jsonl("sft.jsonl", batch=3, shuffle=false)
state k = 1.0

phase warm(steps=2):
    answer = encode(pairs.prompt, pairs.response)
    train actor(lr=0.05):
        minimize mean(-actor.logprobs(answer))
    k := k * 2

step:
    rollout = actor.generate(prompts, max_tokens=3)
    k := k + 1
    report k = k, version = max(rollout.version)
"""
)


def test_phases_come_one_after_the_other_and_share_what_lives(folder: Path) -> None:
    steps = run_text(PHASES, folder, 3)
    assert [(seen.step.number, seen.step.phase) for seen in steps] == [
        (1, "warm"),
        (2, "warm"),
        (3, "step"),
        (4, "step"),
        (5, "step"),
    ]
    assert [seen.metrics.get("k") for seen in steps] == [None, None, 5.0, 6.0, 7.0]
    assert steps[-1].metrics["version"] == 2
    assert [row[2] for seen in steps for row in ids_of(seen, "answer")] == [0, 1, 2, 3, 4, 5]


ASYNC = (
    HEAD
    + """
step async(lag=LAG):
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    now     = actor.logprobs(rollout)
    minibatch prompts(parts=2):
        train actor(lr=0.05):
            minimize mean(-actor.logprobs(rollout))
    report age = mean(rollout.age), gap = max(abs(now - rollout.logprobs))
"""
)


@pytest.mark.parametrize(
    ("lag", "block"),
    few(((lag, block) for lag in (0, 1, 3) for block in (None, 2)), (0, None), (1, 2), (3, None)),
)
def test_async_samples_with_the_weights_of_exactly_so_many_steps_ago(folder: Path, lag: int, block: int | None) -> None:
    run = Run(compile_text(ASYNC.replace("LAG", str(lag))), folder, block=block)
    steps = run.steps(5)
    engine = run.backend.session.models["actor"].engine
    begins = [run.initial["actor"]] + [seen.weights["actor"] for seen in steps]
    for number, seen in enumerate(steps):
        version = max(0, number - lag)
        for table in seen.sampled:
            assert set(table.columns["version"].tolist()) == {version}
        assert seen.metrics["age"] == number - version
        assert (seen.metrics["gap"] > 1e-3) == (number > 0 and lag > 0)
        net = copy.deepcopy(engine.model)
        net.load_state_dict(begins[version])
        for table in seen.sampled:
            found = []
            for tokens, scored in zip(table.tokens, table.scored, strict=True):
                logits = net(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
                found += [logits[at - 1, tokens[at]].item() for at in range(len(tokens)) if scored[at]]
            torch.testing.assert_close(
                table.columns["logprobs"], torch.tensor(found, dtype=torch.float64), atol=1e-12, rtol=0
            )


def test_a_model_that_follows_another_lags_too(folder: Path) -> None:
    """`twin` is never trained: its weights change by `update` alone."""
    text = ASYNC.replace("LAG", "1").replace("step async", "model twin = actor\n\nstep async")
    text = text.replace("rollout = actor.generate", "rollout = twin.generate").replace(
        "    report age", "    update twin from actor\n    report age"
    )
    run = Run(compile_text(text), folder)
    versions = [set(seen.table("rollout").columns["version"].tolist()) for seen in run.steps(4)]
    assert versions == [{0}, {0}, {1}, {2}]


# What lives across steps


UPDATE = (
    HEAD
    + """
model ref = frozen(actor)

step:
    rollout = actor.generate(prompts, max_tokens=4)
    train actor(lr=0.05):
        minimize mean(-actor.logprobs(rollout))
    update ref from actorEMA
    report gap = max(abs(ref.logprobs(rollout, temperature=2.0) - actor.logprobs(rollout, temperature=2.0)))
"""
)


@pytest.mark.parametrize("ema", [0.0, 0.75])
def test_update_moves_towards_the_other_weights(folder: Path, ema: float) -> None:
    run = Run(compile_text(UPDATE.replace("EMA", f"(ema={ema})")), folder)
    average = run.initial["ref"]
    for seen in run.steps(3):
        average = {name: ema * value + (1 - ema) * seen.weights["actor"][name] for name, value in average.items()}
        for name, value in average.items():
            torch.testing.assert_close(seen.weights["ref"][name], value, atol=1e-12, rtol=1e-12)


def test_update_takes_all_weights_over(folder: Path) -> None:
    for seen in run_text(UPDATE.replace("EMA", ""), folder, 2):
        assert seen.metrics["gap"] == 0
        assert all(torch.equal(value, seen.weights["ref"][name]) for name, value in seen.weights["actor"].items())


BUFFER = (
    HEAD
    + """
buffer replay = fifo(capacity=7)

step:
    rollout = actor.generate(prompts, max_tokens=4)
    score   = spread(rollout)
    push replay(rollout, score=score, late=next(rollout.logprobs))
    old     = replay.sample(4)
    again   = spread(old)
    train actor(lr=0.05):
        minimize mean(-actor.logprobs(old))
    report off = max(abs(old.score - again)), oldest = max(old.age), late = max(abs(old.late - next(old.logprobs))), rows = size(old.age)
"""
)


@pytest.mark.parametrize("block", [None, 2])
def test_a_buffer_holds_the_newest_rows_with_their_columns(folder: Path, block: int | None) -> None:
    taken: list[list[Any]] = []

    def note(node: Node, frame: Frame) -> None:
        if node.op == "sample":
            taken.append(list(frame.rows["old"].ids or ()))

    run = Run(compile_text(BUFFER), folder, block=block)
    run.also = note
    steps = run.steps(6)
    pushed: list[Any] = []
    for seen, sample in zip(steps, taken, strict=True):
        pushed += ids_of(seen, "rollout")
        assert len(set(sample)) == 4 and set(sample) <= set(pushed[-7:])
        assert seen.metrics["off"] == 0 and seen.metrics["late"] == 0
        assert seen.metrics["rows"] == 4
    assert {seen.metrics["oldest"] for seen in steps} == {0, 1}, "seven rows are those of this step and two of the last"


def test_a_sample_of_more_rows_than_there_are_is_all_of_them(folder: Path) -> None:
    steps = run_text(BUFFER.replace("sample(4)", "sample(50)"), folder, 3)
    assert [seen.metrics["rows"] for seen in steps] == [5, 7, 7]


KEYED = (
    HEAD
    + """
state base[task] = 0.5

step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    score   = spread(rollout)
    was     = base[rollout.task]
    base[rollout.task] := 0.9 * was + 0.1 * score
    now     = base[rollout.task]
    report was = mean(was), now = mean(now)
"""
)


@pytest.mark.parametrize("block", [None, 3])
def test_a_keyed_state_has_a_value_for_each_key(folder: Path, block: int | None) -> None:
    known: dict[str, float] = {}
    for seen in run_text(KEYED, folder, 4, block=block):
        rows = [row["task"] for table in seen.sampled for row in table.data]
        scores = torch.cat(seen.scores).tolist()
        assert len(rows) == len(scores) == 10
        was = [known.get(task, 0.5) for task in rows]
        new: dict[str, list[float]] = {}
        for task, old, score in zip(rows, was, scores, strict=True):
            new.setdefault(task, []).append(0.9 * old + 0.1 * score)
        known |= {task: sum(values) / len(values) for task, values in new.items()}
        assert seen.metrics["was"] == pytest.approx(sum(was) / 10, abs=1e-12)
        assert seen.metrics["now"] == pytest.approx(sum(known[task] for task in rows) / 10, abs=1e-12)


def test_a_state_is_kept_in_the_precision_of_the_models(folder: Path) -> None:
    text = (
        HEAD
        + "state k = 0.1\n\nstep:\n    rollout = actor.generate(prompts, max_tokens=1)\n    k := k + 0.2\n    report k = k\n"
    )
    text = text.replace("report k = k", "report k = k, length = mean(rollout.length)")
    assert [seen.metrics["k"] for seen in run_text(text, folder, 2)] == [0.1 + 0.2, 0.1 + 0.2 + 0.2]


INSIDE = (
    HEAD
    + """
step:
    minibatch prompts(parts=3, shuffle=SHUFFLE, epochs=2):
        rollout = actor.generate(prompts, n=2, max_tokens=4)
        twice   = actor.generate(rollout, n=2, max_tokens=3)
        lp      = actor.logprobs(twice, temperature=2.0)
    again = actor.logprobs(twice, temperature=2.0)
    odd   = sum(where(prompts.place == twice.place, 0, 1))
    report off = max(abs(again - lp)), wrong = odd, rows = size(twice.length), score = mean(spread(rollout)), all = sum(rollout.length)
"""
)


@pytest.mark.parametrize("shuffle", ["true", "false"])
def test_tables_made_in_a_loop_are_whole_after_it(folder: Path, shuffle: str) -> None:
    """Tables of tables too: every row lies under its own prompt, with its own tokens."""
    text = INSIDE.replace("SHUFFLE", shuffle)
    ids: list[Any] = []

    def note(node: Node, frame: Frame) -> None:
        if node.op == "minibatch":
            ids[:] = [
                frame.rows["rollout"].ids,
                frame.ancestor_rows("twice", "prompts").tolist(),
                frame.rows["twice"].ids,
            ]

    run = Run(compile_text(text), folder)
    run.also = note
    (seen,) = run.steps(1)
    assert seen.metrics["off"] < 1e-12 and seen.metrics["wrong"] == 0 and seen.metrics["rows"] == 20
    rollouts, above, twices = ids
    assert [row[2:] for row in rollouts] == [(place, n) for place in range(5) for n in range(2)]
    assert [row[2] for row in twices] == above == [place for place in range(5) for _ in range(4)]


# A loop of one's own


WHEN = (
    HEAD
    + """
step:
    rollout = actor.generate(prompts, max_tokens=4)
    late = where(mean(prompts.place) > 4, 1, 0)
    every 1:
        train actor(lr=0.05):
            minimize mean(-actor.logprobs(rollout))
        report late = late
    report length = mean(rollout.length)
"""
)


def test_every_loop_has_a_policy() -> None:
    assert LOOPS.keys() == {name for name, op in NODES.items() if op.loop}


def test_a_loop_on_some_steps_says_how_often_it_runs_in_the_long_run() -> None:
    found = [op for op in NODES.values() if op.loop == "steps"]
    assert found == [op for op in NODES.values() if op.on_steps]
    for op in found:
        assert op.on_steps
        runs = sum(op.on_steps.when(step, 7) for step in range(7_000, 14_000))
        assert 7_000 / runs == pytest.approx(op.on_steps.period(7))


@pytest.mark.parametrize("block", [None, 2])
def test_a_conditional_is_one_more_loop(folder: Path, block: int | None) -> None:
    """All that it takes is a policy: what is carried, captured and exported is no business of it."""

    def when(loop: Loop) -> Frame:
        if loop.frame.values[loop.node.attr("condition")]:
            loop.run_body(loop.frame.child_frame())
        return loop.frame

    program = compile_text(WHEN)
    (phase,) = program.phases
    nodes = tuple(
        replace(node, op="when", attrs=(("condition", "late"),)) if node.op == "every" else node
        for node in phase.graph.nodes
    )
    run = Run(program.with_graphs({phase.name: replace(phase.graph, nodes=nodes)}), folder, block=block)
    run.backend.loops = {**LOOPS, "when": LoopPolicy(when)}
    steps = run.steps(4)
    assert [seen.metrics.get("late") for seen in steps] == [None, 1.0, None, 1.0], "batches of rows 0 to 4, and 5 to 9"
    before = [run.initial["actor"], *(seen.weights["actor"] for seen in steps)]
    same = [all(torch.equal(one[name], two[name]) for name in one) for one, two in pairwise(before)]
    assert same == [True, False, True, False]
