"""`join` puts the texts of a group, or of an episode's turns, behind one another, whatever the block is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import Seen, data_folder, run_text, weights

HEAD = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
"""
GROUPS = """
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
step:
    rollout = actor.generate(prompts, n=3, max_tokens=4)
    rows    = join(rollout.text, by=prompts)
    drafts  = join("{rollout.text}:{rollout.length}", by=prompts, between="|")
    keep rollout where rollout.length > 1
    left    = join(rollout.text, by=prompts, between="")
    final   = actor.generate("{prompts.prompt}>{left}", max_tokens=3)
    report a = mean(contains(drafts, "|")), b = mean(final.length), c = mean(contains(rows, "a"))
"""
TURNS = """
data tasks = jsonl("tasks.jsonl", batch=4, shuffle=false)
env shell = python("envs.py:Shell")
step:
    episode = actor.interact(shell, tasks, n=2, max_turns=3, max_tokens=24)
    said    = join(episode.observation, by=episode, between="/")
    heard   = join(said, by=tasks, between="&")
    report a = mean(contains(heard, "/"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("joined"))


def ran(text: str, folder: Path, block: int | None) -> Seen:
    [seen] = run_text(HEAD + text, folder, **({"block": block} if block else {}))
    return seen


def test_texts_of_a_group_are_in_the_order_of_its_rows(folder: Path) -> None:
    """Costs a fifth of a second."""
    seen = ran(GROUPS, folder, None)
    texts = seen.values["rollout.text"]
    lengths = [sum(flags) for flags in seen.table("rollout").scored]
    groups = [range(3 * prompt, 3 * prompt + 3) for prompt in range(5)]
    assert seen.values["rows"] == ["\n".join(texts[row] for row in group) for group in groups]
    assert seen.values["drafts"] == ["|".join(f"{texts[row]}:{lengths[row]}" for row in group) for group in groups]
    assert seen.values["left"] == ["".join(texts[row] for row in group if lengths[row] > 1) for group in groups]
    assert ran(GROUPS, folder, 1).metrics == seen.metrics


def test_texts_of_turns_are_joined_by_their_episode(folder: Path) -> None:
    """Costs a fifth of a second."""
    seen = ran(TURNS, folder, None)
    said, heard, observed = (seen.values[name] for name in ("said", "heard", "episode.observation"))
    assert len(said) == 8 and sum(text.count("/") + 1 for text in said) == len(observed)
    assert "/".join(said).split("/") == list(observed)
    assert heard == ["&".join(said[2 * task : 2 * task + 2]) for task in range(4)]
