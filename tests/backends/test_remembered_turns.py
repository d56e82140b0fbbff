"""Past episodes, drawn from a buffer or found by a key, with their turns: beside plain loops, in any block, on Ray."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from in_any_plan import SPLITS
from scheduled import apart, assert_goes_on_bit_for_bit, compiled, debug_metrics, together
from tiny import Run, compile_text, data_folder, weights

from rlgraph.errors import RlgraphError

EXAMPLE = Path(__file__).parents[2] / "examples" / "self_play"

TEXT = f"""algorithm turns
model actor  = causal_lm({weights()}, dtype="float64")
model critic = value_lm({weights()}, dtype="float64")
data tasks   = jsonl("tasks.jsonl", batch=7)
env shell    = python("envs.py:Shell")
func spread  = python("rewards.py:spread", over=row)
buffer past  = fifo(capacity=40, key="prompt", last=5)
step:
    episode = actor.interact(shell, tasks, n=3, max_turns=3, max_tokens=12, turn_tokens=3)
    total   = sum(episode.reward, turn)
    among   = center(discount(episode.reward, 0.5), tasks)
    push past(episode, among=among, total=total, name=uniform(episode), sampled=episode.logprobs, gain=mean(total))
    old     = past.sample(11)
    place   = cumsum(where(old.tokens >= 0, 1, 0))
    began   = place == min(place, by=turn)
    value   = sum(critic.values(old) * began, by=turn)
    wanted  = old.reward + 0.9 * next(value)
    minibatch old(parts=2):
        train critic(lr=0.01, eps=0.01):
            minimize mean((sum(critic.values(old) * began, by=turn) - wanted) ** 2)
    train actor(lr=0.01, eps=0.01):
        ratio = exp(sum(actor.logprobs(old) - old.logprobs, by=turn))
        minimize -mean(min(ratio, 2.0) * old.among)
    report rewards = sum(old.reward * (old.turn + 1)), total = sum(old.total), value = mean(value), gain = mean(old.gain)
    report tokens = sum(size(old.tokens, by=turn) * old.among), drift = sum(abs(old.sampled - old.logprobs))
    report far = count(contains(old.observation, ">")), score = mean(spread(old)), age = mean(old.age)
    recent  = past[tasks.prompt]
    report recent = sum(recent.reward * recent.among), turns = mean(recent.turns)
    keep tasks where size(recent.turns, by=tasks) > 0
    best    = pick(recent, argmax(recent.total, by=tasks))
    report best = sum(best.among * best.turn)
    keep old where old.total > 0
    report kept = sum(old.reward * old.turn)
"""
STEPS = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return data_folder(tmp_path)


@cache
def whole() -> list[dict[str, float]]:
    """The metrics of each step, of all rows at once."""
    with TemporaryDirectory() as folder:
        return [dict(seen.metrics) for seen in Run(compile_text(TEXT), data_folder(Path(folder))).steps(STEPS)]


def by_row(values: Any, counts: list[int]) -> list[list[Any]]:
    """The entries of each row, of which so many are in it."""
    entries = values.tolist() if isinstance(values, torch.Tensor) else list(values)
    ends = [sum(counts[: row + 1]) for row in range(len(counts))]
    return [entries[end - count : end] for end, count in zip(ends, counts, strict=True)]


def episodes_of(table: Any, more: dict[str, Any]) -> dict[float, dict[str, Any]]:
    """What a table and values beside it say of each episode, by its name."""
    turns, tokens = table.columns["turns"].tolist(), table.sequences.scored_counts().tolist()
    sizes = table.columns["_turn_tokens"]
    assert [sum(of_row) for of_row in by_row(sizes, turns)] == tokens
    columns = {**table.columns, **more}
    of_turns = {name: by_row(columns[name], turns) for name in ("reward", "observation", "_turn_tokens", "among")}
    of_tokens = {name: by_row(columns[name], tokens) for name in ("logprobs", "sampled")}
    ids = by_row(table.sequences.tokens, table.sequences.lengths.tolist())
    lists = {**of_turns, **of_tokens, "ids": ids}
    names = columns["name"].tolist()
    return {name: {of: lists[of][row] for of in lists} for row, name in enumerate(names)}


def test_past_episodes_have_the_turns_that_they_had(folder: Path) -> None:
    run = Run(compile_text(TEXT), folder)
    held: dict[float, dict[str, Any]] = {}
    counts, ages = set[int](), 0.0
    for seen in run.steps(STEPS):
        values, pushed = seen.values, seen.values["past@1"]
        assert len(pushed.ids) <= 40
        held |= episodes_of(pushed.table, {})
        episode = values["episode"]
        more = {"among": values["among"], "sampled": episode.columns["logprobs"], "name": values["uniform"]}
        of_step = episodes_of(episode, more)
        assert {name: held[name] for name in of_step if name in held} == {n: of_step[n] for n in of_step if n in held}
        old = episodes_of(values["old"], {})
        for name, episode in old.items():
            assert episode == held[name]
            counts.add(len(episode["reward"]))
        assert seen.metrics["rewards"] == pytest.approx(
            sum(reward * (turn + 1) for episode in old.values() for turn, reward in enumerate(episode["reward"]))
        )
        among = sum(size * a for e in old.values() for size, a in zip(e["_turn_tokens"], e["among"], strict=True))
        assert seen.metrics["tokens"] == pytest.approx(among, abs=1e-12)
        assert seen.metrics["drift"] == 0
        assert seen.metrics["far"] == sum(">" in said for e in old.values() for said in e["observation"])
        ages += seen.metrics["age"]
    assert counts == {0, 1, 2, 3} and ages > 0, "episodes with any number of turns, and of earlier steps"


@pytest.mark.parametrize("settings", SPLITS)
def test_any_block_and_micro_batch(folder: Path, settings: dict[str, int]) -> None:
    found = [dict(seen.metrics) for seen in Run(compile_text(TEXT), folder, **settings).steps(STEPS)]
    assert [pytest.approx(step, rel=1e-9, abs=1e-9) for step in whole()] == found


@pytest.mark.parametrize("plan", ["together", "apart", "two copies"])
def test_any_plan(folder: Path, plan: str) -> None:
    """Buffers keep which tokens lie in which turn where rows travel between processes."""
    program = compile_text(TEXT)
    copies = "pool all = 2 devices\nplace actor, critic on all(engine=transformers, dp=2)\n"
    schedule = {"together": together(program), "apart": apart(program), "two copies": copies}[plan]
    found = debug_metrics(compiled(TEXT, {}, schedule, folder), folder, STEPS)
    assert [pytest.approx(step, rel=1e-9, abs=1e-9) for step in whole()] == found


def test_a_run_that_goes_on_is_the_same_bit_for_bit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert_goes_on_bit_for_bit(TEXT, "critic", STEPS)


def test_what_is_no_column_of_an_episode_is_told_with_its_units(tmp_path: Path) -> None:
    wrong = TEXT.replace("among=among", "among=tasks.prompt == tasks.prompt, other=last.reward").replace(
        "    push past", "    last    = actor.interact(shell, tasks, max_turns=3, max_tokens=12)\n    push past", 1
    )
    with pytest.raises(RlgraphError) as raised:
        compile_text(wrong)
    said = (
        "a column has an entry for each row, turn or token of `episode`, or one for all, and this is float[tasks, turn]"
    )
    assert said in str(raised.value) and "^^^" in str(raised.value)


def test_a_player_is_pushed_by_itself(folder: Path) -> None:
    """Of episodes of several players the first one's turns are kept; another's are a table of their own."""
    (folder / "nim.py").write_text((EXAMPLE / "nim.py").read_text("utf-8"), "utf-8")
    (folder / "deals.jsonl").write_text((EXAMPLE / "deals.jsonl").read_text("utf-8"), "utf-8")
    model = weights().replace("abcd>", "0123456789=>")
    text = f"""algorithm played
model actor = causal_lm({model}, dtype="float64")
data deals  = jsonl("deals.jsonl", batch=4)
env nim     = python("nim.py:Nim")
buffer all  = fifo(capacity=64)
buffer one  = fifo(capacity=64)
step:
    games = interact(nim, deals, white=actor, black=actor, n=2, max_turns=6, max_tokens=40, turn_tokens=1)
    push all(games, told=games.observation)
    push one(games.black)
    old   = all.sample(64)
    black = one.sample(64)
    report same = count(old.told == old.observation), turns = sum(old.turns), of_black = sum(black.turns)
    report played = sum(games.white.turns), by_black = sum(games.black.turns)
"""
    seen = Run(compile_text(text), folder).steps(3)
    totals = [sum(step.metrics[name] for step in seen) for name in ("played", "by_black")]
    assert [seen[-1].metrics[name] for name in ("turns", "of_black")] == totals and min(totals) > 0
    assert seen[-1].metrics["same"] == totals[0]
