"""Values of the turns of episodes: the tokens of a turn have what the turn has, and are reduced to it, in any plan."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from in_any_plan import SPLITS, assert_same, one_step
from scheduled import apart, compiled, debug_metrics, together
from tiny import Seen, compile_text, data_folder, weights

from rlgraph.ir.text.parse import parse_program
from rlgraph.ir.text.program_text import program_text

TEXT = f"""algorithm turns
model actor = causal_lm({weights()}, dtype="float64")
data tasks  = jsonl("tasks.jsonl", batch=7, shuffle=false)
env shell   = python("envs.py:Shell")
buffer seen = fifo(capacity=100)
step:
    episode = actor.interact(shell, tasks, n=3, max_turns=3, max_tokens=12, turn_tokens=3)
    total   = sum(episode.reward, turn)
    still   = discount(episode.reward, 0.5)
    alike   = still - mean(still, by=key(tasks, episode.observation))
    place   = cumsum(where(episode.tokens >= 0, 1, 0))
    report spread = sum(still * place), likely = sum(mean(episode.logprobs, by=turn) * (episode.turn + 1))
    report tokens = sum(size(episode.tokens, by=turn) * still), row = sum(sum(place, token) * total)
    report after = sum(next(episode.logprobs) * still), twice = sum(next(still) * episode.turn)
    report alike = sum(abs(alike)), states = sum(1 / size(still, by=key(tasks, episode.observation)))
    report far = count(contains(episode.observation, ">"))
    report last = sum(abs(max(episode.turn, by=episode) + 1 - episode.turns) * (episode.turns > 0))
    best = pick(episode, argmax(total, by=tasks))
    report best = sum(best.logprobs * best.reward), first = sum(best.logprobs * (best.turn == 0))
    push seen(episode, weight=still + 0 * place)
    again = seen.sample(100)
    report again = sum(again.logprobs * again.weight)
    keep episode where total > 0
    report kept = sum(still * place), kept_rows = size(total)
    minibatch tasks(parts=2):
        train actor(lr=0.01, eps=0.01):
            logp = actor.logprobs(episode)
            minimize -mean(mean(logp, by=turn) * alike) - mean(logp * still)
    report then = sum(sum(actor.logprobs(episode), by=turn) * still)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("turns"))


@cache
def whole(folder: Path) -> Seen:
    """All rows at once."""
    return one_step(TEXT, folder)


def turns_of(scored: Sequence[bool]) -> list[list[int]]:
    """The numbers of a row's tokens with loss, by the turn in which they are: the environment's are between turns."""
    turns: list[list[int]] = []
    before, number = False, 0
    for mine in scored:
        if mine and not before:
            turns.append([])
        if mine:
            turns[-1].append(number)
            number += 1
        before = mine
    return turns


def test_numbers_by_hand(folder: Path) -> None:
    seen = whole(folder)
    table, found = seen.table("episode"), seen.metrics
    counts = table.columns["turns"].tolist()
    rewards = [part.tolist() for part in table.columns["reward"].split(counts)]
    lengths = [sum(row) for row in table.scored]
    logprobs = [part.tolist() for part in table.columns["logprobs"].split(lengths)]
    observed, at = [], 0
    for count in counts:
        observed.append(table.columns["observation"][at : at + count])
        at += count
    sizes = [part.tolist() for part in table.columns["_turn_tokens"].split(counts)]
    # Where the environment says nothing two turns are one run of tokens: the sizes say where each ends.
    assert [[*map(len, turns_of(row))] for row, mine in zip(table.scored, sizes, strict=True)] == sizes
    assert {0, 1, 3} <= set(counts), "an episode without a turn, with one, and with several"
    expected: dict[str, float] = defaultdict(float)
    groups: dict[Any, list[float]] = defaultdict(list)
    for row, (reward, sizes_of_row) in enumerate(zip(rewards, sizes, strict=True)):
        still = [sum(r * 0.5 ** (k - t) for k, r in enumerate(reward) if k >= t) for t in range(len(reward))]
        turn_of = [t for t, size in enumerate(sizes_of_row) for _ in range(size)]
        mine = logprobs[row]
        for place, t in enumerate(turn_of):
            expected["spread"] += still[t] * (place + 1)
            expected["row"] += (place + 1) * sum(reward)
            expected["after"] += (mine[place + 1] if place + 1 < len(mine) else 0.0) * still[t]
            if sum(reward) > 0:
                expected["kept"] += still[t] * (place + 1)
            expected["again"] += mine[place] * still[t]
        expected["kept_rows"] += sum(reward) > 0
        for t, size in enumerate(sizes_of_row):
            of_turn = [mine[place] for place in range(len(mine)) if turn_of[place] == t]
            expected["likely"] += (sum(of_turn) / size if size else 0.0) * (t + 1)
            expected["tokens"] += size * still[t]
            expected["twice"] += (still[t + 1] if t + 1 < len(still) else 0.0) * t
            expected["far"] += ">" in observed[row][t]
            groups[table.group[row], observed[row][t]].append(still[t])
    expected["alike"] = math.fsum(abs(x - sum(g) / len(g)) for g in groups.values() for x in g)
    expected["states"], expected["last"] = len(groups), 0
    assert any(len(group) == 1 for group in groups.values()) and any(len(group) > 1 for group in groups.values())
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("settings", SPLITS)
def test_blocks_and_micro_batches(folder: Path, settings: dict[str, int]) -> None:
    assert_same(one_step(TEXT, folder, **settings), whole(folder), 1e-10)


DP = "pool all = 2 devices\nplace actor on all(engine=transformers, dp=2)\n"


@pytest.mark.parametrize("plan", ["together", "apart", "two copies"])
def test_other_plans(folder: Path, plan: str) -> None:
    """Rows travel between processes with what says which tokens lie in which turn."""
    program = compile_text(TEXT)
    schedule = {"together": together(program), "apart": apart(program), "two copies": DP}[plan]
    [metrics] = debug_metrics(compiled(TEXT, {}, schedule, folder), folder, 1)
    assert metrics == pytest.approx(whole(folder).metrics, rel=1e-9)


def test_the_graph_is_read_back_from_its_text() -> None:
    program = compile_text(TEXT)
    assert parse_program(program_text(program)) == program


def test_a_group_of_turns_waits_for_its_prompt() -> None:
    program = compile_text(TEXT)
    units = {node.name: node.unit.axis for node in program.phases[0].graph.walk() if node.unit}
    assert units["alike"] == "tasks"
