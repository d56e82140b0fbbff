"""Rows of a finished step as a person reads them: the same wherever the rows are."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from scheduled import apart, compiled
from test_exactness import PROGRAMS
from tiny import compile_text, data_folder, shipped, weights

import rlgraph
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.rows import TableData
from rlgraph.backends.samples import Sample, choose_shown_rows, ranking, row_texts, sampled_tables
from rlgraph.backends.worker.session import Settings
from tests.suites import few

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"

TABLES = {
    "agent": [("episode", "score", ["score"])],
    "dapo": [("rollout", "score", ["hit", "score"])],
    "distill": [("rollout", None, [])],
    "grpo": [("rollout", "score", ["score"])],
    "ppo": [("rollout", "score", ["score"])],
    # Both lie on the prompts, and each has scores of its own.
    "remax": [("rollout", "score", ["score"]), ("greedy", "reward.score", ["reward.score"])],
    # Nothing is computed of both: the first one counts.
    "safe_rlhf": [("rollout", "gain", ["gain", "harm"])],
    "sft": [],
}


@pytest.mark.parametrize("name", TABLES)
def test_the_graph_says_which_numbers_are_scores(name: str) -> None:
    [*_, phase] = rlgraph.compile(ALGORITHMS / f"{name}.rlf").program.phases
    tables = sampled_tables(phase.graph)
    assert [(table.name, table.reward, [name for name, _ in table.scores]) for table in tables] == TABLES[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("samples"))


def gathered(backend: LocalBackend | RayBackend, most: int) -> list[tuple[Sample, ...]]:
    backend.most_samples = most
    try:
        return [tuple(step.samples) for step in backend.run_steps(3)]
    finally:
        backend.close()


CASES = [("grpo", 6), ("dapo", 5), ("agent", 4), ("grpo", 1000), ("ppo", 3)]


@pytest.mark.parametrize(("name", "most"), few(CASES, *CASES[:3]))
def test_samples_are_the_same_wherever_the_rows_are(name: str, most: int, folder: Path) -> None:
    swaps, changes = PROGRAMS[name]
    text = shipped(name, swaps)
    made = compiled(text, changes, apart(compile_text(text, changes)), folder)
    here = gathered(LocalBackend(compile_text(text, changes), Settings(folder=folder)), most)
    there = gathered(RayBackend(made.program, made.plan, Settings(folder=folder), debug=True), most)
    assert [[asdict(sample) for sample in step] for step in here] == [
        [asdict(sample) | {"reward": pytest.approx(sample.reward), "scores": pytest.approx(dict(sample.scores))}
         for sample in step]
        for step in there
    ]  # fmt: skip
    for step in here:
        assert 0 < len(step) <= most
        assert all(isinstance(sample.prompt, str) and sample.length and sample.scores for sample in step)
    assert [{sample.version for sample in step} for step in here][0] == {0}


def test_the_best_the_worst_and_prompts_that_come_again_are_kept() -> None:
    ids = [("prompts", 0, place // 2, place % 2) for place in range(40)]
    reward = [0.5] * 40
    reward[7], reward[12], reward[30] = 0.9, float("nan"), 0.1
    kept = choose_shown_rows(ids, reward, 8)
    assert len(kept) == 8 and {7, 12, 30} <= set(kept)
    # The prompts that are kept for themselves are the same in another pass over the data, in another order.
    again = [("prompts", 1, place // 2, place % 2) for place in reversed(range(40))]
    alone = choose_shown_rows(ids, None, 8)
    assert {ids[place][2:] for place in alone} == {again[place][2:] for place in choose_shown_rows(again, None, 8)}
    assert choose_shown_rows(ids, reward, 100) == list(range(40))
    assert [len(choose_shown_rows(ids, reward, most)) for most in (1, 2, 3)] == [1, 2, 3]


def test_what_is_no_number_is_the_worst() -> None:
    assert ranking([0.5, None, 1.0, float("nan"), 0.5]) == [2, 0, 4, 1, 3]


AGENT = f"""algorithm agent
model actor = causal_lm({weights()})
data tasks  = jsonl("tasks.jsonl", batch=4, shuffle=false)
env shell   = python("envs.py:Shell")
step:
    episode = actor.interact(shell, tasks, n=2, max_turns=3, max_tokens=20)
    report reward = mean(sum(episode.reward, turn)), turns = mean(episode.turns)
"""


@pytest.mark.parametrize("far", [False, True])
def test_the_reward_of_an_episode_is_that_of_its_turns(folder: Path, far: bool) -> None:
    """Where the program computes no number for each episode."""
    made = compiled(AGENT, {}, apart(compile_text(AGENT)), folder)
    settings = Settings(folder=folder)
    backend = RayBackend(made.program, made.plan, settings, debug=True) if far else LocalBackend(made.program, settings)
    backend.most_samples = 1000
    try:
        [step] = backend.run_steps(1)
    finally:
        backend.close()
    rewards = [sample.reward for sample in step.samples]
    assert len(set(rewards)) > 1 and step.metrics["turns"] > 1
    assert sum(rewards) / len(rewards) == pytest.approx(step.metrics["reward"], abs=1e-6)  # type: ignore[arg-type]
    assert all(sample.scores == {"reward": sample.reward} for sample in step.samples)


def test_what_an_environment_says_first_is_shown_with_the_prompt() -> None:
    def texts(prompts: list[Any], said: list[str], turns: list[int]) -> list[Any]:
        columns = {
            "version": torch.zeros(len(prompts), dtype=torch.long),
            "turns": torch.tensor(turns),
            "reward": torch.zeros(sum(turns)),
            "observation": said,
        }
        sequences = Sequences.from_lists([[1, 2]] * len(prompts), [[False, True]] * len(prompts))
        table = TableData(({},) * len(prompts), tuple(prompts), sequences, columns, "actor")
        return [row.prompt for row in row_texts(table, lambda _, answers: ["?"] * len(answers))]

    asked = [{"role": "system", "content": "Play."}]
    rules = {"role": "user", "content": "rules"}
    assert texts([asked, asked, asked], ["rules", "news", ""], [2, 0, 1]) == [[*asked, rules], asked, asked]
    assert texts(["say: ", "say: "], ["rules", "more"], [1, 1]) == ["say: rules", "say: more"]
