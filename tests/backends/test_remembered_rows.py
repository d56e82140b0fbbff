"""Rows of earlier steps, found by a key: beside a plain loop, in any block, on Ray, and where a run goes on."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest
from scheduled import assert_goes_on_bit_for_bit, compiled, debug_metrics
from tiny import Run, compile_text, data_folder, weights

from rlgraph.backends.worker.buffers import last_of_each_key
from rlgraph.errors import RlgraphError

HEAD = f"""algorithm remembers
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=4)
func spread  = python("rewards.py:spread", over=row)
"""
# The mean of a prompt's last rewards is its baseline, and its last answers are learned from once more.
WINDOW = (
    HEAD
    + """buffer past  = fifo(capacity=64, key="place", last=3)
step:
    old     = past[prompts.place]
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    score   = spread(rollout)
    known   = mean(old.score, by=prompts)
    seen    = size(old.score, by=prompts)
    adv     = where(seen > 0, score - known, 0.0)
    train actor(lr=0.01, eps=0.01):
        ratio = exp(actor.logprobs(old) - old.logprobs)
        minimize mean(-actor.logprobs(rollout) * adv) + mean(-min(ratio, 2.0) * old.score)
    push past(rollout, score=score)
    report score = mean(score), known = sum(known * prompts.place), seen = sum(seen * prompts.place)
    report newest = sum(old.score * rank(-old.age, by=prompts)), length = mean(old.length)
"""
)
# Prioritized experience replay (arXiv 1511.05952): each answer has a priority, how far its reward was from what was
# expected when it was last learned from, by which it is drawn again.
PRIORITY = (
    HEAD
    + """buffer past       = fifo(capacity=64)
state  known[place] = 0.5
state  surprise[id] = 1.0
step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    score   = spread(rollout)
    push past(rollout, score=score, id=uniform(rollout))
    old     = past.sample(64)
    held    = size(old.score)
    chance  = surprise[old.id] ** 0.6
    share   = chance / sum(chance)
    resample old(6, weight=chance)
    weight  = (held * share) ** -0.4
    gap     = old.score - known[old.place]
    surprise[old.id] := abs(gap) + 0.01
    known[old.place] := known[old.place] + 0.5 * gap
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(old) * gap * weight / max(weight))
    report score = mean(score), gap = mean(abs(gap)), drawn = sum(old.id), least = min(surprise[old.id]), held
"""
)
# Absolute Zero (arXiv 2505.03335): tasks of a kind are proposed beside an earlier one of this kind, and paid for how
# hard they are; the first ones are proposed without.
ZERO = (
    HEAD
    + """buffer tasks = fifo(capacity=64, key="kind", last=8)
phase seed(steps=1):
    first = actor.generate("{prompts.prompt}>", n=4, max_tokens=4)
    push tasks(first, kind=prompts.task)
step:
    old    = tasks[prompts.task]
    keep prompts where size(old.length, by=prompts) > 0
    shown  = pick(old, argmax(uniform(old), by=prompts))
    task   = actor.generate("{prompts.prompt}{shown.text}>", n=2, max_tokens=4)
    answer = actor.generate(row(task, ">"), n=3, max_tokens=4)
    right  = spread(answer) > 0.5
    solved = mean(right, by=task)
    hard   = where(solved > 0, 1 - solved, 0)
    push tasks(task, kind=prompts.task)
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(answer) * center(right, task)) + mean(-actor.logprobs(task) * center(hard, prompts))
    report solved = mean(solved), hard = mean(hard), length = mean(shown.length), held = size(old.length)
"""
)
PROGRAMS = {"window": WINDOW, "priority": PRIORITY, "zero": ZERO}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return data_folder(tmp_path)


@pytest.mark.parametrize("capacity", [64, 9])
def test_the_rows_of_a_key_are_those_of_a_plain_loop(folder: Path, capacity: int) -> None:
    run = Run(compile_text(WINDOW.replace("capacity=64", f"capacity={capacity}")), folder)
    held: list[tuple[int, float, int]] = []
    empty = 0
    for step, seen in enumerate(run.steps(7)):
        table, scores = seen.values["rollout"], seen.values["score"].tolist()
        places = [row["place"] for row in table.data]
        of_prompt: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for place, score, when in held:
            of_prompt[place].append((score, when))
        asked = places[::2]
        known = {place: mean(score for score, _ in of_prompt[place]) if of_prompt[place] else 0.0 for place in asked}
        empty += sum(not of_prompt[place] for place in asked)
        assert seen.metrics["known"] == pytest.approx(sum(place * known[place] for place in asked), abs=1e-12)
        assert seen.metrics["seen"] == sum(place * len(of_prompt[place]) for place in asked)
        # By `rank`, of a prompt's rows the newest is the first, and of equals that which was pushed before.
        newest = 0.0
        for place in asked:
            by_age = [at for _, at in sorted((-when, at) for at, (_, when) in enumerate(of_prompt[place]))]
            newest += sum(of_prompt[place][at][0] * rank for rank, at in enumerate(by_age))
        assert seen.metrics["newest"] == pytest.approx(newest, abs=1e-12)
        held += [(place, score, step) for place, score in zip(places, scores, strict=True)]
        count: dict[int, int] = defaultdict(int)
        kept = []
        for row in reversed(held):
            count[row[0]] += 1
            kept += [row] if count[row[0]] <= 3 else []
        held = kept[::-1][-capacity:]
    assert empty > 4, "some prompts have not been seen before"


def test_the_last_of_each_key_stay() -> None:
    assert last_of_each_key(["a", "b", "a", "a", "b"], 2).tolist() == [1, 2, 3, 4]
    assert last_of_each_key([], 2).tolist() == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_block_and_ray_say_the_same(folder: Path, name: str) -> None:
    text = PROGRAMS[name]
    assert len([line for line in text.splitlines() if line.strip()]) <= 30
    program = compile_text(text)
    steps = 4
    whole = [dict(step.metrics) for step in Run(program, folder).steps(steps)]
    assert any(step != whole[-1] for step in whole)
    ways = [[dict(step.metrics) for step in Run(program, folder, block=block).steps(steps)] for block in (1, 3)]
    schedule = "pool play = 1 devices\nplace actor on play(engine=transformers)\n"
    ways.append(debug_metrics(compiled(text, {}, schedule, folder), folder, steps))
    for found in ways:
        assert [pytest.approx(step, rel=1e-9, abs=1e-9) for step in whole] == found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_that_goes_on_is_the_same_bit_for_bit(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert_goes_on_bit_for_bit(PROGRAMS[name], "actor", 4)


def test_rows_of_the_first_step_are_none_in_any_place(folder: Path) -> None:
    """Though the first model that is declared splits texts otherwise than the one that samples."""
    judge = f"model judge = frozen(reward_lm({weights(3).replace('abcd>', '>abcd')}))\n"
    text = WINDOW.replace("model actor", f"{judge}model actor")
    text = text.replace(
        "    report score",
        "    report apart = mean(judge.score(old)), again = size(actor.entropy(old))\n    report score",
    )
    program = compile_text(text)
    whole = [dict(step.metrics) for step in Run(program, folder).steps(3)]
    assert whole[0]["seen"] == whole[0]["again"] == whole[0]["length"] == 0 and whole[2]["again"] > 0
    schedule = "pool play = 1 devices\npool learn = 1 devices\npool desk = 1 devices\npool side = 1 cpus\n"
    schedule += "place actor.generate on play(engine=transformers)\nplace actor.train on learn(engine=transformers)\n"
    schedule += "place judge on desk(engine=transformers)\nplace spread on side\n"
    found = debug_metrics(compiled(text, {}, schedule, folder), folder, 3)
    assert [pytest.approx(step, rel=1e-9, abs=1e-9) for step in whole] == found


def test_keys_of_two_kinds_and_rows_without_one_are_named(folder: Path) -> None:
    text = WINDOW.replace('key="place"', 'key="task"').replace("batch=4", "batch=4, shuffle=false")
    with pytest.raises(RlgraphError) as raised:
        Run(compile_text(text), folder).steps(2)
    said = "`prompts.place` of prompts row 4 is a whole number, and other keys are texts"
    assert "error[E0735]" in str(raised.value) and said in str(raised.value) and "^^^" in str(raised.value)
    path = folder / "prompts.jsonl"
    lines = path.read_text().splitlines()
    row = json.loads(lines[2])
    path.write_text("\n".join([*lines[:2], json.dumps({**row, "task": None}), *lines[3:]]))
    with pytest.raises(RlgraphError) as raised:
        Run(compile_text(text), folder).steps(2)
    said = "`task` of prompts row 2, sample 0 is null, and no key"
    assert "error[E0735]" in str(raised.value) and said in str(raised.value) and "^^^" in str(raised.value)


def test_pushed_columns_are_texts_and_of_what_rows_lie_in(folder: Path) -> None:
    text = f"""{HEAD}buffer past  = fifo(capacity=24)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    push past(rollout, asked=prompts.prompt, at=prompts.place, most=max(rollout.length, by=prompts), all=3)
    old     = past.sample(24)
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(old))
    report rows = size(old.at), asked = count(old.asked == old.prompt), at = count(old.at == old.place)
    report longer = max(old.length - old.most), most = sum(old.most), three = sum(old.all)
"""
    steps = Run(compile_text(text), folder).steps(4)
    pushed: list[list[int]] = []
    for seen in steps:
        lengths = seen.values["rollout"].sequences.scored_counts().tolist()
        pushed += [[max(lengths[at : at + 2])] * 2 for at in range(0, len(lengths), 2)]
        rows = min(24, 2 * len(pushed))
        assert seen.metrics["rows"] == seen.metrics["asked"] == seen.metrics["at"] == seen.metrics["three"] / 3 == rows
        assert seen.metrics["longer"] == 0
        assert seen.metrics["most"] == sum([most for two in pushed for most in two][-24:])
